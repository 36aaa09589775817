"""Objectives of next-token distributions that are cut, mixed or heated, and means over each answer.

Distillation often sums over the k likeliest tokens of the teacher or of the student. What is done with the
others decides what such a sum is: with all of them in one bucket, or with the head renormalized, it is a
divergence of coarser distributions; a plain sum over the head is none, and ``clamped`` it counts only where
it is positive; ``cropped`` renormalizes the head of the reference alone. Logits may be divided by a
temperature, and policy or reference mixed with a share of the other. ``sampled_mean`` divides by the length
of the sequence that was sampled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.auditing.worlds.divergences import PULLED, divergence_phrase
from kl_companion.auditing.worlds.objective import AWAY, OBJECTIVES, Objective, Product, make_objective

MASSES = 2  # of heads of up to two tokens, the masses are tried for every loss that reads them
_SAID = {
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
    "whole": PULLED,
    "bucketed": "How probability is spread among the other tokens is left alone; how much they have is not.",
    "conditional": "How much probability those tokens have together is left alone: it may drift.",
    "truncated_forward_kl": _PULLS,
    "cropped_forward_kl": _PULLS,
    "truncated_reverse_kl": _PUSHES,
}
_KLS = {"reverse_kl": "reverse KL", "forward_kl": "forward KL"}
PLAIN = {**_KLS, "jensen_shannon": "Jensen-Shannon"}
# mixtures and the divergence that each is a kind of
MIXED = {
    "generalized_jensen_shannon": "jensen_shannon",
    "skewed_forward_kl": "forward_kl",
    "skewed_reverse_kl": "reverse_kl",
}
_NAME = re.compile(
    rf"(token|sampled_mean)_(?:({'|'.join(_SAID)})_)?({'|'.join((*PLAIN, *MIXED))})(?:\(([\d./e+-]+)\))?"
    r"(?:_(policy|reference)_top_([1-9]\d*))?(?:_at_temperature_([\d./e+-]+))?"
)


class NextToken(NamedTuple):
    """A divergence of next tokens.

    Attributes:
        kind: Name of a divergence, or of a family of mixtures.
        share: Parameter of the family; 0 for a divergence.
        temperature: What the logits of both distributions are divided by.
        mean: Whether it is divided by the length of the sequence that was sampled.
        how: What is done with the tokens outside a head, or ``"whole"``.
        whose: Whose k likeliest tokens are the head, ``"policy"`` or ``"reference"``.
        k: How many.
    """

    kind: str
    share: float = 0.0
    temperature: float = 1.0
    mean: bool = False
    how: str = "whole"
    whose: str = "policy"
    k: int = 0

    @property
    def name(self) -> str:
        """Name of the objective."""
        share = f"({_text(self.share)})" if self.share else ""
        cut, head = (f"{self.how}_", f"_{self.whose}_top_{self.k}") if self.k else ("", "")
        hot = "" if self.temperature == 1 else f"_at_temperature_{_text(self.temperature)}"
        return f"{'sampled_mean' if self.mean else 'token'}_{cut}{self.kind}{share}{head}{hot}"

    @property
    def _phrase(self) -> str:
        return divergence_phrase(f"{self.kind}({_text(self.share)})" if self.share else self.kind)

    @property
    def words(self) -> str:
        """A sentence about it."""
        length = " divided by the length of the sequence" if self.mean else ""
        if self.k:
            these = "likeliest token" if self.k == 1 else f"{self.k} likeliest tokens"
            held = "the sequence that is sampled" if self.mean else "the states that are visited"
            cut = f"cut to the {self.whose}'s {these}, {_SAID[self.how]}"
            return f"the {PLAIN[self.kind]} of every next token, {cut},{length} with {held} held fixed"
        hot = f"both distributions at temperature {_text(self.temperature)}, " * (self.temperature != 1)
        if self.mean:
            return f"the {self._phrase}, of every next token, {hot}{length.lstrip()}, held fixed"
        visits = f"in every state that is visited, {hot}the visits held fixed"
        return f"the {self._phrase}, of the next token {visits}"

    @property
    def short(self) -> str:
        """A few words for it."""
        if self.k:
            where = ", mean over each answer" * self.mean
            return f"{PLAIN[self.kind]} of the {self.whose}'s top {self.k}, {_SHORT[self.how]}{where}"
        hot = "" if self.temperature == 1 else f" at temperature {_text(self.temperature)}"
        where = "mean over each answer" if self.mean else "next token"
        return f"{self._phrase.partition(',')[0]}{hot}, {where}"

    def each(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Return the divergence of log-probs of policy and reference, [..., vocab] -> [...]."""
        if self.temperature != 1:
            p, q = ((x / self.temperature).log_softmax(-1) for x in (p, q))
        if self.k:
            index = (p if self.whose == "policy" else q).detach().topk(self.k, dim=-1).indices
            p = _head(p, index, "truncated" if self.how == "cropped" else self.how)
            q = _head(q, index, "conditional" if self.how == "cropped" else self.how)
        each = _divergence(self.kind, p, q, self.share)
        return each.clamp_min(0) if self.how == "clamped" else each

    @property
    def term(self) -> Product:
        """Its exact value from the rollout that lists every sequence once, as a function."""
        return Product("sampler", "next", self.each, per_length=self.mean)

    def objective(self) -> Objective:
        """Return it with its words."""
        return _objective(self)


@cache
def _objective(member: NextToken) -> Objective:
    effect = _EFFECTS.get(member.how, _EFFECTS.get(f"{member.how}_{member.kind}", ""))
    whole = member.how in ("whole", "bucketed", "conditional")
    return make_objective(
        member.name,
        member.term.scalar,
        words=member.words,
        short=member.short,
        effect=effect,
        opposite=AWAY.format(member.short) if whole else {_PULLS: _PUSHES, _PUSHES: _PULLS}.get(effect, ""),
        source="this book",
        heads_only=True,
        lengths_only=member.mean,
        cut=True,
    )


def _text(x: float) -> str:
    short = repr(x).removesuffix(".0")
    return short if len(short) <= 8 else str(Fraction(x).limit_denominator(10**6))


def _head(logp_all: torch.Tensor, index: torch.Tensor, how: str) -> torch.Tensor:
    head = logp_all.gather(-1, index)
    if how in ("truncated", "clamped"):
        return head
    inside = head.logsumexp(-1, keepdim=True)
    if how == "conditional":
        return head - inside
    return torch.cat([head, (-inside.expm1()).log()], -1)


def _divergence(kind: str, p: torch.Tensor, q: torch.Tensor, share: float) -> torch.Tensor:
    if kind == "forward_kl":
        return _kl(q, p)
    if kind == "reverse_kl":
        return _kl(p, q)
    if kind == "skewed_forward_kl":
        return _kl(q, _mixture(q, p, share))
    if kind == "skewed_reverse_kl":
        return _kl(p, _mixture(p, q, share))
    share = 0.5 if kind == "jensen_shannon" else share
    middle = _mixture(q, p, share)
    return share * _kl(q, middle) + (1 - share) * _kl(p, middle)


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p.exp() * (p - q)).sum(-1)


def _mixture(first: torch.Tensor, second: torch.Tensor, share: float) -> torch.Tensor:
    return torch.logaddexp(first + math.log(share), second + math.log(1 - share))


def _cuts(head: int) -> Iterator[NextToken]:
    """All of a head; without one, those that some framework has, in a vocabulary of three tokens."""
    if head == 0:
        yield from _of_frameworks()
    for whose in ("policy", "reference") if head else ():
        for mean in (False, True):
            for kind in PLAIN:
                yield NextToken(kind, mean=mean, how="bucketed", whose=whose, k=head)
                if head > 1:  # one token, renormalized, is certain
                    yield NextToken(kind, mean=mean, how="conditional", whose=whose, k=head)
            for kind in _KLS:
                for how in ("truncated",) if mean else ("truncated", "clamped", "cropped"):
                    yield NextToken(kind, mean=mean, how=how, whose=whose, k=head)
    for kind in PLAIN:
        yield NextToken(kind, mean=True)


def _of_frameworks() -> Iterator[NextToken]:
    """Truncated and clamped sums are the teacher's heads, too."""
    for kind, whose in (("reverse_kl", "policy"), ("forward_kl", "reference"), ("reverse_kl", "reference")):
        for mean in (False, True) if (kind, whose) != ("reverse_kl", "reference") else ():
            yield NextToken(kind, mean=mean, how="bucketed", whose=whose, k=1)
            yield NextToken(kind, mean=mean, how="conditional", whose=whose, k=2)
        for k in (1, 2):
            yield NextToken(kind, how="truncated", whose=whose, k=k)
            yield NextToken(kind, how="clamped", whose=whose, k=k)
    yield NextToken("reverse_kl", how="conditional", whose="reference", k=2)
    for kind in _KLS:
        yield NextToken(kind, how="cropped", whose="reference", k=2)
    for mean in (False, True):
        yield NextToken("jensen_shannon", mean=mean, how="conditional", whose="policy", k=2)


def cut_objectives(head: int = 0, *, lengths: bool = True) -> dict[str, Objective]:
    """The objectives of a head.

    Args:
        head: Its number of tokens; 0 for those that frameworks have, in a vocabulary of three tokens.
        lengths: Whether the lengths of sequences vary.
    """
    masses = mass_objectives(head) if head > MASSES else {}
    return {c.name: c.objective() for c in _cuts(head) if lengths or not c.mean} | masses


@cache
def mass_objectives(k: int) -> dict[str, Objective]:
    """The policy's probability of the policy's, and of the reference's, k likeliest tokens, by name."""

    def of_policy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return p.gather(-1, p.detach().topk(k, dim=-1).indices).exp().sum(-1)

    def of_reference(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return p.gather(-1, q.topk(k, dim=-1).indices).exp().sum(-1)

    these = "likeliest token" if k == 1 else f"{k} likeliest tokens"
    found = [
        make_objective(
            f"token_{prefix}top_{k}_mass",
            Product("sampler", "next", each).scalar,
            words=f"the policy's probability of the {whose}'s {these}, with the states that are visited held "
            "fixed (no KL)",
            short=f"probability of the {whose}'s {these}",
            effect=_PUSHES,
            opposite=_PULLS,
            source="this book",
            heads_only=True,
            cut=k > MASSES,
        )
        for whose, prefix, each in (("policy", "", of_policy), ("reference", "reference_", of_reference))
    ]
    return {o.name: o for o in found}


def _named(name: str) -> Objective | None:
    """Return the objective that a name says."""
    if mass := re.fullmatch(r"token_(?:reference_)?top_([1-9]\d*)_mass", name):
        return mass_objectives(int(mass[1]))[name]
    if (parts := _NAME.fullmatch(name)) is None:
        return None
    level, how, kind, share, whose, k, hot = parts.groups()
    if (how is None) != (k is None):
        return None
    found = NextToken(
        kind,
        float(Fraction(share or 0)),
        float(Fraction(hot or 1)),
        level == "sampled_mean",
        how or "whole",
        whose or "policy",
        int(k or 0),
    )
    return found.objective() if found.name == name else None


OBJECTIVES.makers.insert(0, _named)
