"""The linear algebra of an audit: explain a gradient field by known ones, and measure its curl."""

from __future__ import annotations

from itertools import combinations

import torch

from kl_companion.tabular import Loss, Problem, expected_gradient

TOLERANCE = 1e-9
ZERO = 1e-10
_STEP = 1e-4


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
    names = [n for n, f in fields.items() if f.norm() > ZERO]
    columns = torch.stack([fields[n] / fields[n].norm() for n in names], 1)
    target = gradient / gradient.norm()
    best = 1.0
    for terms in range(1, min(max_terms, len(names)) + 1):
        chosen = torch.tensor(list(combinations(range(len(names)), terms)))
        matrices = columns[:, chosen].permute(1, 0, 2)
        right = target.expand(len(chosen), -1).unsqueeze(-1)
        solution = torch.linalg.lstsq(matrices, right, driver="gelsd").solution
        residual = (matrices @ solution - right).norm(dim=(1, 2))
        best = min(best, residual.min().item())
        exact = (residual < TOLERANCE).nonzero().flatten().tolist()
        if exact:
            found = []
            for i in sorted(exact, key=lambda i: residual[i].item()):
                scale = [gradient.norm() / fields[names[j]].norm() for j in chosen[i]]
                weights = [(s * c).item() for s, c in zip(scale, solution[i, :, 0], strict=True)]
                found.append({names[j]: short(c) for j, c in zip(chosen[i].tolist(), weights, strict=True)})
            return tuple(found), best
    return (), best


def still_hold(
    gradient: torch.Tensor, fields: dict[str, torch.Tensor], matches: tuple[dict[str, float], ...]
) -> tuple[tuple[dict[str, float], ...], float]:
    """Those explanations of one field that explain another one too, with the coefficients that it needs.

    Args:
        gradient: [entries], the other field.
        fields: [entries] each, the objectives' fields there.
        matches: Explanations of the first field.

    Returns:
        What is left of ``matches``, and the smallest relative residual.
    """
    kept, residuals = [], []
    for match in matches:
        again, residual = explain(gradient, {n: fields[n] for n in match}, max_terms=len(match))
        residuals.append(residual)
        if again and again[0].keys() == match.keys():
            kept.append(match)
    return tuple(kept), min(residuals)


def curl(loss_fn: Loss, problem: Problem, *, group_size: int = 1) -> float:
    """Relative asymmetry of the Jacobian of the expected gradient; 0 for the gradient of a function.

    Central differences, because a detached factor hides the policy from automatic differentiation.
    """
    theta = problem.logits.detach()
    columns = []
    for i in range(theta.numel()):
        step = torch.zeros(theta.numel(), dtype=theta.dtype)
        step[i] = _STEP
        step = step.view_as(theta)
        ahead = expected_gradient(loss_fn, problem, logits=theta + step, group_size=group_size)
        behind = expected_gradient(loss_fn, problem, logits=theta - step, group_size=group_size)
        columns.append((ahead - behind).flatten() / (2 * _STEP))
    jacobian = torch.stack(columns)
    size = jacobian.norm().item()
    return 0.0 if size < ZERO else (jacobian - jacobian.T).norm().item() / size
