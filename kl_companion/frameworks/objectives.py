"""Objectives that only frameworks have: heads of a vocabulary, and divergences averaged over each answer.

They are registered so that an audit of a loss of whole distributions can name its objective. ``bucketed``
puts all tokens outside the head into one bucket, ``conditional`` renormalizes the head, ``truncated`` does
neither, and is no divergence: it can be negative, and has a gradient where both policies agree. ``clamped``
leaves its negative values out; ``cropped`` renormalizes the head of the reference alone. ``sampled_mean``
divides by the length of the sequence that was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from kl_companion.auditing import OBJECTIVES, register_objective
from kl_companion.rollout import Rollout

_SAID = {
    "whole": "",
    "bucketed": "with all other tokens in one bucket",
    "conditional": "renormalized",
    "cropped": "of which the reference alone is renormalized (no divergence)",
    "truncated": "as a plain sum over them (no divergence)",
    "clamped": "as a plain sum over them that counts only where it is positive (no divergence)",
}
_SHORT = {
    "bucketed": "the rest in one bucket",
    "conditional": "renormalized",
    "cropped": "the reference renormalized",
    "truncated": "plain sum",
    "clamped": "plain sum where positive",
}
_DIRECTIONS = {"reverse_kl": "reverse KL", "forward_kl": "forward KL", "jensen_shannon": "Jensen-Shannon"}


class _Cut(NamedTuple):
    """A divergence of next-token distributions, cut to the k likeliest tokens of one of them."""

    direction: str
    how: str = "whole"
    whose: str = "policy"
    k: int = 0  # of a vocabulary of three tokens
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

    def scalar(self, rollout: Rollout) -> torch.Tensor:
        """Its exact value from the rollout that lists every sequence once."""
        both = rollout.logp_all, rollout.ref_logp_all
        index = both[self.whose != "policy"].detach().topk(self.k, dim=-1).indices
        hows = ("truncated", "conditional") if self.how == "cropped" else (self.how, self.how)
        p, q = (_cut(x, index, how) for x, how in zip(both, hows, strict=True))
        each = _divergence(self.direction, p, q)
        each = (each.clamp_min(0) if self.how == "clamped" else each) * rollout.completion_mask
        total = each.sum(-1) / (rollout.completion_mask.sum(-1) if self.mean else 1)
        visits = (rollout.sampled_from * rollout.completion_mask).sum(-1).exp().detach()
        return (visits * total).sum()


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


def _cuts() -> Iterator[_Cut]:
    """Those that some framework has; truncated and clamped sums are the teacher's heads, too."""
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
    for direction in _DIRECTIONS:
        yield _Cut(direction, mean=True)


def register_cut_objectives() -> None:
    """Register them, once; they are tried only for losses that read more than the sampled token."""
    for cut in _cuts():
        if cut.name not in OBJECTIVES:
            scalar: Callable[[Rollout], torch.Tensor] = cut.scalar
            register_objective(
                cut.name,
                words=cut.words,
                short=cut.short,
                source="this book",
                heads_only=True,
                lengths_only=cut.mean,
            )(scalar)
