"""What a monitor knows after a look at some answers: one record, whose fields are the CSV's columns."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one look at a step of a run found. Logarithms are natural (nats).

    None is what is not known; NaN or an infinity is what the run really had.

    Every error is conditional on the prefixes that were sampled: each token is thought to be drawn anew from
    the policy given what stands before it. The deviation of a token's estimate from its mean given the prefix
    is uncorrelated with those of the others, so variances add up. It is not the error by which another batch
    would differ, which `kl_low` and `kl_high` say. Tokens that an older policy or a truncated sampler has
    drawn are not what these expectations are about: the difference is then part of `logged_noise`.

    Attributes:
        step: The trainer's optimizer step.
        answers, tokens: How many completions and completion tokens were read.
        kl, kl_low, kl_high: Exact KL(policy || reference) of the next token, mean over completion tokens, and
            its 95 % interval, in which answers are the independent units (their lengths vary: a ratio of two
            sums); its lower end is cut at 0, and with one answer it is not known.
        forward_kl, forward_kl_low, forward_kl_high: The same of KL(reference || policy).
        kl_of_answers: Mean over answers of the sum of exact next-token KLs.
        entropy: Mean entropy of the policy's next token.
        logged: The trainer's own number for the same tokens.
        logged_expected: The expectation of its estimator on these prefixes, with its clamp.
        logged_bias: ``logged_expected - kl``.
        logged_noise: ``logged - logged_expected``.
        logged_error: Standard error of its estimator on these prefixes.
        k1_error, k2_error, k3_error: Standard error of K1, K2, K3 on these prefixes.
        k2_bias: Expectation of K2 on these prefixes minus ``kl``.
        dead_zone: Share of completion tokens whose log-ratio the clamp cuts, so that they have no gradient.
        largest_log_ratio: The largest absolute log-ratio of a sampled token.
        effective_beta: The KL coefficient in units of the undivided reward.
        equal_groups: Share of groups whose rewards all agree.
        length_pull_kl: Minus the gradient of the KL term by the logit of end-of-sequence, summed over tokens,
            divided by the number of answers; positive makes answers shorter. The logit is the one after the
            temperature.
        length_pull_reward: The same of the reward term, minus advantage times log-prob.
        mismatch: Mean absolute difference between the engine's log-probs and the recomputed ones, per token.
        mismatch_kl: K3 estimate of KL(engine || trainer) per token, from the sampled tokens.
        mismatch_temperature, mismatch_truncation, mismatch_rounding: Mean absolute contribution per token of
            another temperature, of a truncated distribution, and of what is left. With their signs the three
            add up to the difference at every token.
        engine_temperature, engine_kept: The temperature and the mean kept mass that explain it best.
        reward: Mean reward.
        loss: The trainer's loss.
        seconds: Time that the observation took.
    """

    step: int
    answers: int
    tokens: int
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    forward_kl: float | None = None
    forward_kl_low: float | None = None
    forward_kl_high: float | None = None
    kl_of_answers: float | None = None
    entropy: float | None = None
    logged: float | None = None
    logged_expected: float | None = None
    logged_bias: float | None = None
    logged_noise: float | None = None
    logged_error: float | None = None
    k1_error: float | None = None
    k2_error: float | None = None
    k3_error: float | None = None
    k2_bias: float | None = None
    dead_zone: float | None = None
    largest_log_ratio: float | None = None
    effective_beta: float | None = None
    equal_groups: float | None = None
    length_pull_kl: float | None = None
    length_pull_reward: float | None = None
    mismatch: float | None = None
    mismatch_kl: float | None = None
    mismatch_temperature: float | None = None
    mismatch_truncation: float | None = None
    mismatch_rounding: float | None = None
    engine_temperature: float | None = None
    engine_kept: float | None = None
    reward: float | None = None
    loss: float | None = None
    seconds: float | None = None

    def known(self) -> dict[str, float]:
        """The columns that are known, by name; without ``step``."""
        found = {name: getattr(self, name) for name in COLUMNS[1:]}
        return {name: x for name, x in found.items() if x is not None}

    def cells(self) -> list[str]:
        """The row of the CSV: ten digits, `nan`, `inf` or `-inf`, and an empty text for what is not known."""
        return ["" if x is None else f"{x:.10g}" for x in (getattr(self, name) for name in COLUMNS)]


COLUMNS = tuple(f.name for f in fields(Observation))
COUNTS = COLUMNS[:3]  # whole numbers, always known
