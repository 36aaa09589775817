"""Objectives of distributions cut to their likeliest tokens, and means over the tokens of each answer.

Distillation often sums over the k likeliest tokens of the teacher or of the student. What is done with the
others decides what such a sum is: with all of them in one bucket, or with the head renormalized, it is a
divergence of coarser distributions; a plain sum over the head is none, and ``clamped`` it counts only where
it is positive; ``cropped`` renormalizes the head of the reference alone. ``sampled_mean`` divides by the
length of the sequence that was sampled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kl_companion.auditing.worlds.objective import (
    AWAY,
    OBJECTIVES,
    Objective,
    Scalar,
    register_objective,
    total,
    visits,
)
from kl_companion.rollout import Rollout

MASSES = 2  # of heads of up to two tokens, the masses are tried for every loss that reads them
_SAID = {
    "whole": "",
    "bucketed": "with all other tokens in one bucket",
    "conditional": "renormalized",
    "cropped": "of which the reference alone is renormalized (no divergence)",
    "truncated": "as a plain sum over them (no divergence)",
    "clamped": "as a plain sum over them that counts only where it is positive (no divergence)",
}
_SHORT = {
    "bucketed": "rest in a bucket",
    "conditional": "renormalized",
    "cropped": "the reference renormalized",
    "truncated": "plain sum",
    "clamped": "plain sum where positive",
}
_PULLS = "Even at the reference it moves probability to those tokens."
_PUSHES = "Even at the reference it moves probability away from those tokens."
_EFFECTS = {
    "bucketed": "How probability is spread among the other tokens is left alone; how much they have is not.",
    "conditional": "How much probability those tokens have together is left alone: it may drift.",
    "truncated_forward_kl": _PULLS,
    "cropped_forward_kl": _PULLS,
    "truncated_reverse_kl": _PUSHES,
}
_KLS = {"reverse_kl": "reverse KL", "forward_kl": "forward KL"}
_DIRECTIONS = {**_KLS, "jensen_shannon": "Jensen-Shannon"}


class _Cut(NamedTuple):
    """A divergence of next-token distributions, cut to the k likeliest tokens of one of them."""

    direction: str
    how: str = "whole"
    whose: str = "policy"
    k: int = 0
    mean: bool = False

    @property
    def name(self) -> str:
        cut = "" if self.how == "whole" else f"{self.how}_"
        head = "" if self.how == "whole" else f"_{self.whose}_top_{self.k}"
        return f"{'sampled_mean' if self.mean else 'token'}_{cut}{self.direction}{head}"

    @property
    def words(self) -> str:
        these = "likeliest token" if self.k == 1 else f"{self.k} likeliest tokens"
        cut = "" if self.how == "whole" else f" cut to the {self.whose}'s {these}, {_SAID[self.how]},"
        mean = " divided by the length of the sequence" if self.mean else ""
        held = "the sequence that is sampled" if self.mean else "the states that are visited"
        return f"the {_DIRECTIONS[self.direction]} of every next token,{cut}{mean} with {held} held fixed"

    @property
    def short(self) -> str:
        """The same in a few words."""
        head = f" of the {self.whose}'s top {self.k}, {_SHORT[self.how]}" if self.how != "whole" else ""
        level = ", mean over each answer" if self.mean else "" if head else ", next token"
        return f"{_DIRECTIONS[self.direction]}{head}{level}"

    @property
    def effect(self) -> str:
        """What minimizing it does to the policy."""
        return _EFFECTS.get(self.how, _EFFECTS.get(f"{self.how}_{self.direction}", ""))

    @property
    def opposite(self) -> str:
        """Sentence on the policy's change where the objective is maximized."""
        if self.how in ("whole", "bucketed", "conditional"):
            return AWAY.format(self.short)
        return {_PULLS: _PUSHES, _PUSHES: _PULLS}.get(self.effect, "")

    def scalar(self, rollout: Rollout) -> torch.Tensor:
        """Its exact value from the rollout that lists every sequence once."""
        both = rollout.logp_all, rollout.ref_logp_all
        index = both[self.whose != "policy"].detach().topk(self.k, dim=-1).indices
        hows = ("truncated", "conditional") if self.how == "cropped" else (self.how, self.how)
        p, q = (_cut(x, index, how) for x, how in zip(both, hows, strict=True))
        each = _divergence(self.direction, p, q)
        each = (each.clamp_min(0) if self.how == "clamped" else each) * rollout.completion_mask
        summed = each.sum(-1) / (rollout.completion_mask.sum(-1) if self.mean else 1)
        return (visits(rollout) * summed).sum()


def _cut(logp_all: torch.Tensor, index: torch.Tensor, how: str) -> torch.Tensor:
    if how == "whole":
        return logp_all
    head = logp_all.gather(-1, index)
    if how in ("truncated", "clamped"):
        return head
    inside = head.logsumexp(-1, keepdim=True)
    if how == "conditional":
        return head - inside
    return torch.cat([head, (-inside.expm1()).log()], -1)


def _divergence(direction: str, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    if direction == "forward_kl":
        return (q.exp() * (q - p)).sum(-1)
    if direction == "reverse_kl":
        return (p.exp() * (p - q)).sum(-1)
    middle = torch.logaddexp(p, q) - torch.tensor(2.0, dtype=p.dtype).log()
    return (_divergence("reverse_kl", p, middle) + _divergence("reverse_kl", q, middle)) / 2


def _cuts(head: int) -> Iterator[_Cut]:
    """All of a head; without one, those that some framework has, in a vocabulary of three tokens."""
    if head == 0:
        yield from _of_frameworks()
    else:
        for whose in ("policy", "reference"):
            for mean in (False, True):
                for direction in _DIRECTIONS:
                    yield _Cut(direction, "bucketed", whose, head, mean)
                    if head > 1:  # one token, renormalized, is certain
                        yield _Cut(direction, "conditional", whose, head, mean)
                for direction in _KLS:
                    yield _Cut(direction, "truncated", whose, head, mean)
                    if not mean:
                        yield _Cut(direction, "clamped", whose, head)
                        yield _Cut(direction, "cropped", whose, head)
    for direction in _DIRECTIONS:
        yield _Cut(direction, mean=True)


def _of_frameworks() -> Iterator[_Cut]:
    """Truncated and clamped sums are the teacher's heads, too."""
    for direction, whose in (("reverse_kl", "policy"), ("forward_kl", "reference")):
        for mean in (False, True):
            yield _Cut(direction, "bucketed", whose, 1, mean)
            yield _Cut(direction, "conditional", whose, 2, mean)
    for direction, whose in (
        ("reverse_kl", "policy"),
        ("forward_kl", "reference"),
        ("reverse_kl", "reference"),
    ):
        for k in (1, 2):
            yield _Cut(direction, "truncated", whose, k)
            yield _Cut(direction, "clamped", whose, k)
    yield _Cut("reverse_kl", "conditional", "reference", 2)
    for direction in ("reverse_kl", "forward_kl"):
        yield _Cut(direction, "cropped", "reference", 2)
    for mean in (False, True):
        yield _Cut("jensen_shannon", "conditional", "policy", 2, mean)


def cut_objectives(head: int = 0, *, lengths: bool = True) -> dict[str, Objective]:
    """The objectives of a head, registered when they are asked for first.

    Args:
        head: Its number of tokens; 0 for those that frameworks have, in a vocabulary of three tokens.
        lengths: Whether the lengths of sequences vary.
    """
    masses = add_masses(head) if head > MASSES else []
    for cut in _cuts(head):
        if cut.name not in OBJECTIVES:
            register_objective(
                cut.name,
                words=cut.words,
                short=cut.short,
                effect=cut.effect,
                opposite=cut.opposite,
                source="this book",
                heads_only=True,
                lengths_only=cut.mean,
                cut=True,
            )(cut.scalar)
    names = [c.name for c in _cuts(head) if lengths or not c.mean]
    return {n: OBJECTIVES[n] for n in (*names, *masses)}


def add_masses(k: int) -> list[str]:
    """Register the policy's probability of the policy's, and of the reference's, k likeliest tokens.

    Returns:
        The names of the two.
    """
    names = []
    for whose in ("policy", "reference"):
        these = "likeliest token" if k == 1 else f"{k} likeliest tokens"
        names.append(f"token_{'' if whose == 'policy' else 'reference_'}top_{k}_mass")
        if names[-1] in OBJECTIVES:
            continue
        register_objective(
            names[-1],
            words=f"the policy's probability of the {whose}'s {these}, with the states that are visited held "
            "fixed (no KL)",
            short=f"probability of the {whose}'s {these}",
            effect=_PUSHES,
            opposite=_PULLS,
            source="this book",
            heads_only=True,
            cut=k > MASSES,
        )(_mass(k, whose))
    return names


def _mass(k: int, whose: str) -> Scalar:
    def mass(rollout: Rollout) -> torch.Tensor:
        scores = rollout.logp_all if whose == "policy" else rollout.ref_logp_all
        head = scores.detach().topk(k, dim=-1).indices
        each = rollout.logp_all.gather(-1, head).exp().sum(-1)
        return (visits(rollout) * total(each, rollout)).sum()

    return mass
