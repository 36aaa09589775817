"""One explanation of a loss on several worlds: which objectives, and what each coefficient is in units of."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import torch

from kl_companion.auditing.solve import TOLERANCE, ZERO, fits, short, sums

ROUNDED = 3e-6  # residual left by a small constant of the reader's, such as log(p + 1e-8)
_EQUAL = 2e-6  # between the coefficients of worlds, relatively
VARIES = "varies"
# what a coefficient may be divided by, in the order in which it is tried
UNITS = {
    "": "",
    "tokens": "mean answer length",
    "positions": "padded length",
    "deviation": "reward std",
}


class Seen(NamedTuple):
    """A loss on one world.

    Attributes:
        value: Expected loss.
        gradient: Expected gradient, [entries].
        zero: Whether it vanishes against what is added up in it.
        fields: Of the objectives on this world, [entries] each.
        values: Of the objectives on this world.
        factors: What the units of `UNITS` are there.
    """

    value: float
    gradient: torch.Tensor
    zero: bool
    fields: Mapping[str, torch.Tensor]
    values: Mapping[str, float]
    factors: Mapping[str, float]


class Explanation(NamedTuple):
    """A sum of objectives.

    Attributes:
        coefficients: Objective to coefficient, the unit taken out; of the first world where it varies, NaN
            where its sign does.
        units: Objective to a name of `UNITS`, or ``"varies"``: it depends on the world in another way.
    """

    coefficients: dict[str, float]
    units: dict[str, str]


def matched(
    worlds: Sequence[Seen], *, max_terms: int, beside: Collection[str] = (), may_vary: bool = True
) -> tuple[tuple[Explanation, ...], float]:
    """The shortest sums of objectives that are the loss's gradient on every world.

    They are looked for on the first world, which should be the largest, and have to hold on the others.

    Args:
        worlds: At least one, on none of which the gradient vanishes.
        max_terms: The longest sum.
        beside: See `sums`.
        may_vary: Whether a coefficient may depend on the world in a way that is not known. On worlds that are
            all small, with fewer logits than there are objectives, any gradient is some such sum.

    Returns:
        Explanations, those whose coefficients are constants or in a known unit only where there is one; and
        the largest relative residual of the first, or the smallest of all that were tried.
    """
    best = 1.0
    # what is not exact has to be simple: with free coefficients some sum of three comes near to anything
    for tolerance, longest, free in ((TOLERANCE, max_terms, may_vary), (ROUNDED, min(max_terms, 2), False)):
        shorter: set[frozenset[str]] = set()  # on the first world; a longer sum only adds zeros to them
        for found, residual in sums(
            worlds[0].gradient, worlds[0].fields, max_terms=longest, beside=beside, tolerance=tolerance
        ):
            new = [list(x) for x in found if shorter.isdisjoint(_parts(x))]
            shorter |= {frozenset(x) for x in new}
            held = _on_all(worlds, new, tolerance) if new else []
            if not free:
                varying = [i for i, (e, _) in enumerate(held) if e is not None and _varying(e)]
                for i, r in zip(varying, _together(worlds, [new[i] for i in varying]), strict=True):
                    held[i] = (None, r)
            kept = [(e, r) for e, r in held if e is not None]
            best = min([best, *(max(residual, r) for _, r in held)] if found else [best, residual])
            if kept:
                fewest = min(_varying(e) for e, _ in kept)
                chosen = [(e, r) for e, r in kept if _varying(e) == fewest]
                return tuple(e for e, _ in chosen), chosen[0][1]
    return (), best


def _parts(names: Collection[str]) -> list[frozenset[str]]:
    return [frozenset(c) for terms in range(1, len(names) + 1) for c in combinations(names, terms)]


def _on_all(
    worlds: Sequence[Seen], chosen: list[list[str]], tolerance: float
) -> list[tuple[Explanation | None, float]]:
    """Sums with their coefficients of every world, and the largest residual; None where one does not hold."""
    each = [fits(world.gradient, world.fields, chosen) for world in worlds]
    found = torch.stack([c for c, _ in each], 1)  # [sums, worlds, names]
    worst = torch.stack([r for _, r in each]).amax(0)
    size = torch.tensor([[worlds[0].fields[n].norm() for n in names] for names in chosen])
    small = (found[:, 0].abs() * size < ZERO * worlds[0].gradient.norm()).any(1)
    lost = (worst >= tolerance) | small
    digits = 9 if tolerance == TOLERANCE else 5
    return [
        (None if lost[i] else _explanation(worlds, names, found[i].T.tolist(), digits), worst[i].item())
        for i, names in enumerate(chosen)
    ]


def _explanation(
    worlds: Sequence[Seen], names: list[str], found: list[list[float]], digits: int
) -> Explanation:
    """A sum by the coefficients of its names on every world."""
    of = dict(zip(names, found, strict=True))
    units = {n: _unit(c, worlds) for n, c in of.items()}
    first = {n: _digits(c[0] * worlds[0].factors.get(units[n], 1.0), digits) for n, c in of.items()}
    turning = [n for n, c in of.items() if min(c) < 0 < max(c)]
    return Explanation(first | dict.fromkeys(turning, math.nan), units)


def _together(worlds: Sequence[Seen], chosen: list[list[str]]) -> list[float]:
    """The residuals of sums whose coefficients are the same on all worlds."""
    if not chosen:
        return []
    names = {n for sum_ in chosen for n in sum_}
    fields = {n: torch.cat([w.fields[n] for w in worlds]) for n in names}
    residuals: list[float] = fits(torch.cat([w.gradient for w in worlds]), fields, chosen)[1].tolist()
    return residuals


def _unit(found: Sequence[float], worlds: Sequence[Seen]) -> str:
    """In which unit the coefficients of all worlds are one number."""
    for unit in UNITS:
        scaled = [c * w.factors.get(unit, 1.0) for c, w in zip(found, worlds, strict=True)]
        if max(abs(x - scaled[0]) for x in scaled) <= _EQUAL * max(map(abs, scaled)):
            return unit
    return VARIES


def _varying(e: Explanation) -> int:
    return sum(unit == VARIES for unit in e.units.values())


def _digits(x: float, digits: int) -> float:
    return short(x) if digits == 9 else float(f"{x:.{digits}g}")


def value_matches(worlds: Sequence[Seen]) -> dict[str, float]:
    """Objectives that are proportional to the expected loss over several worlds."""
    got = torch.tensor([w.value for w in worlds], dtype=torch.float64)
    if len(got) < 2 or got.norm() < 1e-14:
        return {}
    found = {}
    for name in worlds[0].values:
        theirs = torch.tensor([w.values[name] for w in worlds], dtype=torch.float64)
        factor = (got @ theirs / (theirs @ theirs).clamp_min(ZERO)).item()
        if (got - factor * theirs).norm() < TOLERANCE * got.norm():
            found[name] = short(factor)
    return found
