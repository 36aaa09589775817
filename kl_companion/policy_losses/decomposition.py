"""Write a gradient as a linear combination of named gradient fields."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Decomposition(NamedTuple):
    """A gradient as a combination of named fields.

    Attributes:
        coefficients: The least-squares coefficient of each field.
        residual: Norm of what is left, divided by the norm of the gradient; 0 where the gradient is 0.
    """

    coefficients: dict[str, float]
    residual: float


def decompose(gradient: torch.Tensor, **basis: torch.Tensor) -> Decomposition:
    """The gradient as a combination of named fields, by least squares in float64.

    A bandit with three answers has two directions, which any two fields explain: stack the gradients of
    several worlds, and the fields likewise, so that one set of coefficients has to fit them all.

    Args:
        gradient: Any shape; stacked worlds count as one gradient.
        basis: The fields by name, of the same shape.

    Raises:
        ValueError: no field, shapes that differ, or fields that depend on one another (a field of zeros
            too), whose coefficients would not be unique.
    """
    if not basis:
        raise ValueError("got no field, expected at least one to decompose the gradient on")
    for name, x in basis.items():
        if x.shape != gradient.shape:
            raise ValueError(
                f"{name} has shape {list(x.shape)}, expected {list(gradient.shape)} like gradient"
            )
    target = gradient.detach().double().flatten()
    columns = torch.stack([x.detach().double().flatten() for x in basis.values()], 1)
    norms = columns.norm(dim=0)
    unit = columns / norms.where(norms > 0, 1.0)
    if torch.linalg.matrix_rank(unit, tol=1e-9) < len(basis):
        raise ValueError(
            f"the fields {', '.join(basis)} depend on one another, expected independent ones: their "
            "coefficients would not be unique"
        )
    solution = torch.linalg.lstsq(unit, target.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    size = target.norm().item()
    residual = 0.0 if size == 0 else (unit @ solution - target).norm().item() / size
    return Decomposition(dict(zip(basis, (solution / norms).tolist(), strict=True)), residual)
