"""The loss of one batch: a policy gradient, and the KL where the settings put it.

`loss_of` is what a run differentiates. Everything in it is a function of one `kl_companion.Rollout`, so that
it can be audited.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kl_companion.estimators.fused import (
    fused_f_divergence,
    fused_logp,
    fused_top_k_f_divergence,
)
from kl_companion.estimators.top_k import TopK
from kl_companion.estimators.vocabulary import exact_forward_kl, exact_kl
from kl_companion.llm.settings import Settings
from kl_companion.losses import kl_loss
from kl_companion.rollout import (
    Rollout,
    aggregate,
    center,
    credit,
    importance_ratio,
    masked,
    per_token,
)

FUSED = {exact_kl: "reverse_kl", exact_forward_kl: "forward_kl"}


class Advantages(NamedTuple):
    """What the policy gradient multiplies.

    Attributes:
        values: [batch, seq], detached, zero outside the completion mask.
        equal_groups: Share of the groups whose rewards (costs included) all agree: they teach nothing.
    """

    values: torch.Tensor
    equal_groups: float


def from_distributions(rollout: Rollout, settings: Settings) -> torch.Tensor:
    """The estimate of every token from whole next-token distributions, [batch, seq], by the fused kernels.

    Raises:
        ValueError: the rollout holds no logits.
    """
    for name in ("logits", "ref_logits"):
        if getattr(rollout, name) is None:
            raise ValueError(f"{settings.entry.name} needs {name}; this Rollout holds sampled log-probs only")
    if settings.choices is not None:
        return _top_k(rollout, settings.choices, settings)
    inside = rollout.completion_mask.bool()
    fused = FUSED.get(settings.entry.fn)
    if fused is None:  # a distribution-reading estimator that somebody else registered
        return per_token(settings.entry, rollout)
    values = fused_f_divergence(fused, rollout.logits[inside], rollout.ref_logits[inside])  # type: ignore[index]
    return values.new_zeros(inside.shape).masked_scatter(inside, values)


def _top_k(rollout: Rollout, choices: TopK, settings: Settings) -> torch.Tensor:
    inside = rollout.completion_mask.bool()
    logits, ref_logits = rollout.logits[inside], rollout.ref_logits[inside]  # type: ignore[index]
    if choices.k is None or not choices.tail or choices.head_from == "sampler":
        return per_token(settings.entry, rollout)
    if choices.k > logits.shape[-1]:
        raise ValueError(f"k is {choices.k}, expected at most {logits.shape[-1]}, the size of the vocabulary")
    scores = logits if choices.head_from == "policy" else ref_logits
    head = scores.detach().topk(choices.k, dim=-1).indices
    tokens, weight = rollout.tokens[inside], None
    if settings.importance is not None:
        rho = importance_ratio(rollout, scope=settings.importance, clip=settings.importance_clip)
        weight = rho.detach()[inside]
    values = fused_top_k_f_divergence(
        choices.divergence,
        logits,
        tokens,
        head,
        fused_logp(ref_logits, head) if choices.k else ref_logits[:, :0],
        rollout.ref_logp[inside],
        form=choices.form,
        tail_weight=weight,
    )
    return values.new_zeros(inside.shape).masked_scatter(inside, values)


def kl_term(rollout: Rollout, settings: Settings) -> torch.Tensor:
    """beta times the KL in the loss, a scalar; the ratio and the aggregation are those of the settings."""
    options: dict[str, Any] = {
        "beta": settings.beta,
        "importance": settings.importance,
        "clip": settings.importance_clip,
    }
    if settings.level == "sequence":
        return kl_loss(rollout, settings.estimator, level="sequence", **options)
    options |= {"how": settings.how, "length": settings.length}
    if settings.entry.inputs == "sampled":
        return kl_loss(rollout, settings.estimator, **options)
    values = from_distributions(rollout, settings)
    if settings.choices is not None:  # the ratio is on its tail already
        options |= {"importance": None, "clip": None}
    return kl_loss(rollout, lambda logp, ref_logp: values, **options)


def costs_of(rollout: Rollout, settings: Settings) -> torch.Tensor:
    """beta times the estimate of every token, detached, [batch, seq]: the penalty in the reward."""
    with torch.no_grad():
        if settings.entry.inputs == "sampled":
            x = per_token(settings.entry, rollout)
        else:
            x = from_distributions(rollout, settings)
    return settings.beta * masked(x, rollout.completion_mask)


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
        settings: ``advantages``, ``baseline``, ``level``, ``credit`` and ``center_costs`` are read.
    """
    group = prompt_index if settings.baseline == "group" else torch.zeros_like(prompt_index)
    if costs is not None and settings.level == "sequence":
        rewards = rewards - costs.sum(-1)
    values = center(rewards, group, settings.advantages).unsqueeze(-1).expand(completion_mask.shape)
    if costs is not None and settings.level == "token":
        ahead = credit(costs, completion_mask, discount=settings.credit)
        if settings.placement == "both":  # its own cost is differentiated already
            ahead = ahead - masked(costs, completion_mask)
        values = values - (_against_others(ahead, completion_mask, group) if settings.center_costs else ahead)
    return Advantages(masked(values, completion_mask).detach(), _equal(rewards, group))


def _against_others(ahead: torch.Tensor, completion_mask: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    """Credited costs minus the mean of the group's *other* completions at the same position, [batch, seq].

    A completion that has ended has no costs left and counts with 0, so that the baseline of a position does
    not depend on the completion itself.
    """
    same = (group.unsqueeze(0) == group.unsqueeze(1)).to(ahead.dtype)
    others = same - torch.eye(len(group), dtype=ahead.dtype, device=ahead.device)
    return ahead - others @ masked(ahead, completion_mask) / others.sum(-1, keepdim=True)


def _equal(rewards: torch.Tensor, group: torch.Tensor) -> float:
    """Share of the groups in which every reward is the same."""
    _, index = group.unique(return_inverse=True)
    count = int(index.max()) + 1
    lowest = rewards.new_full((count,), torch.inf).scatter_reduce(0, index, rewards, "amin")
    highest = rewards.new_full((count,), -torch.inf).scatter_reduce(0, index, rewards, "amax")
    return (lowest == highest).float().mean().item()


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


def loss_of(rollout: Rollout, advantages: torch.Tensor, settings: Settings) -> torch.Tensor:
    """The whole loss of a batch, a scalar: the policy gradient, and the KL when it is in the loss."""
    loss = policy_loss(rollout, advantages, settings)
    if settings.differentiates:
        loss = loss + kl_term(rollout, settings)
    return loss
