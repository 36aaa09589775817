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
COMMON = "batch"
# what a coefficient may be divided by, in the order in which it is tried
UNITS = {
    "": "",
    "tokens": "mean answer length",
    "positions": "padded length",
    "deviation": "reward std",
    "tokens_deviation": "(mean answer length x reward std)",
}
# units with a small number added to the standard deviation, and what is left of each without that
_OVER_DEVIATION = (("tokens_deviation", "tokens"), ("deviation", ""))


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
    """A sum of objectives that has one set of constants on all worlds.

    Attributes:
        coefficients: Objective to coefficient, the unit taken out. Up to a common factor, that of the reward
            is 1 or -1, without a reward that of the first objective.
        units: Objective to a name of `UNITS`; or ``"batch"`` of all, where one positive factor depends on the
            world in another way.
    """

    coefficients: dict[str, float]
    units: dict[str, str]


def matched(
    worlds: Sequence[Seen], *, max_terms: int, beside: Collection[str] = (), may_vary: bool = True
) -> tuple[tuple[Explanation, ...], float]:
    """Return the shortest sums of objectives that are the loss's gradient on every world.

    They are looked for on the first world, which should be the largest, and have to hold on the others with
    the same constants: coefficients that are fitted to every world anew fit anything.

    Args:
        worlds: At least one, on none of which the gradient vanishes.
        max_terms: The longest sum.
        beside: See `sums`.
        may_vary: Whether one positive factor of all terms may depend on the world in an unknown way. It
            counts only where the worlds determine more numbers than are free in the sum.

    Returns:
        Explanations, those without such a factor only where there is one; and the largest relative residual
        of the first, or the smallest of all that were tried, with constants.
    """
    best = 1.0
    # what is not exact has to be simple: some sum of three comes near to anything
    for tolerance, longest, factor in (
        (TOLERANCE, max_terms, may_vary),
        (ROUNDED, min(max_terms, 2), False),
    ):
        shorter: set[frozenset[str]] = set()  # on the first world; a longer sum only adds zeros to them
        for found, residual in sums(
            worlds[0].gradient, worlds[0].fields, max_terms=longest, beside=beside, tolerance=tolerance
        ):
            new = [list(x) for x in found if shorter.isdisjoint(_parts(x))]
            shorter |= {frozenset(x) for x in new}
            fitted = _on_all(worlds, new, tolerance, beside if factor else None) if new else []
            best = min([best, *(max(residual, r) for _, r in fitted)] if found else [best, residual])
            valid = [(e, r) for e, r in fitted if e is not None]
            if valid:
                chosen = [(e, r) for e, r in valid if COMMON not in e.units.values()] or valid
                return tuple(e for e, _ in chosen), chosen[0][1]
    return (), best


def _parts(names: Collection[str]) -> list[frozenset[str]]:
    return [frozenset(c) for terms in range(1, len(names) + 1) for c in combinations(names, terms)]


def _on_all(
    worlds: Sequence[Seen], chosen: list[list[str]], tolerance: float, beside: Collection[str] | None
) -> list[tuple[Explanation | None, float]]:
    """Fit sums to every world: an explanation where one set of constants does, and the residual.

    Args:
        worlds: See `matched`.
        chosen: The sums, each of the same number of names.
        tolerance: The largest residual.
        beside: Names of which one has the coefficient 1 or -1 up to a common factor; None allows no factor.
    """
    each = [fits(world.gradient, world.fields, chosen) for world in worlds]
    found = torch.stack([c for c, _ in each], 1)  # [sums, worlds, names]
    residuals = torch.stack([r for _, r in each]).amax(0)
    norms = {n: f.norm().item() for n, f in worlds[0].fields.items()}
    sizes = found[:, 0].abs() * torch.tensor([[norms[n] for n in names] for names in chosen])
    holds = (residuals < tolerance) & (sizes >= ZERO * worlds[0].gradient.norm()).all(1)
    numbers, units = _in_units(found, worlds)
    constant, common = holds & (units >= 0).all(1), torch.zeros_like(holds)
    if beside is not None:
        first = [next((i for i, n in enumerate(names) if n in beside), 0) for names in chosen]
        relative = found / found.abs().gather(
            2, torch.tensor(first)[:, None, None].expand(-1, len(worlds), 1)
        )
        common = holds & (units < 0).all(1) & _same(relative).all(1)
        common &= bool(common.any()) and _determined(len(chosen[0]), worlds)
        numbers = torch.where(common.unsqueeze(1), relative[:, 0], numbers)
    loose = (holds & ~constant & ~common).nonzero().flatten().tolist()
    residuals[loose] = _together(worlds, [chosen[i] for i in loose])
    digits, of_all = 9 if tolerance == TOLERANCE else 5, list(UNITS)
    fitted: list[tuple[Explanation | None, float]] = [(None, r) for r in residuals.tolist()]
    for i in (constant | common).nonzero().flatten().tolist():
        named = zip(chosen[i], numbers[i].tolist(), units[i].tolist(), strict=True)
        terms = [(n, float(f"{c:.{digits}g}"), COMMON if u < 0 else of_all[u]) for n, c, u in named]
        fitted[i] = Explanation({n: c for n, c, _ in terms}, {n: u for n, _, u in terms}), fitted[i][1]
    return fitted


def _same(found: torch.Tensor) -> torch.Tensor:
    """Whether coefficients [sums, worlds, names] are the same on all worlds, [sums, names]."""
    return (found - found[:, :1]).abs().amax(1) <= _EQUAL * found.abs().amax(1)


def _in_units(found: torch.Tensor, worlds: Sequence[Seen]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the one number that a coefficient is on all worlds, and in which unit; -1 where in none.

    Args:
        found: Coefficients, [sums, worlds, names].
        worlds: What they were fitted to.
    """
    sizes = {u: torch.tensor([w.factors[u] for w in worlds], dtype=torch.float64)[:, None] for u in UNITS}
    numbers, units = torch.full_like(found[:, 0], math.nan), torch.full_like(found[:, 0], -1).long()
    tried = [(u, *_over_deviation(found * sizes[of], sizes["deviation"])) for u, of in _OVER_DEVIATION]
    tried += [(u, scaled[:, 0], _same(scaled)) for u in reversed(UNITS) for scaled in [found * sizes[u]]]
    for unit, number, same in tried:  # of several, the first of `UNITS` is taken
        numbers = torch.where(same, number, numbers)
        units = torch.where(same, list(UNITS).index(unit), units)
    return numbers, units


def _over_deviation(found: torch.Tensor, deviations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number a where coefficients are a / (reward std + eps) with the usual small eps, and where.

    Args:
        found: [sums, worlds, names].
        deviations: Of the rewards, [worlds, 1].
    """
    inverse, apart = 1 / found, deviations - deviations.mean()
    slope = (apart * inverse).sum(1) / (apart * apart).sum()
    offset = inverse.mean(1) - slope * deviations.mean()
    fitted = slope.unsqueeze(1) * deviations + offset.unsqueeze(1)
    small = (offset / slope > 0) & (offset / slope <= _SMALL * deviations.min())
    exact = (fitted - inverse).abs().amax(1) <= _EQUAL * inverse.abs().amax(1)
    digits = 10 ** (4 - (1 / slope).abs().log10().floor())  # five are certain
    return (digits / slope).round() / digits, small & exact & (len(deviations) > 2)


def _determined(terms: int, worlds: Sequence[Seen]) -> bool:
    """Whether a sum with one free factor says more than the gradients that it was fitted to."""
    ranks = [int(torch.linalg.matrix_rank(torch.stack(list(w.fields.values())))) for w in worlds]
    return terms - 1 + len(worlds) < sum(ranks)


def _together(worlds: Sequence[Seen], chosen: list[list[str]]) -> torch.Tensor:
    """Return the residuals of sums whose coefficients are the same on all worlds, [sums]."""
    if not chosen:
        return torch.zeros(0, dtype=torch.float64)
    names = {n for sum_ in chosen for n in sum_}
    fields = {n: torch.cat([w.fields[n] for w in worlds]) for n in names}
    return fits(torch.cat([w.gradient for w in worlds]), fields, chosen)[1]


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
