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

import torch

from kl_companion.auditing.fit.least_squares import sums
from kl_companion.auditing.worlds.objective import Objective, fields_and_values
from kl_companion.auditing.worlds.truncations import MIXED, PLAIN, NextToken
from kl_companion.tabular import Problem

TEMPERATURES = (0.5, 0.7, 0.8, 0.9, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 8.0, 10.0, 20.0)
SHARES = (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99)
_HOTTEST, _LARGEST_LOG_ODDS = 50.0, 7.0
_POINTS, _CLOSE = 25, 1e-7  # points of each look at an interval, and the step at which the search ends
_FRACTION = 1e-6  # how close the best number is, relatively, to one that is read as a fraction
_EXACT = 1e-8  # of a residual with a number that is read as a fraction


class Search:
    """The search for objectives of distillation that explain one loss, on one condition after the other.

    Args:
        numbers: Numbers that stand in the loss.
    """

    def __init__(self, numbers: Iterable[float]) -> None:
        self.numbers = [float(x) for x in numbers if math.isfinite(x) and x > 0]
        self.hits: list[NextToken] = []  # of conditions before
        self.solves = True

    def candidates(self, lengths: bool) -> Iterator[NextToken]:
        """Yield all members with the numbers of the loss and with common ones."""
        named = dict.fromkeys(
            x for n in self.numbers for x in (n, 1 / n) if 1 / _HOTTEST <= x <= _HOTTEST and x != 1
        )
        hot = list(dict.fromkeys((*named, *TEMPERATURES)))
        in_loss = dict.fromkeys(x for n in self.numbers for x in (n, 1 - n) if 0 < x < 1)
        shares = list(dict.fromkeys((*in_loss, *SHARES)))
        for mean in (False, True) if lengths else (False,):
            for kind in PLAIN:
                yield from (NextToken(kind, 0.0, t, mean) for t in hot)
            for kind in MIXED:
                pairs = [(s, 1.0) for s in shares]
                pairs += [(s, t) for s in in_loss for t in hot] + [(s, t) for s in shares for t in named]
                if kind == "generalized_jensen_shannon":  # with equal shares it has a name of its own
                    pairs = [(s, t) for s, t in pairs if s != 0.5]
                yield from (NextToken(kind, s, t, mean) for s, t in dict.fromkeys(pairs))

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
        fit = partial(_fitting, gradient=gradient, problem=problem, known=known, beside=beside)
        members = fit(self.hits) or fit([*self.candidates(lengths)])
        if not members and self.solves:
            self.solves = False
            members = [m for m in _solved(gradient, problem, lengths) if m is not None]
        self.hits = [*dict.fromkeys((*self.hits, *members))]
        return {m.name: m.objective() for m in members}


def _fitting(
    members: Sequence[NextToken],
    gradient: torch.Tensor,
    problem: Problem,
    known: dict[str, torch.Tensor],
    beside: Sequence[str],
) -> list[NextToken]:
    """The members of the shortest sums that are the gradient on one world."""
    if not members:
        return []
    named = {m.name: m for m in members}
    fields = {n: f.flatten() for n, (_, f) in fields_and_values(_objectives(members), problem).items()}
    for fits, _ in sums(gradient, known | fields, max_terms=2, beside=beside, tolerance=_EXACT):
        if names := dict.fromkeys(n for fit in fits for n in fit if n in named):
            return [named[n] for n in names]
    return []


def _objectives(members: Iterable[NextToken]) -> dict[str, Objective]:
    """Objectives without words: those of thousands of members would take seconds."""
    return {m.name: Objective(m.name, m.term.scalar, "", "") for m in members}


def _solved(gradient: torch.Tensor, problem: Problem, lengths: bool) -> Iterator[NextToken | None]:
    """Yield what a gradient is a multiple of, with the temperature or the share that fits best."""

    def off(member: NextToken) -> float:
        ((_, own),) = fields_and_values(_objectives([member]), problem).values()
        own = own.flatten()
        return float((gradient - own * (gradient @ own) / (own @ own)).norm() / gradient.norm())

    for mean in (False, True) if lengths else (False,):
        for kind in PLAIN:
            at_temperature = partial(NextToken, kind, 0.0, mean=mean)
            yield _fit(at_temperature, math.exp, math.log(_HOTTEST), off)
        for kind in MIXED:
            of_share = partial(NextToken, kind, mean=mean)
            yield _fit(of_share, lambda u: 1 / (1 + math.exp(-u)), _LARGEST_LOG_ODDS, off)


def _fit(
    member: Callable[[float], NextToken],
    number: Callable[[float], float],
    end: float,
    off: Callable[[NextToken], float],
) -> NextToken | None:
    """The member whose number is a simple fraction and that fits; None where there is none."""

    def at(u: float) -> float:
        return off(member(number(u)))

    best, width = 0.0, end
    while width > _CLOSE:
        start, width = best - width, 2 * width / (_POINTS - 1)
        best = min((start + width * i for i in range(_POINTS)), key=at)
        if at(best) > width:  # the residual is about as large as the step to the right number
            return None
    simple = (Fraction(number(best)).limit_denominator(10**digits) for digits in range(1, 5))
    fits = (member(float(x)) for x in simple if x > 0 and abs(float(x) / number(best) - 1) < _FRACTION)
    return next((m for m in fits if off(m) < _EXACT), None)


def is_kind_of(objective: str, divergence: str) -> bool:
    """Whether an objective is a divergence at a temperature, or a mixture that is a kind of it."""
    kinds = (divergence, *(kind for kind, parent in MIXED.items() if parent == divergence))
    return any(
        objective.startswith((f"{level}_{kind}(", f"{level}_{kind}_at_temperature_"))
        for level in ("token", "sampled_mean")
        for kind in kinds
    )
