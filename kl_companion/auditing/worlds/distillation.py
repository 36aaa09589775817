"""Objectives that distillation code writes: mixtures with a share, and distributions at a temperature.

Their number is a parameter of the loss. So they are tried for losses that nothing else explains: first with
the numbers that stand in the loss and with common ones on one small world, then with the number that fits
best there. Only what fits there is looked at elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.least_squares import sums
from kl_companion.auditing.worlds.divergences import PULLED, divergence_phrase
from kl_companion.auditing.worlds.objective import (
    OBJECTIVES,
    Objective,
    field,
    fields_and_values,
    register_objective,
    total,
    visits,
)
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem

TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 8.0, 10.0, 20.0)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99)
_PLAIN = ("forward_kl", "reverse_kl", "jensen_shannon")
# mixtures and the divergence that each is a kind of
_MIXED = {
    "generalized_jensen_shannon": "jensen_shannon",
    "skewed_forward_kl": "forward_kl",
    "skewed_reverse_kl": "reverse_kl",
}
_HOTTEST, _LARGEST_LOG_ODDS = 50.0, 7.0
_STEPS, _SEARCH = 25, 50  # points of a first look, and halvings after it
_GOLDEN = (math.sqrt(5) - 1) / 2
_EXACT = 1e-8  # of a residual with a number that is read as a fraction


class Distilled(NamedTuple):
    """A divergence of next tokens.

    Attributes:
        kind: Name of a divergence, or of a family of mixtures.
        share: Parameter of the family; 0 for a divergence.
        temperature: What the logits of both distributions are divided by.
        mean: Whether it is divided by the length of the sequence that was sampled.
    """

    kind: str
    share: float = 0.0
    temperature: float = 1.0
    mean: bool = False

    @property
    def divergence(self) -> str:
        """Name of the divergence."""
        return f"{self.kind}({_text(self.share)})" if self.share else self.kind

    @property
    def name(self) -> str:
        """Name of the objective."""
        hot = "" if self.temperature == 1 else f"_at_temperature_{_text(self.temperature)}"
        return f"{'sampled_mean' if self.mean else 'token'}_{self.divergence}{hot}"

    @property
    def words(self) -> str:
        """A sentence about it."""
        phrase = divergence_phrase(self.divergence)
        hot = (
            "" if self.temperature == 1 else f"both distributions at temperature {_text(self.temperature)}, "
        )
        if self.mean:
            return (
                f"the {phrase}, of every next token, {hot}divided by the length of the sequence, held fixed"
            )
        return f"the {phrase}, of the next token in every state that is visited, {hot}the visits held fixed"

    @property
    def short(self) -> str:
        """A few words for it."""
        hot = "" if self.temperature == 1 else f" at temperature {_text(self.temperature)}"
        level = "mean over each answer" if self.mean else "next token"
        return f"{divergence_phrase(self.divergence).partition(',')[0]}{hot}, {level}"

    def scalar(self, rollout: Rollout) -> torch.Tensor:
        """Return its exact value from the rollout that lists every sequence once."""
        p, q = (x / self.temperature for x in (rollout.logp_all, rollout.ref_logp_all))
        p, q = (x - x.logsumexp(-1, keepdim=True) for x in (p, q))
        each = total(_divergence(self.kind, p, q, self.share), rollout)
        each = each / rollout.completion_mask.sum(-1) if self.mean else each
        return (visits(rollout) * each).sum()

    def objective(self) -> Objective:
        """Return the registered objective."""
        if self.name not in OBJECTIVES:
            register_objective(
                self.name,
                words=self.words,
                short=self.short,
                effect=PULLED,
                source="this book",
                lengths_only=self.mean,
                cut=True,
            )(self.scalar)
        return OBJECTIVES[self.name]


def _text(x: float) -> str:
    short = repr(x).removesuffix(".0")
    return short if len(short) <= 8 else str(Fraction(x).limit_denominator(10**6))


def _divergence(kind: str, p: torch.Tensor, q: torch.Tensor, share: float) -> torch.Tensor:
    """A divergence of log-probs of policy and reference, [..., vocab] -> [...]."""
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


class Search:
    """The search for objectives of distillation that explain one loss, on one condition after the other.

    Args:
        numbers: Numbers that stand in the loss.
    """

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = [float(x) for x in numbers if math.isfinite(x) and x > 0]
        self.hits: list[Distilled] = []  # of conditions before
        self.solves = True

    def candidates(self, lengths: bool) -> Iterator[Distilled]:
        """Yield all members with the numbers of the loss and with common ones."""
        named = dict.fromkeys(
            x for n in self.numbers for x in (n, 1 / n) if 1 / _HOTTEST <= x <= _HOTTEST and x != 1
        )
        hot = list(dict.fromkeys((*named, *TEMPERATURES)))
        in_loss = dict.fromkeys(x for n in self.numbers for x in (n, 1 - n) if 0 < x < 1)
        shares = list(dict.fromkeys((*in_loss, *SHARES)))
        for mean in (False, True) if lengths else (False,):
            for kind in _PLAIN:
                yield from (Distilled(kind, 0.0, t, mean) for t in hot)
            for kind in _MIXED:
                pairs = [(s, 1.0) for s in shares]
                pairs += [(s, t) for s in in_loss for t in hot] + [(s, t) for s in shares for t in named]
                if kind == "generalized_jensen_shannon":  # with equal shares it has a name of its own
                    pairs = [(s, t) for s, t in pairs if s != 0.5]
                yield from (Distilled(kind, s, t, mean) for s, t in dict.fromkeys(pairs))

    def objectives(
        self,
        gradient: torch.Tensor,
        problem: Problem,
        known: dict[str, torch.Tensor],
        beside: Sequence[str],
        *,
        lengths: bool,
    ) -> dict[str, Objective]:
        """Return the objectives that explain a gradient on one world, alone or beside another one.

        Args:
            gradient: Expected gradient of the loss, [entries].
            problem: The world.
            known: Fields of other objectives there, [entries] each.
            beside: Names of those that may stand beside any sum.
            lengths: Whether the lengths of sequences vary.
        """
        if float(gradient.norm()) == 0:
            return {}
        for members in (self.hits, [*self.candidates(lengths)]):
            fits = _fitting(dict.fromkeys(members), gradient, problem, known, beside)
            if fits:
                self.hits += [m for m in fits if m not in self.hits]
                return {m.name: m.objective() for m in fits}
        if not self.solves:
            return {}
        self.solves = False
        solved = [m for m in _solved(gradient, problem, lengths) if m is not None]
        self.hits += solved
        return {m.name: m.objective() for m in solved}


def _fitting(
    members: Iterable[Distilled],
    gradient: torch.Tensor,
    problem: Problem,
    known: dict[str, torch.Tensor],
    beside: Sequence[str],
) -> list[Distilled]:
    """The members of the shortest sums that are the gradient on one world."""
    named = {m.name: m for m in members}
    if not named:
        return []
    scalars = {n: Objective(n, m.scalar, "", "") for n, m in named.items()}
    fields = {n: f.flatten() for n, (_, f) in fields_and_values(scalars, problem).items()}
    for fits, _ in sums(gradient, known | fields, max_terms=2, beside=beside, tolerance=_EXACT):
        names = dict.fromkeys(named[n] for fit in fits for n in fit if n in named)
        if names:
            return list(names)
    return []


def _field(member: Distilled, problem: Problem) -> torch.Tensor:
    return field(Objective(member.name, member.scalar, "", ""), problem).flatten()


def _solved(gradient: torch.Tensor, problem: Problem, lengths: bool) -> Iterator[Distilled | None]:
    """Yield what a gradient is a multiple of, with the temperature or the share that fits best."""

    def off(member: Distilled) -> float:
        own = _field(member, problem)
        return float((gradient - own * (gradient @ own) / (own @ own)).norm() / gradient.norm())

    for mean in (False, True) if lengths else (False,):
        for kind in _PLAIN:
            at_temperature = partial(Distilled, kind, 0.0, mean=mean)
            yield _fit(at_temperature, math.exp, math.log(_HOTTEST), off)
        for kind in _MIXED:
            of_share = partial(Distilled, kind, mean=mean)
            yield _fit(of_share, lambda u: 1 / (1 + math.exp(-u)), _LARGEST_LOG_ODDS, off)


def _fit(
    member: Callable[[float], Distilled],
    number: Callable[[float], float],
    end: float,
    off: Callable[[Distilled], float],
) -> Distilled | None:
    """The member whose number is a simple fraction and that fits; None where there is none."""

    def at(u: float) -> float:
        return off(member(number(u)))

    width = 2 * end / (_STEPS - 1)
    start = min((-end + width * i for i in range(_STEPS)), key=at)
    low, high = start - width, start + width
    if at(start) > width:  # the residual is about as large as the step to the right number
        return None
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    of_left, of_right = at(left), at(right)
    for _ in range(_SEARCH):
        if of_left < of_right:
            high, right, of_right = right, left, of_left
            left = high - _GOLDEN * (high - low)
            of_left = at(left)
        else:
            low, left, of_left = left, right, of_right
            right = low + _GOLDEN * (high - low)
            of_right = at(right)
    best = number((low + high) / 2)
    simple = (Fraction(best).limit_denominator(10**digits) for digits in range(1, 5))
    fits = (member(float(x)) for x in simple if x > 0 and abs(float(x) - best) < 1e-6 * best)
    return next((m for m in fits if off(m) < _EXACT), None)


def kinds_of(divergence: str) -> set[str]:
    """Names of the objectives above that a loss may minimize whose name says that divergence."""
    kinds = (divergence, *(kind for kind, parent in _MIXED.items() if parent == divergence))
    prefixes = [f"{level}_{kind}" for level in ("token", "sampled_mean") for kind in kinds]
    return {n for n in OBJECTIVES if any(n.startswith((f"{p}(", f"{p}_at_temperature_")) for p in prefixes)}
