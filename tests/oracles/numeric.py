"""Derivatives by differences or from explicit sums; numbers near w = 1; shares no code with the package."""

import math

import torch


def gradient(function, at: torch.Tensor) -> torch.Tensor:
    """Gradient of a scalar function written as an explicit sum."""
    x = at.detach().clone().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


def finite_difference(function, at: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    """The same by central differences, one coordinate after the other."""
    out = torch.zeros_like(at)
    for i in range(at.numel()):
        shift = torch.zeros_like(at).reshape(-1)
        shift[i] = step
        shift = shift.reshape(at.shape)
        out.reshape(-1)[i] = (function(at + shift) - function(at - shift)) / (2 * step)
    return out


def jacobian(field, at: torch.Tensor, step: float = 1e-5) -> torch.Tensor:
    """Matrix of central differences of a vector field, [numel, numel]; column j moves coordinate j."""
    columns = []
    for j in range(at.numel()):
        shift = torch.zeros_like(at).reshape(-1)
        shift[j] = step
        shift = shift.reshape(at.shape)
        columns.append(((field(at + shift) - field(at - shift)) / (2 * step)).reshape(-1))
    return torch.stack(columns, dim=1)


def exp_minus_line(x: float) -> float:
    """e^x - 1 - x by its power series, which loses nothing near zero (|x| below 1)."""
    return math.fsum(x**n / math.factorial(n) for n in range(2, 25))
