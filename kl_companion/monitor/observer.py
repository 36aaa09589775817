"""What hooks need of a monitor, so that they can be written without it: `KLMonitor` is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from kl_companion.monitor.given import StepAnswers
from kl_companion.monitor.looking import LogitsRead
from kl_companion.monitor.mismatch import Engine
from kl_companion.monitor.moments import Asked
from kl_companion.monitor.observation import Observation


@runtime_checkable
class Observer(Protocol):
    """A monitor; `kl_companion.monitor.KLMonitor` says what its members are."""

    folder: Path | None
    rows: int | None
    beta: float | None
    rewards_divided: str | None
    tokenizer: Any
    model: str | None
    engine: Engine | None
    trainer: str | None
    observations: list[Observation]
    vocabulary: int | None
    asked: Asked

    def due(self, step: int) -> bool: ...  # noqa: D102

    def start(self, *, resume: bool = False) -> None: ...  # noqa: D102

    def look(  # noqa: D102
        self, logits: Any, ref_logits: Any, given: StepAnswers, engine: Engine | None = None
    ) -> LogitsRead: ...

    def conclude(  # noqa: D102
        self,
        given: StepAnswers,
        looked: LogitsRead | None,
        *,
        step: int,
        begin: float,
        logged: float | torch.Tensor | None = None,
        loss: float | torch.Tensor | None = None,
    ) -> Observation: ...
