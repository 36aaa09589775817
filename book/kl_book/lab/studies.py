"""Train many runs from one start model and return one table: the work of the notebooks of part 8."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd

from kl_book.lab.progress import Progress
from kl_companion.llm.evaluation import Evaluation
from kl_companion.llm.history import History
from kl_companion.llm.models import LanguageModel, frozen_copy, save_model
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, Task
from kl_companion.llm.training import train

SHOWN = ("reward", "kl", "grad_norm")


def study(
    start: LanguageModel,
    task: Task,
    runs: Sequence[Settings],
    *,
    reference: LanguageModel | None = None,
    examples: Sequence[Example],
    out_examples: Sequence[Example] | None = None,
    samples: int = 1,
    k: int | None = None,
    best_of: int | None = None,
    every: int = 50,
    folder: str | os.PathLike[str] | None = None,
    also: Callable[[LanguageModel, int], dict[str, float]] | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Train a copy of the start by each of the settings, and measure it on the way.

    Args:
        start: The model that each run starts from; it is not changed.
        task: Prompts and rewards.
        runs: The settings, see `expand`.
        reference: What the KL is measured to, in the loss and here; the start by default.
        examples: Prompts that are evaluated, the same ones each time.
        out_examples: Harder prompts, for ``reward_out``.
        samples: Completions of each prompt in an evaluation.
        k: Also measure the mass of the k likeliest tokens.
        best_of: Also measure the chance that one of so many completions is right; see `evaluate`.
        every: Steps between evaluations.
        folder: Where to keep checkpoints and trained models, one folder per run; None keeps none. A run that
            is found there goes on where it stopped.
        also: Called with the policy and the number of finished steps at each evaluation; the numbers that it
            returns, by name, become columns. The start is the same for all runs and measured once.
        quiet: Show no progress.

    Returns:
        A row per run and evaluated step, with ``run`` (its number), the settings by name (``none`` for None),
        ``step``, what `evaluate` and ``also`` measure, and ``grad_norm``, ``grad_norm_max``,
        ``equal_groups``, ``clipped`` over the steps since the evaluation before.

    Raises:
        ValueError: no run, a number of ``also`` that has the name of another column, and what `train` and
            `evaluate` raise.
    """
    if not runs:
        raise ValueError("got no settings to run, expected at least one")
    other = frozen_copy(start) if reference is None else reference
    measured = Evaluation(
        other, task, examples=examples, out_examples=out_examples, n=samples, k=k, best_of=best_of
    )
    at_start: dict[str, float] = {}

    def look(policy: LanguageModel, step: int) -> dict[str, float]:
        if step == 0:
            if not at_start:
                at_start.update(measure(policy, step))
            return dict(at_start)
        return measure(policy, step)

    def measure(policy: LanguageModel, step: int) -> dict[str, float]:
        found = measured(policy)
        more = {} if also is None else also(policy, step)
        taken = sorted(more.keys() & (found.keys() | _COLUMNS))
        if taken:
            raise ValueError(f"also returned {taken[0]!r}, which is a column already, expected another name")
        return found | more

    frames = []
    for number, settings in enumerate(runs):
        policy = frozen_copy(start)
        policy.model.requires_grad_(True)
        place = None if folder is None else Path(folder) / f"run-{number:03d}"
        title = (
            f"{number + 1}/{len(runs)} {settings.estimator} in {settings.placement}, beta {settings.beta:g}"
        )
        with Progress(max(settings.steps, 1), title, SHOWN, quiet=quiet) as progress:
            history = train(
                policy,
                task,
                settings,
                reference=other,
                evaluate=look,
                every=every,
                progress=progress,
                checkpoint=place and place / "checkpoints",
            )
        frames.append(_rows(number, settings, history, every))
        if place is not None:
            save_model(policy, place / "model")
    return pd.concat(frames, ignore_index=True)


def _rows(number: int, settings: Settings, history: History, every: int) -> pd.DataFrame:
    """The evaluations of one run, with its settings in front and what its steps were like behind."""
    given = {column: getattr(settings, name) for column, name in _SETTINGS.items()}
    given = {column: "none" if value is None else value for column, value in given.items()}
    given = {column: str(value) if isinstance(value, tuple) else value for column, value in given.items()}
    seen = history.evaluations()
    measured = [c for c in seen if c not in ("grad_norm", "equal_groups", "clipped", "loss", "log_ratio")]
    frame = pd.DataFrame({"run": number, **given}, index=seen.index).join(seen[measured])
    steps = history.frame()
    if "grad_norm" in steps:
        window = ((steps["step"] - 1) // every + 1).mul(every).clip(upper=steps["step"].max())
        for column, name, how in (of for of in _WINDOWED if of[1] in steps):  # a lesson has no groups
            frame[column] = frame["step"].map(how(steps[name].groupby(window)))
    return frame


_SETTINGS = {  # column and setting; an evaluation has a length of its own
    f"aggregate_{f.name}" if f.name == "length" else f.name: f.name
    for f in fields(Settings)
    if f.name != "steps"
}
_WINDOWED: tuple[tuple[str, str, Callable[..., pd.Series]], ...] = (
    ("grad_norm", "grad_norm", lambda x: x.mean()),
    ("grad_norm_max", "grad_norm", lambda x: x.max()),
    ("equal_groups", "equal_groups", lambda x: x.mean()),
    ("clipped", "clipped", lambda x: x.mean()),
)
_COLUMNS = {
    "run",
    "step",
    "evaluated",
    "loss",
    "log_ratio",
    *_SETTINGS,
    *(column for column, _, _ in _WINDOWED),
}
