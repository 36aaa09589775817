"""Moments of the mean of n draws, computed from the moments of one draw and of a pair of draws."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch

SinglePlacement = Literal["loss", "reward"]  # one placement; a `KLTerm` may also have both
Baseline = Literal["mean", "leave_one_out"]
SINGLE_PLACEMENTS: tuple[SinglePlacement, ...] = ("loss", "reward")
BASELINES: tuple[Baseline, ...] = ("mean", "leave_one_out")


class Moments(NamedTuple):
    """Exact moments of the mean of n estimates; [worlds] in front for a stack, [sizes] behind for several n.

    Attributes:
        value: Expected value.
        value_bias: Expected value minus the target divergence.
        value_variance: Variance of the value.
        gradient: Expected gradient, [rows, vocab].
        gradient_bias: Norm of the expected gradient minus that of the target divergence.
        gradient_variance: Trace of the covariance of the gradient.
    """

    value: float | torch.Tensor
    value_bias: float | torch.Tensor
    value_variance: float | torch.Tensor
    gradient: torch.Tensor
    gradient_bias: float | torch.Tensor
    gradient_variance: float | torch.Tensor

    @property
    def value_mse(self) -> float | torch.Tensor:
        """E (estimate - target)^2."""
        return self.value_bias**2 + self.value_variance

    @property
    def gradient_mse(self) -> float | torch.Tensor:
        """E |estimate - gradient of the target|^2, summed over parameters."""
        return self.gradient_bias**2 + self.gradient_variance

    @property
    def gradient_rmse(self) -> float | torch.Tensor:
        """Root of `gradient_mse` (tang2025pitfalls, appendix C)."""
        return self.gradient_mse**0.5


def beyond(dtype: torch.dtype) -> ValueError:
    """The error for moments that would be NaN."""
    return ValueError(f"the moments are beyond {dtype}, expected a reference closer to the policy")


class Draws(NamedTuple):
    """What one draw, and a pair of draws, say about any number of them; [worlds] in front for a stack.

    Attributes:
        value, value_variance: Of one draw.
        gradient: Expected gradient of one draw, [rows, vocab]; with a baseline, of the leave-one-out form.
        single: Variance (trace) of the gradient of one draw; without a baseline.
        single_of_pair, pair: Variance of E[h(1, 2) | 1] and of h(1, 2), the symmetric kernel that pairs
            of draws are averaged with; with a baseline.
        baseline: None, ``"mean"`` or ``"leave_one_out"``.
        target_value, target_gradient: Of the divergence that bias is measured against.
    """

    value: torch.Tensor
    value_variance: torch.Tensor
    gradient: torch.Tensor
    single: torch.Tensor
    single_of_pair: torch.Tensor
    pair: torch.Tensor
    baseline: Baseline | None
    target_value: torch.Tensor
    target_gradient: torch.Tensor

    def checked(self) -> Draws:
        """The same; ValueError where a moment would be NaN."""
        if any(x.isnan().any() for x in self if isinstance(x, torch.Tensor)):
            raise beyond(self.value.dtype)
        return self

    def at(self, n: int | torch.Tensor) -> Moments:
        """Moments of the mean of n draws.

        Args:
            n: A number, or several, [sizes], which become the last axis of every moment (the first
                behind the worlds of ``gradient``).

        Raises:
            ValueError: n below 1, or below 2 with a baseline; moments that are differences of infinities.
        """
        size = torch.as_tensor(n, dtype=torch.float64)
        least = 1 if self.baseline is None else 2
        if size.min() < least:
            raise ValueError(f"n is {n}, expected at least {least} with baseline={self.baseline!r}")

        def spread(x: torch.Tensor) -> torch.Tensor:
            return x.unsqueeze(-1) if size.ndim else x

        # the batch mean is (1 - 1/n) times leave-one-out, sample by sample
        factor = 1 - 1 / size if self.baseline == "mean" else torch.ones_like(size)
        if self.baseline is None:
            variance = spread(self.single) / size
        else:  # Hoeffding's variance of a U-statistic of order two
            pairs = 4 * (size - 2) * spread(self.single_of_pair) + 2 * spread(self.pair)
            variance = factor**2 * pairs / (size * (size - 1))
        gradient, target = self.gradient, self.target_gradient
        if self.baseline == "mean" and size.ndim:
            gradient, target = factor[:, None, None] * gradient.unsqueeze(-3), target.unsqueeze(-3)
        elif self.baseline == "mean":
            gradient = factor * gradient
        bias = (gradient - target).norm(dim=(-2, -1))
        if size.ndim and self.baseline != "mean":  # the same for every size
            gradient = gradient.unsqueeze(-3).expand(*bias.shape, len(size), *gradient.shape[-2:])
            bias = bias.unsqueeze(-1)
        if bias.isnan().any() or (self.value - self.target_value).isnan().any() or variance.isnan().any():
            raise beyond(bias.dtype)
        return Moments(
            spread(self.value).expand(variance.shape),
            spread(self.value - self.target_value).expand(variance.shape),
            spread(self.value_variance) / size,
            gradient,
            bias.expand(variance.shape),
            variance,
        )
