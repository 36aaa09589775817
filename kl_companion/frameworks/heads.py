"""Objectives that only frameworks have: divergences of distributions cut to the head of a vocabulary.

They are named so that an audit of a top-k loss can say what it descends. ``bucketed`` puts what stands
outside the head into one bucket, ``conditional`` renormalizes the head, ``truncated`` does neither, and is no
divergence: it can be negative, and has a gradient where both policies agree. ``clamped`` leaves its negative
values out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch

from kl_companion.auditing import OBJECTIVES, register_objective
from kl_companion.rollout import Rollout

_SIZES = {"bucketed": (1,), "conditional": (2,), "truncated": (1, 2), "clamped": (1, 2)}  # of three tokens
_HEADS = (("reverse", "policy"), ("forward", "reference"), ("reverse", "reference"))
_SAID = {
    "bucketed": "with all other tokens in one bucket",
    "conditional": "renormalized",
    "truncated": "as a plain sum over them (no divergence)",
    "clamped": "as a plain sum over them that counts only where it is positive (no divergence)",
}


def _cut(logp_all: torch.Tensor, index: torch.Tensor, how: str) -> torch.Tensor:
    head = logp_all.gather(-1, index)
    if how in ("truncated", "clamped"):
        return head
    inside = head.logsumexp(-1, keepdim=True)
    if how == "conditional":
        return head - inside
    return torch.cat([head, (-inside.expm1()).log()], -1)


def _objective(direction: str, whose: str, k: int, how: str) -> Callable[[Rollout], torch.Tensor]:
    def scalar(rollout: Rollout) -> torch.Tensor:
        scores = rollout.logp_all if whose == "policy" else rollout.ref_logp_all
        index = scores.detach().topk(k, dim=-1).indices
        policy, reference = (_cut(x, index, how) for x in (rollout.logp_all, rollout.ref_logp_all))
        p, q = (policy, reference) if direction == "reverse" else (reference, policy)
        each = (p.exp() * (p - q)).sum(-1)
        each = (each.clamp_min(0) if how == "clamped" else each) * rollout.completion_mask
        visits = (rollout.sampled_from * rollout.completion_mask).sum(-1).exp().detach()
        return (visits * each.sum(-1)).sum()

    return scalar


def name_heads() -> None:
    """Register them, once; they are tried only for losses that read more than the sampled token."""
    for (direction, whose), how in product(_HEADS, _SAID):
        if how in ("bucketed", "conditional") and (direction, whose) == ("reverse", "reference"):
            continue  # no framework does
        for k in _SIZES[how]:
            name = f"token_{how}_{direction}_kl_{whose}_top_{k}"
            if name in OBJECTIVES:
                continue
            these = "likeliest token" if k == 1 else f"{k} likeliest tokens"
            register_objective(
                name,
                words=f"the {direction} KL of every next token, cut to the {whose}'s {these}, {_SAID[how]}, "
                "with the states that are visited held fixed",
                source="this book",
                heads_only=True,
            )(_objective(direction, whose, k, how))
