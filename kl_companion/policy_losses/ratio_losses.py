"""Policy losses of trainers: what they make of an advantage and the ratio of the policy to an older one.

Each returns one value per token, [batch, seq], to be minimized and not yet aggregated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from kl_companion.checks import check_choice
from kl_companion.rollout import masked

PolicyLoss = Literal["reinforce", "importance", "ppo", "gspo", "cispo"]


def _reinforce(log_ratio: torch.Tensor, a: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return -a * log_ratio


def _importance(log_ratio: torch.Tensor, a: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return -a * log_ratio.exp()


def _ppo(log_ratio: torch.Tensor, a: torch.Tensor, low: float, high: float) -> torch.Tensor:
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def _cispo(log_ratio: torch.Tensor, a: torch.Tensor, low: float, high: float) -> torch.Tensor:
    weight = log_ratio.detach().exp().clamp(1 - low, 1 + high)
    return -weight * a * log_ratio


_LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor, float, float], torch.Tensor]] = {
    "reinforce": _reinforce,
    "importance": _importance,
    "ppo": _ppo,
    "gspo": _ppo,  # of the ratio of whole answers
    "cispo": _cispo,
}
POLICY_LOSSES = tuple(_LOSSES)
DUAL = ("ppo", "gspo")


def check_dual(name: PolicyLoss, dual: float | None) -> None:
    """ValueError for a dual clip below 1, or of a loss whose ratio is not compared with its clipped one."""
    if dual is not None and not dual >= 1:
        raise ValueError(f"dual_clip is {dual!r}, expected a number of at least 1, or None")
    if dual is not None and name not in DUAL:
        raise ValueError(f"dual_clip={dual} got policy_loss={name!r}, expected one of {', '.join(DUAL)}")


def policy_loss(
    name: PolicyLoss,
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    completion_mask: torch.Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> torch.Tensor:
    """What a token contributes to the policy loss, [batch, seq], 0 outside the mask.

    Args:
        name: ``"reinforce"``: log pi. ``"importance"``: the ratio. ``"ppo"``: the smaller of ratio and
            clipped ratio, each times the advantage. ``"gspo"``: the same with the ratio of whole answers, the
            geometric mean over their tokens. ``"cispo"``: log pi weighted by the clipped ratio, detached.
        log_ratio: log pi - log of the older policy, [batch, seq]; its gradient is the score.
        advantages: [batch, seq], detached.
        completion_mask: [batch, seq].
        low: How far below 1 a ratio is free; of the last three.
        high: How far above 1.
        dual: Of PPO and GSPO: a negative advantage is multiplied by a ratio of at most this; None for no
            limit.

    Raises:
        ValueError: an unknown name, a range that is negative, a dual clip below 1 or of a loss that has none,
            or shapes that differ.
    """
    check_choice("policy_loss", name, POLICY_LOSSES)
    if not (low >= 0 and high >= 0):
        raise ValueError(f"low={low}, high={high}: expected two numbers that are not negative")
    check_dual(name, dual)
    inside = masked(log_ratio, completion_mask)
    if name == "gspo":
        lengths = completion_mask.sum(-1, keepdim=True)
        inside = (inside.sum(-1, keepdim=True) / lengths).expand_as(inside)
    a = masked(advantages, completion_mask)
    x = _LOSSES[name](inside, a, low, high)
    if dual is not None:
        x = torch.where(a < 0, torch.minimum(x, -dual * a), x)
    return masked(x, completion_mask)
