"""The gradients that a step computes, read when they are made, and what of them reaches an optimizer.

A whole step clips its gradients, lets an optimizer use them and zeroes them: what is left in ``.grad`` in the
end is not what the loss is. A hook on every table reads each gradient when ``backward`` has computed it. An
optimizer inside the step is let run, and the weights are put back, so that each of several updates on a batch
is measured at the same policy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from kl_companion.monitor.doctor.tiny_model import Body
from kl_companion.monitor.doctor.tracing import Line, trainer_line

_PARALLEL = 1e-6  # relative: clipping by the norm multiplies in double precision


class Arrival(NamedTuple):
    """Comparison of the gradient that an optimizer reads with the one that was computed.

    Attributes:
        steps: Optimizer steps inside the training step.
        scale: Factor between the two; 1 where nothing was changed, 0 where nothing is left.
        parallel: Whether they differ by a factor only.
        line: The line of the first optimizer step where they differ; None without one.
        leftover: Whether the rest is the gradient of an earlier update.
    """

    steps: int = 0
    scale: float = 1.0
    parallel: bool = True
    line: Line | None = None
    leftover: bool = False

    @property
    def whole(self) -> bool:
        """Whether all of the gradient is there, as it was computed or clipped."""
        return self.parallel and self.scale != 0


class RecordedGradients:
    """A context in which the gradients of two tables are added up as they are made.

    Args:
        policy: Whose gradients an optimizer inside is expected to read.
        reference: The other table; the same where the policy is its own reference.
    """

    def __init__(self, policy: Body, reference: Body) -> None:
        self._policy = policy
        self._tables = [x for body in {policy, reference} for x in body.parameters()]
        self._sums: dict[int, torch.Tensor] = {}
        self._since_step: torch.Tensor | None = None
        self._last: torch.Tensor | None = None
        self._arrivals: list[Arrival] = []
        self._weights: list[torch.Tensor] = []
        for x in self._tables:
            x.grad = None

    def __enter__(self) -> RecordedGradients:
        self._handles: list[Any] = [
            x.register_hook(lambda g, x=x: self._add(x, g)) for x in self._tables if x.requires_grad
        ]
        self._handles.append(register_optimizer_step_pre_hook(self._before_step))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def of(self, table: torch.Tensor) -> torch.Tensor:
        """Return the sum of all gradients by a table, of its shape; zeros where none was computed."""
        return self._sums.get(id(table), torch.zeros_like(table)).detach().clone()

    def arrival(self) -> Arrival:
        """Return the first comparison in which the gradient was changed, of all optimizer steps inside.

        Without an optimizer inside, what is left in the end is compared.
        """
        if not self._arrivals:
            return self._compared(None, 0)
        changed = [x for x in self._arrivals if not x.parallel or abs(x.scale - 1) > _PARALLEL]
        return (changed or self._arrivals)[0]._replace(steps=len(self._arrivals))

    def _add(self, table: torch.Tensor, gradient: torch.Tensor) -> None:
        new = gradient.detach().clone()
        self._sums[id(table)] = self._sums[id(table)] + new if id(table) in self._sums else new
        if table is self._policy.completion:
            self._since_step = new if self._since_step is None else self._since_step + new

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        updated = {id(x) for group in optimizer.param_groups for x in group["params"]}
        self._weights = [x.detach().clone() for x in self._tables]
        if id(self._policy.completion) in updated:
            self._arrivals.append(self._compared(trainer_line(), 1))
            self._last, self._since_step = self._policy.completion.grad, None
            self._last = None if self._last is None else self._last.detach().clone()

    def _after_step(self, *_: Any) -> None:
        with torch.no_grad():
            for x, before in zip(self._tables, self._weights, strict=True):
                x.copy_(before)

    def _compared(self, line: Line | None, steps: int) -> Arrival:
        computed, grad = self._since_step, self._policy.completion.grad
        if computed is None or not computed.any():
            return Arrival(steps)
        if grad is None:
            return Arrival(steps, 0.0, True, line)
        scale = ((grad * computed).sum() / (computed * computed).sum()).item()
        least = _PARALLEL * grad.abs().max()
        leftover = self._last is not None and bool((grad - computed - self._last).abs().max() <= least)
        return Arrival(steps, scale, bool((grad - scale * computed).abs().max() <= least), line, leftover)
