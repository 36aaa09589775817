"""The linear algebra of an audit: explain a gradient field by known ones, and measure its curl."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from kl_companion.tabular import Loss, Problem, expected_gradient

TOLERANCE = 1e-9
ZERO = 1e-10
_STEP = 1e-4
_NOTHING_LEFT = 1e-12  # of the square of a column of length 1, once others are taken out: rounding
_SCREEN = 1e-6  # squared residual by the normal equations, above which a sum is not looked at again


def short(coefficient: float) -> float:
    """A coefficient without the rounding of the least squares: nine significant digits."""
    return float(f"{coefficient:.9g}")


def explain(
    gradient: torch.Tensor, fields: dict[str, torch.Tensor], *, max_terms: int = 3
) -> tuple[tuple[dict[str, float], ...], float]:
    """Write a gradient as the shortest sums of known fields, by least squares.

    Args:
        gradient: [entries].
        fields: [entries] each.
        max_terms: The longest sum to try.

    Raises:
        ValueError: no fields, or none that does not vanish.

    Returns:
        Every explanation of the smallest length that is exact up to ``TOLERANCE``, and the relative
        residual of the best; no explanation and the smallest residual found otherwise.
    """
    if all(f.norm() <= ZERO for f in fields.values()):
        raise ValueError(f"fields is {list(fields)}, expected at least one field that does not vanish")
    best = 1.0
    for found, residual in sums(gradient, fields, max_terms=max_terms):
        best = min(best, residual)
        if found:
            return tuple({n: short(c) for n, c in x.items()} for x in found), best
    return (), best


def sums(
    gradient: torch.Tensor,
    fields: Mapping[str, torch.Tensor],
    *,
    max_terms: int = 3,
    beside: Collection[str] = (),
    tolerance: float = TOLERANCE,
) -> Iterator[tuple[list[dict[str, float]], float]]:
    """For every length of sum, from one term on, all sums of known fields that are the gradient.

    Args:
        gradient: [entries].
        fields: [entries] each; those that vanish are left out.
        max_terms: The longest sum to try.
        beside: Names of which one may stand in a sum without being counted: rewards beside the KL terms.
        tolerance: Largest relative residual of a sum.

    Yields:
        The sums, best first, and the smallest relative residual of this length.
    """
    names = [n for n, f in fields.items() if f.norm() > ZERO]
    columns = torch.stack([fields[n] / fields[n].norm() for n in names], 1)
    target = gradient / gradient.norm()
    normal = _Normal((columns.T @ columns).tolist(), (columns.T @ target).tolist(), 1.0)
    counted = [i for i, n in enumerate(names) if n not in beside]
    free = [i for i, n in enumerate(names) if n in beside]
    for terms in range(1, max_terms + 1 + bool(free)):
        near, best = _near(normal, counted, free, terms, max_terms)
        found: list[dict[str, float]] = []
        if near:
            chosen = [[names[j] for j in sum_] for sum_ in near]
            weights, residual = fits(gradient, fields, chosen)
            best = min(best, residual.min().item())
            found = [
                dict(zip(chosen[i], weights[i].tolist(), strict=True))
                for i in residual.argsort().tolist()
                if residual[i] < tolerance
            ]
        yield found, best


class _Normal(NamedTuple):
    """Normal equations: what columns have in common with each other and with a target of length 1.

    They are fast and lose half of the digits.
    """

    gram: list[list[float]]
    right: list[float]
    square: float  # what is left of the target


def _near(
    normal: _Normal, counted: Sequence[int], free: Sequence[int], terms: int, most: int
) -> tuple[list[tuple[int, ...]], float]:
    """Sums of so many terms that come near, and the smallest residual; beyond ``most`` one has to be free.

    Columns are taken out one after the other, so that a sum of three costs as much as its last term.
    """
    near, best = list[tuple[int, ...]](), normal.square
    begun: list[tuple[tuple[int, ...], _Normal | None]] = [((), normal)] if terms <= most else []
    for first, left in (*begun, *(((r,), _without(normal, r)) for r in free)):
        if left is None:
            continue
        for chosen, square in _squares(left, counted, terms - len(first)):
            best = min(best, square)
            if square < _SCREEN:
                near.append((*first, *chosen))
    return near, math.sqrt(max(best, 0.0))


def _without(normal: _Normal, i: int) -> _Normal | None:
    """What is left without a column; None where it is a sum of those that went before."""
    gram, right, square = normal
    if (pivot := gram[i][i]) < _NOTHING_LEFT:
        return None
    share = right[i] / pivot
    rows = [[x - row[i] / pivot * y for x, y in zip(row, gram[i], strict=True)] for row in gram]
    rest = [x - share * y for x, y in zip(right, gram[i], strict=True)]
    return _Normal(rows, rest, square - share * right[i])


def _squares(normal: _Normal, names: Sequence[int], terms: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """All sums of so many columns, and what each leaves of the target."""
    gram, right, square = normal
    if terms == 0:
        yield (), square
    for at, i in enumerate(names if terms else ()):
        if (pivot := gram[i][i]) < _NOTHING_LEFT:
            continue
        if terms == 1:
            yield (i,), square - right[i] * right[i] / pivot
        elif terms == 2:  # without tables of what is left, which would cost more
            row, share = gram[i], right[i] / pivot
            for j in names[at + 1 :]:
                rest = gram[j][j] - row[j] * row[j] / pivot
                if rest > _NOTHING_LEFT:
                    yield (i, j), square - share * right[i] - (right[j] - share * row[j]) ** 2 / rest
        elif (left := _without(normal, i)) is not None:
            for chosen, found in _squares(left, names[at + 1 :], terms - 1):
                yield (i, *chosen), found


def fits(
    gradient: torch.Tensor, fields: Mapping[str, torch.Tensor], chosen: Sequence[Sequence[str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least-squares coefficients of some sums of fields in a gradient.

    Args:
        gradient: [entries], not zero.
        fields: [entries] each; one that vanishes gets the coefficient 0.
        chosen: The sums, each of the same number of names.

    Returns:
        Coefficients, [sums, names], and relative residuals, [sums].
    """
    names = list(dict.fromkeys(n for sum_ in chosen for n in sum_))
    sizes = torch.stack([fields[n].norm() for n in names])
    vanish = sizes <= ZERO
    sizes = sizes.masked_fill(vanish, 1.0)
    columns = torch.stack([fields[n] for n in names], 1).masked_fill(vanish, 0.0) / sizes
    at = {n: i for i, n in enumerate(names)}
    index = torch.tensor([[at[n] for n in sum_] for sum_ in chosen])
    matrices = columns[:, index].permute(1, 0, 2)
    target = (gradient / gradient.norm()).expand(len(index), -1).unsqueeze(-1)
    solution = torch.linalg.lstsq(matrices, target, driver="gelsd").solution
    residual = (matrices @ solution - target).norm(dim=(1, 2))
    return solution[..., 0] * gradient.norm() / sizes[index], residual


def curl(loss_fn: Loss, problem: Problem, *, group_size: int = 1) -> float:
    """Relative asymmetry of the Jacobian of the expected gradient; 0 for the gradient of a function."""

    def gradient(logits: torch.Tensor) -> torch.Tensor:
        return expected_gradient(loss_fn, problem, logits=logits, group_size=group_size)

    return curl_of(gradient, problem.logits)


def curl_of(field: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> float:
    """Return the relative asymmetry of the Jacobian of a field, a function of logits, at ``logits``."""
    slopes = jacobian(field, logits.detach())
    size = slopes.norm().item()
    return 0.0 if size < ZERO else (slopes - slopes.T).norm().item() / size


def jacobian(
    field: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor, step: float = _STEP
) -> torch.Tensor:
    """Return the Jacobian of a field, [outputs, inputs], by central differences.

    A detached factor hides the policy from automatic differentiation.
    """
    steps = (step * torch.eye(at.numel(), dtype=at.dtype)).view(-1, *at.shape)
    return torch.stack([(field(at + e) - field(at - e)).flatten() / (2 * step) for e in steps], 1)


def degrees(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the angle between two gradients, neither of which vanishes; small ones keep their digits."""
    u, v = a / a.norm(), b / b.norm()
    return math.degrees(2 * math.atan2((u - v).norm().item(), (u + v).norm().item()))
