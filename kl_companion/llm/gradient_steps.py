"""An optimizer step that is taken only if every value was right, which one read on the host says."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn

import torch

from kl_companion.host_reads import any_of, collecting, explained, to_host

Gradients = Callable[[list[torch.nn.Parameter]], None]
Differentiate = Callable[[], list[torch.Tensor]]


class GradientSteps:
    """Steps along the gradients of some parameters.

    Args:
        parameters: Of a model.
        max_norm: The norm to which a longer gradient is shortened; None leaves it.
        average: Called with the parameters before their gradients are shortened, or None.
        check: Raises the error of a number that is not finite, given its name.

    Attributes:
        collects: Whether checks collect flags: not while something is computed again for its error.
    """

    def __init__(
        self,
        parameters: list[torch.nn.Parameter],
        max_norm: float | None,
        average: Gradients | None,
        check: Callable[[str, torch.Tensor], None],
    ) -> None:
        self.parameters, self.average, self.check = parameters, average, check
        self.max_norm = math.inf if max_norm is None else max_norm
        self.collects = True

    def collecting(self) -> AbstractContextManager[list[torch.Tensor]]:
        """Return the context in which checks of values collect flags; the list stays empty without one."""
        return collecting() if self.collects else nullcontext([])

    def take(
        self,
        optimizer: torch.optim.Optimizer,
        differentiate: Differentiate,
        more: list[torch.Tensor],
        flags: list[torch.Tensor],
    ) -> list[float]:
        """Take one step.

        Args:
            optimizer: Of the parameters.
            differentiate: Adds to their gradients, and returns numbers, tensors without axes.
            more: Further numbers to be read.
            flags: Of checks before. They are read with the others, and the list is emptied.

        Returns:
            The norm of the gradient before it is shortened, ``more``, and the numbers of ``differentiate``.

        Raises:
            ValueError, RuntimeError: what the first check says that fails; no step was taken.
        """
        optimizer.zero_grad(set_to_none=True)
        with self.collecting() as own:
            numbers = differentiate()
        flags += own
        if self.average is not None:
            if bool(any_of(flags)):  # before the other processes have a part of it
                self._explain(differentiate)
            self.average(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
        *read, wrong = to_host([norm, *more, *numbers, any_of(flags)])
        if wrong:
            self._explain(differentiate)
        self.check("the gradient", read[0])
        optimizer.step()
        flags.clear()
        return [x.item() for x in read]

    def _explain(self, differentiate: Differentiate) -> NoReturn:
        """Compute the gradients again without collecting, for the error of the first check that fails."""
        collects, self.collects = self.collects, False
        try:
            explained(differentiate)
        finally:
            self.collects = collects
