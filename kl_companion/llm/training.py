"""The training loop: sample, compare, differentiate, step. One explicit loop for RL and for distillation.

Distillation is the same loop with a teacher as the reference and no reward (`kl_companion.llm.distillation`).
The first five lines of `Run.step` are what an algorithm box would say; the rest is bookkeeping.

Source: emapg2026, algorithm 3; tang2025pitfalls, section 5.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import pandas as pd

from kl_companion.llm.models import LanguageModel, same_vocabulary
from kl_companion.llm.run import Gradients, Record, Run, TrainingStopped
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Task

__all__ = ["History", "Settings", "TrainingStopped", "train"]

Evaluate = Callable[[LanguageModel, int], Record]


@dataclass
class History:
    """What a run recorded, one record per step.

    Those of evaluated steps hold the evaluation too; its ``reward`` and ``length`` replace the batch's.

    Columns: ``step`` (finished before it), ``reward``, ``length``, ``loss``, ``grad_norm`` (before it is
    clipped), ``equal_groups``, ``clipped`` (share of tokens whose ratio PPO's clip stops), ``log_ratio``
    (mean |log pi - log mu| over the batch's tokens), and what ``evaluate`` returned.
    """

    records: list[Record] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """All records, one row per step."""
        return pd.DataFrame(self.records)

    def evaluations(self) -> pd.DataFrame:
        """The evaluated steps only."""
        return pd.DataFrame([r for r in self.records if r.get("evaluated")]).drop(columns="evaluated")


def train(
    policy: LanguageModel,
    task: Task,
    settings: Settings,
    *,
    reference: LanguageModel | None = None,
    evaluate: Evaluate | None = None,
    every: int = 50,
    progress: Callable[[Record], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    gradients: Gradients | None = None,
) -> History:
    """Train ``policy.model`` in place.

    Args:
        policy: The model to train, and its tokenizer.
        task: Prompts and rewards; a task without rewards gives 0.
        settings: Every other choice.
        reference: What the KL is measured to; a frozen copy of the policy at the start by default.
        evaluate: Called with the policy and the number of finished steps, at step 0, every ``every`` steps
            and at the end; what it returns is recorded.
        every: Steps between evaluations and between checkpoints.
        progress: Receives the record of every step, and that of an evaluated start.
        checkpoint: A folder for checkpoints; None keeps none.
        resume: Go on from the folder's checkpoint where there is one.
        gradients: Called with the parameters when their gradients are complete, before they are clipped:
            where data-parallel training averages them.

    Raises:
        ValueError: models with different vocabularies, ``every`` below 1, a checkpoint of another run.
        TrainingStopped: a loss or a gradient that is not finite.
        OSError: a checkpoint that cannot be written.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ValueError(f"every is {every!r}, expected a whole number of at least 1")
    if reference is not None:
        same_vocabulary(policy, reference)
    run = Run(policy, task, settings, reference, checkpoint, gradients)
    if checkpoint is not None and resume:
        run.resume()
    if run.finished == 0 and evaluate is not None and not run.records:
        run.records.append({"step": 0, "evaluated": 1.0, **evaluate(policy, 0)})
        if progress is not None:
            progress(run.records[0])
    while run.finished < settings.steps:
        record = run.step()
        due = run.finished % every == 0 or run.finished == settings.steps
        if due and evaluate is not None:
            record |= {"evaluated": 1.0, **evaluate(policy, run.finished)}
        run.records.append(record)
        if due and checkpoint is not None:
            run.save()
        if progress is not None:
            progress(record)
    return History(run.records)
