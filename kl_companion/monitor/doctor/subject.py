"""What the doctor examines, and what it sees: gradients by every prediction of a small world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from kl_companion.monitor.doctor.gradients import Arrival, RecordedGradients
from kl_companion.monitor.doctor.tiny_model import Body
from kl_companion.monitor.doctor.tracing import Trace
from kl_companion.monitor.doctor.world import Ids, SmallWorld


class Declared(NamedTuple):
    """What a trainer says of itself, or its user says of it.

    Attributes:
        temperature: Of the sampler.
        top_p, top_k: Of the sampler; 1 and 0 for a whole distribution.
        updates: Optimizer steps on one batch of answers.
        beta: The KL coefficient; None if it is not known.
        engine: Whether the old log-probs are an inference engine's own.
        names: What its settings are called, for advice: {"temperature": "GRPOConfig(temperature=...)"}.
        teacher: Whether the reference is a teacher, which is all that the loss is about.
        token_mean_of: The batch over which it says that tokens are averaged: "micro-batch" where it says so.
        accumulate: Micro-batches of a step.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    updates: int = 1
    beta: float | None = None
    engine: bool = False
    names: dict[str, str] = {}  # noqa: RUF012 (never changed)
    teacher: bool = False
    token_mean_of: str = ""
    accumulate: int = 1


class NotFinite(ValueError):
    """A loss that is not a finite number."""


class WorldGradients(NamedTuple):
    """What one run on a world gave.

    Attributes:
        loss: Its value.
        completion: Gradient by the policy's logits where an answer's tokens are predicted,
            [answers, seq, live].
        prompt, beyond, stray: Sums of absolute gradients by its predictions of prompt tokens, after the end
            of an answer, and where something else was seen than an answer's prefix.
        reference: The same by the reference's logits.
        arrival: What of the gradient reaches an optimizer.
    """

    loss: float
    completion: torch.Tensor
    prompt: float
    beyond: float
    stray: float
    reference: float
    arrival: Arrival = Arrival()


@runtime_checkable
class Examined(Protocol):
    """A trainer, or a step, that runs on any `SmallWorld`."""

    title: str
    ids: Ids
    declared: Declared
    sets_beta: bool  # whether `run` can be given another coefficient

    def run(
        self, world: SmallWorld, *, parts: int = 1, beta: float | None = None, trace: Trace | None = None
    ) -> WorldGradients:
        """Run its code on a world.

        Args:
            world: The answers, the policies that score them, the rewards.
            parts: Micro-batches whose gradients are accumulated.
            beta: Another coefficient, for a subject that sets it; None for its own.
            trace: Filled while it runs.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """Settings of a loop that can be run on any `SmallWorld`."""

    def examined(self) -> Examined:
        """Return the loop that runs with these settings."""
        ...


def seen(
    loss: Callable[[], torch.Tensor | None],
    policy: Body,
    reference: Body,
    trace: Trace | None = None,
) -> WorldGradients:
    """Run a loss and read the gradients that it leaves in the tables.

    Args:
        loss: Gives a scalar; or None if it has called ``backward`` itself.
        policy: The table of the policy.
        reference: That of the reference; the same where that is the policy.
        trace: Filled while it runs; None notes nothing, which is faster.

    Raises:
        ValueError: a loss that is not a finite number; a step that exits.
    """
    gradients = RecordedGradients(policy, reference)
    try:
        with gradients, nullcontext() if trace is None else trace, _backward_noted() as called:
            value = loss()
    except SystemExit as error:  # a status of the user's own would pass for a diagnosis
        raise ValueError(
            f"the step called sys.exit({error.code!r}) on the small world, expected one that runs"
        ) from error
    if trace is not None and (value is not None or called):
        trace.keep_what_made(*([] if value is None else [value]), *called)
    if value is None and called:
        value = torch.stack([x.detach().double().sum() for x in called]).sum()
    if value is not None:
        if not torch.isfinite(value):
            raise NotFinite(f"the loss of the small world is {value.item()}, expected a finite number")
        if value.requires_grad and not called:
            with gradients:
                value.backward()

    def size(x: torch.Tensor) -> float:
        return gradients.of(x).abs().sum().item()

    others = [] if reference is policy else [size(x) for x in reference.parameters()]
    return WorldGradients(
        0.0 if value is None else value.item(),
        gradients.of(policy.completion).cpu(),
        size(policy.prompt),
        size(policy.beyond),
        size(policy.stray),
        sum(others),
        gradients.arrival(),
    )


@contextmanager
def _backward_noted() -> Iterator[list[torch.Tensor]]:
    """The tensors that ``backward`` is called on inside."""
    stock, called = torch.Tensor.backward, dict[int, torch.Tensor]()

    def backward(self: torch.Tensor, *args: Any, **options: Any) -> None:
        called[id(self)] = self
        stock(self, *args, **options)

    found: list[torch.Tensor] = []
    setattr(torch.Tensor, "backward", backward)  # noqa: B010 (a method, to mypy)
    try:
        yield found
    finally:
        setattr(torch.Tensor, "backward", stock)  # noqa: B010
        found += called.values()


def scalar_of(out: Any, label: str) -> torch.Tensor | None:
    """The loss in what a step returned: a scalar, alone, first in a tuple, or by the name ``loss``.

    Raises:
        ValueError: something else.
    """
    if isinstance(out, dict) or hasattr(out, "loss"):
        out = out.get("loss") if isinstance(out, dict) else out.loss
    if isinstance(out, tuple | list) and out:
        out = out[0]
    if out is None or isinstance(out, float | int):
        return None
    if not isinstance(out, torch.Tensor) or out.numel() != 1:
        what = f"shape {list(out.shape)}" if isinstance(out, torch.Tensor) else type(out).__name__
        raise ValueError(f"{label} returned {what}, expected its loss: one number, or None after backward()")
    return out.reshape(())
