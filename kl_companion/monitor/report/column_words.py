"""The columns of a monitored run in words: what each is called, its unit, and what it tells."""

from __future__ import annotations

from typing import NamedTuple


class ColumnWords(NamedTuple):
    """A column for readers: its name, what its value tells, and whether it is a share."""

    name: str
    meaning: str
    share: bool = False


WORDS: dict[str, ColumnWords] = {
    "kl": ColumnWords(
        "Exact KL to the reference",
        "Nats per token, summed over the whole vocabulary at every sampled prefix: no noise from sampling "
        "the next token. The interval is that of sampling the "
        "answers.",
    ),
    "forward_kl": ColumnWords(
        "Exact forward KL",
        "The same with policy and reference exchanged. Where it is much larger than the reverse KL, "
        "the policy gives almost no probability to tokens that the reference uses.",
    ),
    "kl_of_answers": ColumnWords(
        "KL of an answer",
        "Nats, summed over the tokens of an answer. Times β, it is what a KL in the reward subtracts.",
    ),
    "entropy": ColumnWords("Entropy", "Nats per token: how much the policy still chooses."),
    "logged": ColumnWords("Logged by the trainer", "The trainer's own number, for the same tokens."),
    "logged_expected": ColumnWords(
        "Expectation of the logged number", "What its estimator would give on average over the next tokens."
    ),
    "logged_bias": ColumnWords(
        "Bias of the logged number", "Expectation minus exact KL; no averaging removes it."
    ),
    "logged_noise": ColumnWords(
        "Noise of the logged number", "The rest: which tokens happened to be sampled."
    ),
    "logged_error": ColumnWords("Standard error of the logged number", "The usual size of that noise."),
    "k1_error": ColumnWords("Standard error of K1", "On the same prefixes, had K1 been logged."),
    "k2_error": ColumnWords("Standard error of K2", "The same for K2."),
    "k3_error": ColumnWords("Standard error of K3", "The same for K3."),
    "k2_bias": ColumnWords("Bias of K2", "Expectation of K2 minus exact KL on the same prefixes."),
    "dead_zone": ColumnWords(
        "Dead zone", "Share of tokens that a clamp leaves without a gradient.", share=True
    ),
    "largest_log_ratio": ColumnWords(
        "Largest log-ratio",
        "Of a sampled token, in nats: e to this power is how far the two models differ on it.",
    ),
    "effective_beta": ColumnWords(
        "Effective β", "What β is worth in units of the reward before it is divided."
    ),
    "equal_groups": ColumnWords(
        "Groups of equal rewards",
        "Share of groups without a difference: only the KL term acts there.",
        share=True,
    ),
    "length_pull_kl": ColumnWords(
        "Effect of the KL term on length",
        "Gradient of the KL term with respect to the log-odds of ending an answer: above 0 it makes answers "
        "shorter.",
    ),
    "length_pull_reward": ColumnWords("Effect of the reward on length", "The same for the reward term."),
    "mismatch": ColumnWords(
        "Mismatch of the engine", "Mean distance of its log-probs from the trainer's, in nats per token."
    ),
    "mismatch_kl": ColumnWords(
        "KL of the engine to the trainer", "Nats per token, estimated from the samples."
    ),
    "mismatch_temperature": ColumnWords(
        "Mismatch by temperature", "The part that another temperature explains."
    ),
    "mismatch_truncation": ColumnWords("Mismatch by truncation", "The part that top-p or top-k explains."),
    "mismatch_rounding": ColumnWords("Mismatch that is left", "Rounding, other kernels, or other weights."),
    "engine_temperature": ColumnWords(
        "Temperature of the engine", "The one that explains the mismatch best."
    ),
    "engine_kept": ColumnWords(
        "Probability kept by the engine",
        "The mass that top-p or top-k leaves, as it explains the mismatch best.",
        share=True,
    ),
    "reward": ColumnWords("Reward", "Mean over the answers."),
    "loss": ColumnWords("Loss", "The trainer's; its value says nothing about progress."),
    "seconds": ColumnWords("Time of the observation", "Seconds."),
}
