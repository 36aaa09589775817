"""Named objectives: scalars of an enumerated world whose exact gradients a loss is compared with.

``sequence_*`` objectives are functions of the whole policy. ``token_*`` ones sum a divergence over the
states that the *sampling* policy visits and hold those visits fixed: what a per-token loss minimizes,
and in general not the gradient of anything (the field has curl); ``policy_token_*`` ones do so over the
states that the *policy* would visit. ``behavior_*`` ones hold the samples themselves fixed; both are
distinct only off-policy. ``sampled_mean_*`` ones divide by the length of the sequence that was sampled,
the sample held fixed; they and the other objectives of lengths are distinct only where lengths vary.
"""

from __future__ import annotations

import torch

from kl_companion.auditing.worlds.divergences import add_divergence as add_divergence
from kl_companion.auditing.worlds.objective import OBJECTIVES as OBJECTIVES
from kl_companion.auditing.worlds.objective import Objective as Objective
from kl_companion.auditing.worlds.objective import field as field
from kl_companion.auditing.worlds.objective import fields_and_values as fields_and_values
from kl_companion.auditing.worlds.objective import mean, policy_visits, total, visits
from kl_companion.auditing.worlds.objective import register_objective as register_objective
from kl_companion.auditing.worlds.objective import value as value
from kl_companion.auditing.worlds.truncations import MASSES, add_masses
from kl_companion.divergences import DIVERGENCES
from kl_companion.rollout import Rollout


def objectives(*, off_policy: bool, lengths: bool = True, heads: bool = True) -> dict[str, Objective]:
    """The objectives to try; divergences that were registered later are included.

    Args:
        off_policy: Whether another policy samples.
        lengths: Whether the lengths of sequences vary.
        heads: Whether the loss reads more of a distribution than the sampled token; those that are cut are
            not among them, see `kl_companion.auditing.worlds.truncations`.
    """
    for d in list(DIVERGENCES.values()):
        add_divergence(d)
    return {
        n: o
        for n, o in OBJECTIVES.items()
        if (off_policy or not o.off_policy_only)
        and (lengths or not o.lengths_only)
        and (heads or not o.heads_only)
        and not o.cut
    }


for _divergence in DIVERGENCES.values():
    add_divergence(_divergence)


def _rewards(rollout: Rollout) -> torch.Tensor:
    if rollout.rewards is None:
        raise ValueError("the expected reward needs rewards; this Rollout holds none")
    return rollout.rewards


@register_objective(
    "expected_reward",
    words="the expected reward",
    short="reward",
    source="emapg2026, eq (1)",
    regularizer=False,
    rewards=True,
)
def _expected_reward(rollout: Rollout) -> torch.Tensor:
    return (total(rollout.logp, rollout).exp() * _rewards(rollout)).sum()


@register_objective(
    "expected_reward_per_token",
    words="the expected reward divided by the length of its answer",
    short="reward / answer length",
    effect="A reward counts less in a long answer, and answers with high rewards become rarer.",
    opposite="A reward counts less in a long answer: long wrong answers are punished less.",
    source="this book",
    regularizer=False,
    lengths_only=True,
    rewards=True,
)
def _expected_reward_per_token(rollout: Rollout) -> torch.Tensor:
    each = total(rollout.logp, rollout).exp() * _rewards(rollout)
    return (each / rollout.completion_mask.sum(-1)).sum()


@register_objective(
    "behavior_reward",
    words="the log-likelihood of the samples, each times its reward, the samples held fixed",
    short="reward-weighted log-likelihood of the old samples",
    effect="Old samples are lowered by their reward without a correction for who drew them.",
    opposite="Old samples are raised by their reward without a correction for who drew them.",
    source="this book",
    regularizer=False,
    off_policy_only=True,
    rewards=True,
)
def _behavior_reward(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * _rewards(rollout) * total(rollout.logp, rollout)).sum()


@register_objective(
    "behavior_reward_per_token",
    words="the log-likelihood of the samples divided by their length, each times its reward, the samples "
    "held fixed",
    short="reward / length-weighted log-likelihood of the old samples",
    effect="Old samples are lowered by reward over length, without a correction for who drew them.",
    opposite="Old samples are raised by reward over length, without a correction for who drew them.",
    source="this book",
    regularizer=False,
    off_policy_only=True,
    lengths_only=True,
    rewards=True,
)
def _behavior_reward_per_token(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * _rewards(rollout) * mean(rollout.logp, rollout)).sum()


@register_objective(
    "token_entropy",
    words="the entropy of every next token, with the states that are visited held fixed",
    short="entropy, next token",
    source="this book",
    regularizer=False,
)
def _token_entropy(rollout: Rollout) -> torch.Tensor:
    each = -(rollout.logp_all.exp() * rollout.logp_all).sum(-1)
    return (visits(rollout) * total(each, rollout)).sum()


@register_objective(
    "sequence_entropy",
    words="the entropy of whole sequences",
    short="entropy, whole answer",
    source="this book",
    regularizer=False,
)
def _sequence_entropy(rollout: Rollout) -> torch.Tensor:
    logp = total(rollout.logp, rollout)
    return -(logp.exp() * logp).sum()


@register_objective(
    "sequence_squared_log_ratio",
    words="half the squared log-ratio of whole sequences, expected under the policy (not a KL)",
    short="squared log-ratio / 2, whole answer",
    effect="Answers whose log-ratio is large in either direction are made rarer: no KL.",
    source="wang2025choosing, section 6.2",
)
def _sequence_squared(rollout: Rollout) -> torch.Tensor:
    logp, ref_logp = total(rollout.logp, rollout), total(rollout.ref_logp, rollout)
    return (logp.exp() * (logp - ref_logp) ** 2 / 2).sum()


@register_objective(
    "token_squared_log_ratio",
    words="half the squared log-ratio of every next token, expected under the policy (not a KL), "
    "with the states that are visited held fixed",
    short="squared log-ratio / 2, next token",
    effect="Tokens whose log-ratio is large in either direction are made rarer: no KL.",
    source="wang2025choosing, section 6.2",
)
def _token_squared(rollout: Rollout) -> torch.Tensor:
    each = (rollout.logp_all.exp() * (rollout.logp_all - rollout.ref_logp_all) ** 2 / 2).sum(-1)
    return (visits(rollout) * total(each, rollout)).sum()


@register_objective(
    "behavior_squared_log_ratio",
    words="half the squared log-ratio of the tokens that were sampled, the samples held fixed",
    short="squared log-ratio / 2 of the old samples, token",
    effect="The log-ratio of tokens that were drawn is pulled to zero, however likely they are by now.",
    opposite="The log-ratio of tokens that were drawn is pushed away from zero, however likely they are.",
    source="tang2025pitfalls, section 6",
    off_policy_only=True,
)
def _behavior_squared(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * total((rollout.logp - rollout.ref_logp) ** 2 / 2, rollout)).sum()


@register_objective(
    "behavior_sequence_squared_log_ratio",
    words="half the squared log-ratio of the sequences that were sampled, the samples held fixed",
    short="squared log-ratio / 2 of the old samples, answer",
    effect="The log-ratio of answers that were drawn is pulled to zero, however likely they are by now.",
    opposite="The log-ratio of answers that were drawn is pushed away from zero, however likely they are.",
    source="tang2025pitfalls, section 6",
    off_policy_only=True,
)
def _behavior_sequence_squared(rollout: Rollout) -> torch.Tensor:
    difference = total(rollout.logp - rollout.ref_logp, rollout)
    return (visits(rollout) * difference**2 / 2).sum()


@register_objective(
    "behavior_log_likelihood",
    words="the log-likelihood of the samples, held fixed (no word of the reference)",
    short="log-likelihood of the old samples",
    effect="The old samples themselves are made less likely, whatever the reference says.",
    opposite="The old samples themselves are made more likely, whatever the reference says.",
    source="this book",
    regularizer=False,
    off_policy_only=True,
)
def _behavior_log_likelihood(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * total(rollout.logp, rollout)).sum()


@register_objective(
    "behavior_reference_ratio",
    words="the mean of pi_ref/pi over the tokens that were sampled, the samples held fixed",
    short="mean of ref/policy on the old samples",
    effect="Tokens that were drawn and that the policy has dropped are brought back.",
    opposite="Tokens that were drawn and that the policy has dropped are dropped further.",
    source="this book",
    off_policy_only=True,
)
def _behavior_ratio(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * total((rollout.ref_logp - rollout.logp).exp(), rollout)).sum()


@register_objective(
    "behavior_sequence_reference_ratio",
    words="the mean of pi_ref/pi over the sequences that were sampled, the samples held fixed",
    short="mean of ref/policy on the old answers",
    effect="Answers that were drawn and that the policy has dropped are brought back.",
    opposite="Answers that were drawn and that the policy has dropped are dropped further.",
    source="this book",
    off_policy_only=True,
)
def _behavior_sequence_ratio(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * total(rollout.ref_logp - rollout.logp, rollout).exp()).sum()


@register_objective(
    "policy_token_squared_log_ratio",
    words="half the squared log-ratio of every next token, expected under the policy (not a KL), "
    "with the states that the policy itself visits held fixed",
    short="squared log-ratio / 2, next token of own answers",
    effect="Tokens whose log-ratio is large in either direction are made rarer: no KL.",
    source="wang2025choosing, section 6.2",
    off_policy_only=True,
)
def _policy_token_squared(rollout: Rollout) -> torch.Tensor:
    each = (rollout.logp_all.exp() * (rollout.logp_all - rollout.ref_logp_all) ** 2 / 2).sum(-1)
    return (policy_visits(rollout) * total(each, rollout)).sum()


@register_objective(
    "summed_squared_log_ratio",
    words="half the squared log-ratio of every token, summed and expected under the policy (not a KL)",
    short="sum of squared log-ratios / 2, whole answer",
    effect="Answers with large log-ratios in either direction are made rarer: no KL.",
    source="this book",
)
def _summed_squared(rollout: Rollout) -> torch.Tensor:
    probability = total(rollout.logp, rollout).exp()
    return (probability * total((rollout.logp - rollout.ref_logp) ** 2 / 2, rollout)).sum()


@register_objective(
    "expected_inverse_length",
    words="the expected inverse length, E[1/T], smaller for longer sequences (no word of the reference)",
    short="1 / answer length",
    effect="Answers become longer.",
    opposite="Answers become shorter.",
    source="this book",
    regularizer=False,
    lengths_only=True,
)
def _expected_inverse_length(rollout: Rollout) -> torch.Tensor:
    return (total(rollout.logp, rollout).exp() / rollout.completion_mask.sum(-1)).sum()


@register_objective(
    "sequence_mean_reverse_kl",
    words="the log-ratio of whole sequences divided by their length, expected under the policy",
    short="mean log-ratio of an answer",
    effect="The penalty of an answer is divided by its length: tokens of long answers are penalized less.",
    opposite="The mean log-ratio of answers to the reference is raised.",
    source="this book",
    lengths_only=True,
)
def _sequence_mean_reverse_kl(rollout: Rollout) -> torch.Tensor:
    probability = total(rollout.logp, rollout).exp()
    return (probability * mean(rollout.logp - rollout.ref_logp, rollout)).sum()


@register_objective(
    "sampled_mean_squared_log_ratio",
    words="half the squared log-ratio of the tokens that were sampled, divided by the length of their "
    "sequence, the samples held fixed",
    short="squared log-ratio / 2, mean over each answer",
    effect="Near a reverse KL, but each answer counts once, however long.",
    opposite="The log-ratio is pushed away from zero; each answer counts once, however long.",
    source="this book",
    lengths_only=True,
)
def _sampled_mean_squared(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * mean((rollout.logp - rollout.ref_logp) ** 2 / 2, rollout)).sum()


@register_objective(
    "sampled_mean_reference_ratio",
    words="the mean of pi_ref/pi over the tokens of each sequence that was sampled, the samples held fixed",
    short="ref/policy, mean over each answer",
    effect="Near a forward KL, but each answer counts once, however long.",
    opposite="Tokens that the policy has dropped are dropped further; each answer counts once, however long.",
    source="this book",
    lengths_only=True,
)
def _sampled_mean_ratio(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * mean((rollout.ref_logp - rollout.logp).exp(), rollout)).sum()


@register_objective(
    "sampled_mean_log_likelihood",
    words="the log-likelihood of the samples divided by their length, held fixed (no word of the reference)",
    short="log-likelihood of the old samples / length",
    effect="The old samples themselves are made less likely, whatever the reference says.",
    opposite="The old samples themselves are made more likely, whatever the reference says.",
    source="this book",
    regularizer=False,
    off_policy_only=True,
    lengths_only=True,
)
def _sampled_mean_log_likelihood(rollout: Rollout) -> torch.Tensor:
    return (visits(rollout) * mean(rollout.logp, rollout)).sum()


for _k in range(1, MASSES + 1):
    add_masses(_k)
