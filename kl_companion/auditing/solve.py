"""The linear algebra of an audit: explain a gradient field by known ones, and measure its curl."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations

import torch

from kl_companion.tabular import Loss, Problem, expected_gradient

TOLERANCE = 1e-9
ZERO = 1e-10
_STEP = 1e-4
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

    Returns:
        Every explanation of the smallest length that is exact up to ``TOLERANCE``, and the relative
        residual of the best; no explanation and the smallest residual found otherwise.
    """
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
    gram, right = columns.T @ columns, columns.T @ target
    counted = [i for i, n in enumerate(names) if n not in beside]
    free = [i for i, n in enumerate(names) if n in beside]
    for terms in range(1, max_terms + 1 + bool(free)):
        index = _chosen(tuple(counted), tuple(free), terms, max_terms)
        if not len(index):
            continue
        near, best = _near(gram, right, index)
        found: list[dict[str, float]] = []
        if len(near):
            chosen = [[names[j] for j in sum_] for sum_ in near.tolist()]
            weights, residual = fits(gradient, fields, chosen)
            best = min(best, residual.min().item())
            found = [
                dict(zip(chosen[i], weights[i].tolist(), strict=True))
                for i in residual.argsort().tolist()
                if residual[i] < tolerance
            ]
        yield found, best


@lru_cache(maxsize=64)  # of all losses and worlds alike
def _chosen(counted: tuple[int, ...], free: tuple[int, ...], terms: int, max_terms: int) -> torch.Tensor:
    """The sums of so many terms, [sums, terms]: none longer than ``max_terms`` but by one that is free."""
    chosen = list(combinations(counted, terms)) if terms <= max_terms else []
    chosen += [(r, *c) for r in free for c in combinations(counted, terms - 1)]
    return torch.tensor(chosen)


def _near(gram: torch.Tensor, right: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Those sums that come near by the normal equations, which are fast and lose half of the digits."""
    matrices = gram[index.unsqueeze(-1), index.unsqueeze(-2)]
    solution, _ = torch.linalg.solve_ex(matrices, right[index].unsqueeze(-1))
    square = 1 - (right[index] * solution.squeeze(-1)).sum(-1)
    square = square.nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)  # columns that are multiples of each other
    best = square.clamp(min=0).min().sqrt().item()
    return index[square < _SCREEN], best


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
    """Relative asymmetry of the Jacobian of a field, a function of logits, at ``logits``.

    Central differences, because a detached factor hides the policy from automatic differentiation.
    """
    theta = logits.detach()
    columns = []
    for i in range(theta.numel()):
        step = torch.zeros(theta.numel(), dtype=theta.dtype)
        step[i] = _STEP
        step = step.view_as(theta)
        columns.append((field(theta + step) - field(theta - step)).flatten() / (2 * _STEP))
    jacobian = torch.stack(columns)
    size = jacobian.norm().item()
    return 0.0 if size < ZERO else (jacobian - jacobian.T).norm().item() / size
