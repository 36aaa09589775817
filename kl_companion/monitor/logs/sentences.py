"""What the report of a log says: a finding by its key in sentences.toml, with its numbers."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator
from importlib.resources import files

from kl_companion.monitor.logs.quantities import Quantities
from kl_companion.monitor.report.verdicts import LEVELS, Level, RunVerdict, number

_TEXTS = tomllib.loads((files("kl_companion.monitor.logs") / "sentences.toml").read_text("utf-8"))
Check = Callable[[Quantities], Iterator[RunVerdict]]


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
