"""When the sampler is not the trainer: weights of tokens, masks of trust regions, and what a log shows.

Log-probs of the trainer's policy and of the engine that sampled, [batch, seq] each, are all that is needed.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch

from kl_companion.checks import check_choice, check_floating, check_mask, check_scalar, check_shape
from kl_companion.estimators import k1, k3
from kl_companion.rollout.masks import masked

Level = Literal["token", "sequence", "geometric"]
Action = Literal["truncate", "mask", "keep"]
Measure = Literal["tv", "binary_kl"]
LEVELS: tuple[Level, ...] = get_args(Level)
ACTIONS: tuple[Action, ...] = get_args(Action)
MEASURES: tuple[Measure, ...] = get_args(Measure)


class Mismatch(NamedTuple):
    """The distance of a trainer to the engine that sampled, of the engine's own tokens.

    Attributes:
        kl: Mean of K1, log engine / trainer: unbiased for KL(engine || trainer), in nats per token.
        k3: Mean of K3, which does not see what the engine cannot sample.
        unsampled: K1 minus K3: the trainer's probability of what the engine cannot sample (top-p, top-k).
        gradient_error: sqrt(2 KL): what an uncorrected gradient is off by, to first order and relative to its
            size; a small KL is no small error. NaN where the mean of K1 is negative.
    """

    kl: float
    k3: float
    unsampled: float
    gradient_error: float


def correction_weight(
    logp: torch.Tensor,
    behavior_logp: torch.Tensor,
    completion_mask: torch.Tensor,
    *,
    level: Level = "token",
    action: Action = "truncate",
    low: float = 0.0,
    high: float | torch.Tensor = 2.0,
) -> torch.Tensor:
    """Return what every token's policy loss is multiplied by, detached, [batch, seq], 0 outside the mask.

    The names of the field: TIS is ``action="truncate"``, with ``high`` 2 for example; MIS and IcePop are
    ``"mask"`` between ``low`` and ``high``; a geometric mask is ``level="geometric"`` with ``"keep"``; CIS is
    ``"truncate"`` at `confident_cap`. TRL's ``sequence_mask`` is ``level="sequence"`` with ``"mask"``.

    Args:
        logp: [batch, seq], of the sampled tokens under the trainer's policy.
        behavior_logp: [batch, seq], under the engine that sampled, at the temperature at which it sampled.
        completion_mask: [batch, seq].
        level: ``"token"``: the ratio of the token alone, which credits it with the engine's continuation;
            ``"sequence"``: of the whole answer, whose typical value goes to 0 with the length;
            ``"geometric"``: its root, by the number of tokens.
        action: ``"truncate"``: the ratio between the bounds; ``"mask"``: the ratio where it is between them,
            else 0; ``"keep"``: 1 there, else 0.
        low: Smallest ratio of trainer to engine.
        high: Largest one, a number or [batch, seq].

    Raises:
        ValueError: shapes or dtypes that do not agree, an unknown choice, or bounds that are not
            0 <= low <= high.

    Source: this book; which objective each weight has depends on the ratio alone.

    Example:
        >>> engine, mask = torch.tensor([[-2.0, -1.0]]), torch.ones(1, 2)
        >>> correction_weight(torch.tensor([[-1.0, -1.0]]), engine, mask)
        tensor([[2., 1.]])
    """
    check_choice("level", level, LEVELS)
    check_choice("action", action, ACTIONS)
    log_ratio = _log_ratio(logp, behavior_logp, completion_mask)
    if isinstance(high, torch.Tensor):
        check_shape("high", high, logp.shape, "logp [batch, seq]")
    check_scalar("low", low, least=0.0)
    if not bool((torch.as_tensor(high) >= low).all()):
        raise ValueError(f"low is {low} and high is {high}, expected low to be at most high")
    if level != "token":
        sums = log_ratio.sum(-1, keepdim=True)
        tokens = completion_mask.sum(-1, keepdim=True) if level == "geometric" else 1
        log_ratio = (sums / tokens).expand_as(log_ratio)
    ratio = log_ratio.exp()
    bounds = [torch.as_tensor(x, dtype=ratio.dtype, device=ratio.device) for x in (low, high)]
    if action == "truncate":
        weight = ratio.clamp(*bounds)
    else:
        inside = (ratio >= bounds[0]) & (ratio <= bounds[1])
        weight = torch.where(inside, ratio if action == "mask" else 1.0, 0.0)
    return masked(weight, completion_mask)


def confident_cap(logp: torch.Tensor, scale: float = 2.3, floor: float = 0.005) -> torch.Tensor:
    """Return 1 + scale max(1 - p, floor), detached, [batch, seq]: a cap that is tight for sure tokens.

    Rounding moves the ratio of a token in proportion to 1 - p, so one cap for all tokens is loose for those
    that the policy is sure of.

    Args:
        logp: [batch, seq], of the sampled tokens.
        scale: How far above 1 the cap of an unlikely token is.
        floor: Least value of 1 - p.

    Raises:
        ValueError: log-probs that are no floating-point tensor, a negative scale or floor.
    """
    check_floating("logp", logp)
    for name, x in (("scale", scale), ("floor", floor)):
        check_scalar(name, x, least=0.0)
    return 1 + scale * (-torch.expm1(logp.detach())).clamp(min=floor)


def trust_region_mask(
    advantages: torch.Tensor,
    logp: torch.Tensor,
    behavior_logp: torch.Tensor,
    *,
    measure: Measure = "tv",
    low: float = 0.2,
    high: float = 0.2,
) -> torch.Tensor:
    """Return 1 where DPPO's mask lets a token be trained on, else 0, detached, [batch, seq].

    A token is left out if it has moved too far from the sampler in the direction in which its advantage
    pushes. The mask limits who pushes, not who is moved: tokens that are left out are moved by the others.

    Args:
        advantages: [batch, seq].
        logp: [batch, seq], of the sampled tokens under the policy.
        behavior_logp: [batch, seq], under the sampler.
        measure: ``"tv"``: the difference of the two probabilities; ``"binary_kl"``: the KL of "this token or
            another", sampler to policy. Both are lower bounds on the distance of the whole distributions.
        low: Largest distance of a token with a negative advantage whose probability has fallen.
        high: Largest distance of one with a positive advantage whose probability has risen.

    Raises:
        ValueError: shapes or dtypes that do not agree, an unknown measure, or a bound that is negative.

    Source: the loss names `dppo_tv` and `dppo_kl` of verl, which read the same thresholds.
    """
    check_choice("measure", measure, MEASURES)
    for name, x in (("advantages", advantages), ("behavior_logp", behavior_logp)):
        check_shape(name, x, logp.shape, "logp [batch, seq]")
    for name, x in (("logp", logp), ("behavior_logp", behavior_logp)):
        check_floating(name, x)
    for name, bound in (("low", low), ("high", high)):
        check_scalar(name, bound, least=0.0)
    log_p, log_mu = logp.detach(), behavior_logp.detach()
    p, mu = log_p.exp(), log_mu.exp()
    distance = (p - mu).abs() if measure == "tv" else _binary_kl(log_mu, log_p)
    risen = (advantages > 0) & (p > mu) & (distance > high)
    fallen = (advantages < 0) & (p < mu) & (distance > low)
    return (~(risen | fallen)).to(logp.dtype)


def mismatch(logp: torch.Tensor, behavior_logp: torch.Tensor, completion_mask: torch.Tensor) -> Mismatch:
    """Return how far the trainer is from the engine, as means over the tokens of a batch.

    Args:
        logp: [batch, seq], of the sampled tokens under the trainer's policy.
        behavior_logp: [batch, seq], under the engine that sampled.
        completion_mask: [batch, seq].

    Raises:
        ValueError: shapes or dtypes that do not agree, or an answer without a token.
    """
    inside = _log_ratio(logp, behavior_logp, completion_mask)[completion_mask.bool()].double()
    engine = torch.zeros_like(inside)  # the estimates read the difference of the log-probs alone
    kl, least = (estimate(engine, inside).mean().item() for estimate in (k1, k3))
    return Mismatch(kl, least, kl - least, math.sqrt(2 * kl) if kl >= 0 else math.nan)


def _log_ratio(
    logp: torch.Tensor, behavior_logp: torch.Tensor, completion_mask: torch.Tensor
) -> torch.Tensor:
    """Return log trainer - log engine, detached, 0 outside the mask; half precision is widened."""
    for name, x in (("logp", logp), ("behavior_logp", behavior_logp)):
        check_floating(name, x)
        check_shape(name, x, completion_mask.shape, "completion_mask [batch, seq]")
    check_mask(completion_mask)
    wide = torch.promote_types(logp.dtype, torch.float32)
    return masked(logp.detach().to(wide) - behavior_logp.detach().to(wide), completion_mask)


def _binary_kl(log_mu: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """Return the KL between a token and all others together, sampler to policy."""
    others_mu, others_p = (torch.log(-torch.expm1(x)) for x in (log_mu, log_p))
    rest = torch.where(others_mu.isneginf(), 0.0, others_mu.exp() * (others_mu - others_p))
    return log_mu.exp() * (log_mu - log_p) + rest
