"""What raw logits of a policy and its reference go through before they are compared."""

from __future__ import annotations

from typing import NamedTuple

import torch

Scalars = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
_OPEN = 0.5  # stands for a form that is not chosen


class LogitTransform(NamedTuple):
    """Temperatures, soft caps and scales of both models, and which form of the kernels applies them.

    A model's logits are ``scale`` times the raw ones, then soft-capped, then divided by the temperature.
    """

    temperature: float = 1.0
    ref_temperature: float = 1.0
    cap: float | None = None
    ref_cap: float | None = None
    scale: float = 1.0
    ref_scale: float = 1.0
    compiled: bool | None = False  # None: a tracer has left it open, see `compiling.compiles`

    def compiles(self, rows: int) -> bool:
        """Whether the compiled form runs: a single row would be a compilation of its own."""
        return bool(self.compiled) and rows > 1

    @property
    def ratio(self) -> float:
        """The factor of the reference's raw logits over that of the policy's; mostly 1."""
        return (self.ref_scale / self.ref_temperature) / (self.scale / self.temperature)

    def scalars(self, dtype: torch.dtype) -> Scalars:
        """The factor of raw logits (None for 1) and the soft caps; tensors: kernels depend on no value.

        The cap c of scaled logits is the cap c / scale of raw ones, since
        c tanh(scale x / c) = scale (c / scale) tanh(x / (c / scale)).
        """
        factor = self.scale / self.temperature
        cool = None if factor == 1.0 else torch.tensor(factor, dtype=dtype)
        cap = None if self.cap is None else torch.tensor(self.cap / self.scale, dtype=dtype)
        if self.ref_cap is None:
            return cool, cap, None
        return cool, cap, torch.tensor(self.ratio * self.ref_cap / self.ref_scale, dtype=dtype)

    def comparable(
        self, x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Raw logits of policy and reference in units of the policy's; copied where the factors differ."""
        return (x, y) if self.ratio == 1.0 else (x.to(dtype), y.to(dtype) * self.ratio)

    def exchanged(self) -> LogitTransform:
        """The same with policy and reference exchanged."""
        return LogitTransform(
            self.ref_temperature,
            self.temperature,
            self.ref_cap,
            self.cap,
            self.ref_scale,
            self.scale,
            self.compiled,
        )

    def numbers(self) -> list[float]:
        """All fields as numbers, for an operator of a compiled graph; `of_numbers` reads them."""
        numbers = [0.0 if field is None else float(field) for field in self]
        return [*numbers[:-1], _OPEN if self.compiled is None else numbers[-1]]

    @staticmethod
    def of_numbers(numbers: list[float]) -> LogitTransform:
        """The inverse of `numbers`."""
        temperature, ref_temperature, cap, ref_cap, scale, ref_scale, compiled = numbers
        form = None if compiled == _OPEN else bool(compiled)
        return LogitTransform(
            temperature, ref_temperature, cap or None, ref_cap or None, scale, ref_scale, form
        )
