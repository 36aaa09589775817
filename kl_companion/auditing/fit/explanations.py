"""One explanation of a loss on several worlds: which objectives, and what each coefficient is in units of."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import torch

from kl_companion.auditing.fit.least_squares import TOLERANCE, ZERO, fits, short, sums
from kl_companion.tabular import Problem

ROUNDED = 3e-6  # residual left by a small constant of the reader's, such as log(p + 1e-8)
_EQUAL = 2e-6  # between the coefficients of worlds, relatively
_SMALL = 0.01  # what may be added to a standard deviation without being mentioned, relatively
VARIES = "varies"
COMMON = "batch"
# what a coefficient may be divided by, in the order in which it is tried
UNITS = {
    "": "",
    "tokens": "mean answer length",
    "positions": "padded length",
    "deviation": "reward std",
    "tokens_deviation": "(mean answer length x reward std)",
}


def factors(problem: Problem) -> dict[str, float]:
    """Return the size of every unit of `UNITS` on a world."""
    p = problem.probabilities()
    lengths, rewards = problem.completion_mask.sum(-1), problem.rewards
    mean = (p * rewards).sum()
    tokens = (p * lengths).sum().item()
    deviation = (p * (rewards - mean) ** 2).sum().sqrt().item()
    return {
        "": 1.0,
        "tokens": tokens,
        "positions": float(problem.sequences.shape[-1]),
        "deviation": deviation,
        "tokens_deviation": tokens * deviation,
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
        coefficients: Objective to coefficient, the unit taken out; NaN where it varies. Up to a common
            factor, that of the reward is 1 or -1, without a reward that of the first objective.
        units: Objective to a name of `UNITS`; ``"batch"`` of all, where one positive factor depends on the
            world in another way; or ``"varies"``, where the coefficient alone does.
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
        may_vary: Whether a coefficient, or a factor of all, may depend on the world in an unknown way. On
            worlds that are all small, with fewer logits than there are objectives, any gradient is some such
            sum: it counts only where the worlds determine more numbers than are free in it.

    Returns:
        Explanations, those whose coefficients are constants or in a known unit only where there is one; and
        the largest relative residual of the first, or the smallest of all that were tried, with constants.
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
            fitted = _on_all(worlds, new, tolerance, beside) if new else []
            loose = [
                i
                for i, (e, _) in enumerate(fitted)
                if e is not None and _free(e) and not (free and _determined(e, worlds))
            ]
            for i, r in zip(loose, _together(worlds, [new[i] for i in loose]), strict=True):
                fitted[i] = (None, r)
            valid = [(e, r) for e, r in fitted if e is not None]
            best = min([best, *(max(residual, r) for _, r in fitted)] if found else [best, residual])
            if valid:
                fewest = min(_free(e) for e, _ in valid)
                chosen = [(e, r) for e, r in valid if _free(e) == fewest]
                return tuple(e for e, _ in chosen), chosen[0][1]
    return (), best


def _parts(names: Collection[str]) -> list[frozenset[str]]:
    return [frozenset(c) for terms in range(1, len(names) + 1) for c in combinations(names, terms)]


def _on_all(
    worlds: Sequence[Seen], chosen: list[list[str]], tolerance: float, beside: Collection[str]
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
        (None if lost[i] else _explanation(worlds, names, found[i].T, digits, beside), worst[i].item())
        for i, names in enumerate(chosen)
    ]


def _explanation(
    worlds: Sequence[Seen], names: list[str], found: torch.Tensor, digits: int, beside: Collection[str]
) -> Explanation:
    """A sum by the coefficients of its names on every world, [names, worlds]."""
    of = {n: _unit(c, worlds) for n, c in zip(names, found.tolist(), strict=True)}
    if all(unit == VARIES for _, unit in of.values()):
        first = next((i for i, n in enumerate(names) if n in beside), 0)
        relative = found / found[first].abs()
        if ((relative - relative[:, :1]).abs() <= _EQUAL * relative.abs()).all():
            common = {n: _digits(c, digits) for n, c in zip(names, relative[:, 0].tolist(), strict=True)}
            return Explanation(common, dict.fromkeys(names, COMMON))
    return Explanation(
        {n: _digits(c, digits) for n, (c, _) in of.items()}, {n: unit for n, (_, unit) in of.items()}
    )


def _free(e: Explanation) -> int:
    """Numbers that are fitted to every world anew."""
    units = list(e.units.values())
    return 1 if COMMON in units else units.count(VARIES)


def _determined(e: Explanation, worlds: Sequence[Seen]) -> bool:
    """Whether a sum with free numbers is more than a description of the gradients that it was fitted to.

    Where all coefficients are free, and not by one factor, it says nothing of another world.
    """
    ranks = [int(torch.linalg.matrix_rank(torch.stack(list(w.fields.values())))) for w in worlds]
    terms, free = len(e.units), _free(e)
    common = COMMON in e.units.values()
    constants = terms - 1 if common else terms - free
    if constants + free * len(worlds) >= sum(ranks):
        return False
    return common or (free < terms and 2 * terms <= ranks[0])


def _together(worlds: Sequence[Seen], chosen: list[list[str]]) -> list[float]:
    """The residuals of sums whose coefficients are the same on all worlds."""
    if not chosen:
        return []
    names = {n for sum_ in chosen for n in sum_}
    fields = {n: torch.cat([w.fields[n] for w in worlds]) for n in names}
    residuals: list[float] = fits(torch.cat([w.gradient for w in worlds]), fields, chosen)[1].tolist()
    return residuals


def _unit(found: Sequence[float], worlds: Sequence[Seen]) -> tuple[float, str]:
    """The one number that the coefficients of all worlds are in some unit, and the unit."""
    for unit in UNITS:
        scaled = [c * w.factors[unit] for c, w in zip(found, worlds, strict=True)]
        if max(abs(x - scaled[0]) for x in scaled) <= _EQUAL * max(map(abs, scaled)):
            return scaled[0], unit
    for unit, size in (("deviation", ""), ("tokens_deviation", "tokens")):
        scaled = [c * w.factors[size] for c, w in zip(found, worlds, strict=True)]
        over_deviation = _over_deviation(scaled, [w.factors["deviation"] for w in worlds])
        if over_deviation is not None:
            return over_deviation, unit
    return math.nan, VARIES


def _over_deviation(coefficients: Sequence[float], deviations: Sequence[float]) -> float | None:
    """The number a where coefficients are a / (reward std + eps), with the usual small eps; else None."""
    if len(deviations) < 3 or 0.0 in coefficients:
        return None
    spreads = torch.tensor(deviations, dtype=torch.float64)
    inverse = 1 / torch.tensor(coefficients, dtype=torch.float64)
    columns = torch.stack([spreads, torch.ones_like(spreads)], 1)
    line = torch.linalg.lstsq(columns, inverse.unsqueeze(-1)).solution
    slope, offset = line[:, 0].tolist()
    off = (columns @ line - inverse.unsqueeze(-1)).abs().max()
    small = slope != 0 and 0 < offset / slope <= _SMALL * spreads.min().item()
    return _digits(1 / slope, 5) if small and off <= _EQUAL * inverse.abs().max() else None


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
