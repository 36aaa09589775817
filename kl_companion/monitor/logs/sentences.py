"""The findings of a report, as records: their texts are in sentences.toml."""

from __future__ import annotations

import difflib
import tomllib
from importlib.resources import files
from typing import Literal, NamedTuple

from kl_companion.monitor.logs.words import number

Level = Literal["wrong", "attention", "fine"]
LEVELS: tuple[Level, ...] = ("wrong", "attention", "fine")
_TEXTS = tomllib.loads((files("kl_companion.monitor.logs") / "sentences.toml").read_text("utf-8"))


class RunVerdict(NamedTuple):
    """One thing that the rows of a run show.

    Attributes:
        level: ``"wrong"`` where a number or the training is not what it seems, ``"attention"`` where it costs
            something, ``"fine"``.
        topic: A key for programs, such as ``"bias"``.
        says: The finding with its number, a sentence that can be read alone.
        why: What it means, and when it matters.
        todo: What to do next; empty where nothing is to do.
        step: The row that it is about; None where it is about the run.
    """

    level: Level
    topic: str
    says: str
    why: str
    todo: str = ""
    step: int | None = None


def sentence(
    topic: str, /, level: Level | None = None, step: float | None = None, **gaps: object
) -> RunVerdict:
    """Return the finding of a topic of sentences.toml, with the gaps of its texts filled."""
    row = _TEXTS[topic]
    words = {name: number(x) if isinstance(x, float) else x for name, x in gaps.items()}
    words |= {} if step is None else {"step": f"{step:g}"}
    says, why, todo = (row.get(text, "").format(**words) for text in ("says", "why", "todo"))
    place = None if step is None else int(step)
    return RunVerdict(level or row["level"], row.get("topic", topic), says, why, todo, place)


def check_condition(condition: str) -> None:
    """Raise ValueError where a condition of ``--fail-on`` is neither a level nor a topic."""
    topics = {row.get("topic", key) for key, row in _TEXTS.items()}
    if condition not in LEVELS and condition not in topics:
        near = difflib.get_close_matches(condition, topics, 3)
        raise ValueError(
            f"--fail-on is {condition!r}, expected wrong, attention, or a topic"
            + (f" such as {' or '.join(near)}" if near else f": {', '.join(sorted(topics))}")
        )


def steps_text(steps: list[float], most: int = 4) -> str:
    """Return steps as words: "step 16", "steps 16, 25 and 29 others"."""
    names = [f"{x:g}" for x in steps]
    if len(names) == 1:
        return f"step {names[0]}"
    if len(names) <= most:
        return f"steps {', '.join(names[:-1])} and {names[-1]}"
    return f"steps {', '.join(names[: most - 1])} and {len(names) - most + 1} others"
