"""The loss of one batch: a policy gradient, and the KL where the settings put it.

`loss_of` is what a run differentiates. Everything in it is a function of one `kl_companion.Rollout`, so that
it can be audited.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kl_companion.kl_term import penalties
from kl_companion.llm.settings import Settings
from kl_companion.losses import term_loss
from kl_companion.rollout import Rollout, aggregate, center, importance_ratio, masked
from kl_companion.rollout.centering import numbered
from kl_companion.token_terms import kernel_estimates, token_costs


class Advantages(NamedTuple):
    """What the policy gradient multiplies.

    Attributes:
        values: [batch, seq], detached, zero outside the completion mask.
        equal_groups: Share of the groups whose rewards (costs included) all agree: they teach nothing; a
            tensor without axes, which the host need not read yet.
    """

    values: torch.Tensor
    equal_groups: torch.Tensor


def kl_term(rollout: Rollout, settings: Settings) -> torch.Tensor:
    """beta times the KL in the loss, a scalar; the term and the aggregation are those of the settings.

    At level "sequence" it is the mean over sequences, however tokens are aggregated.
    """
    term = settings.term
    if term.level == "sequence":
        return term_loss(rollout, term, beta=settings.beta)
    return term_loss(
        rollout,
        term,
        beta=settings.beta,
        how=settings.how,
        length=settings.length,
        estimate=kernel_estimates,
    )


def costs_of(rollout: Rollout, settings: Settings) -> torch.Tensor:
    """beta times the estimate of every token, detached, [batch, seq]: the penalty in the reward."""
    return settings.beta * token_costs(settings.term, rollout)


def advantages_of(
    rewards: torch.Tensor,
    costs: torch.Tensor | None,
    completion_mask: torch.Tensor,
    prompt_index: torch.Tensor,
    settings: Settings,
) -> Advantages:
    """Rewards and costs of a whole batch, compared as the settings say.

    Args:
        rewards: [batch].
        costs: [batch, seq] from `costs_of`, or None where the KL is in the loss.
        completion_mask: [batch, seq].
        prompt_index: [batch].
        settings: ``advantages``, ``baseline``, ``term`` and ``center_costs`` are read.
    """
    group = prompt_index if settings.baseline == "group" else torch.zeros_like(prompt_index)
    penalty = None if costs is None else penalties(settings.term, costs, completion_mask)
    if penalty is not None and penalty.ndim == 1:
        rewards = rewards - penalty
    values = center(rewards, group, settings.advantages).unsqueeze(-1).expand(completion_mask.shape)
    if penalty is not None and penalty.ndim == 2:
        values = values - (
            _against_others(penalty, completion_mask, group) if settings.center_costs else penalty
        )
    return Advantages(masked(values, completion_mask).detach(), _equal(rewards, group))


def _against_others(ahead: torch.Tensor, completion_mask: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Credited costs minus the mean of the group's *other* completions at the same position, [batch, seq].

    A completion that has ended has no costs left and counts with 0, so that the baseline of a position does
    not depend on the completion itself.
    """
    same = (group.unsqueeze(0) == group.unsqueeze(1)).to(ahead.dtype)
    others = same - torch.eye(len(group), dtype=ahead.dtype, device=ahead.device)
    return ahead - others @ masked(ahead, completion_mask) / others.sum(-1, keepdim=True)


def _equal(rewards: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Share of the groups in which every reward is the same."""
    index = numbered(group)
    lowest = torch.full_like(rewards, torch.inf).scatter_reduce(0, index, rewards, "amin")
    highest = torch.full_like(rewards, -torch.inf).scatter_reduce(0, index, rewards, "amax")
    same = lowest == highest  # not of a number without a group
    return same.sum().float() / (index.max() + 1).float()


def policy_loss(rollout: Rollout, advantages: torch.Tensor, settings: Settings) -> torch.Tensor:
    """Minus the advantage times pi/mu of the token, clipped as PPO does; a scalar.

    On-policy the ratio is 1 and its gradient the score, so this is REINFORCE.

    Args:
        rollout: ``behavior_logp`` is that of the sampler.
        advantages: [batch, seq], detached here.
        settings: ``clip``, ``how`` and ``length`` are read.

    Source: emapg2026, appendix A.
    """
    a = masked(advantages.detach(), rollout.completion_mask)
    rho = importance_ratio(rollout, scope="token")
    gain = rho * a
    if settings.clip is not None:
        low, high = settings.clip
        gain = torch.minimum(gain, rho.clamp(1 - low, 1 + high) * a)
    return aggregate(-gain, rollout.completion_mask, settings.how, length=settings.length)


class BatchSize(NamedTuple):
    """The size of the batch that a step averages over, of which a rollout may be one part.

    Attributes:
        sequences: Number of sequences.
        tokens: Number of tokens under the completion mask; where several processes take a step together,
            the mean over the processes.
    """

    sequences: int
    tokens: torch.Tensor


def loss_of(
    rollout: Rollout, advantages: torch.Tensor, settings: Settings, size: BatchSize | None = None
) -> torch.Tensor:
    """Return the loss of a batch, a scalar: the policy gradient, and the KL when it is in the loss.

    Args:
        rollout: The batch, or a part of it.
        advantages: [batch, seq].
        settings: The choices of the run.
        size: The batch that the rollout is a part of: the losses of its parts add up to the loss of the
            batch. None: the rollout is the batch.
    """
    sequences, tokens = len(rollout.logp), rollout.completion_mask.sum().to(rollout.logp.dtype)
    size = size or BatchSize(sequences, tokens)
    of_sequences = sequences / size.sequences
    share = tokens / size.tokens if settings.how == "token_mean" else of_sequences
    loss = share * policy_loss(rollout, advantages, settings)
    if settings.differentiates:
        # a term at level "sequence" is a mean over sequences, whatever the aggregation of tokens
        share = of_sequences if settings.term.level == "sequence" else share
        loss = loss + share * kl_term(rollout, settings)
    return loss
