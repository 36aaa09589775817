"""The tasks by name: what `make_task` finds."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kl_companion.checks import look_up as find
from kl_companion.llm.tasks.arithmetic import arithmetic
from kl_companion.llm.tasks.base import Task
from kl_companion.llm.tasks.datasets import data
from kl_companion.llm.tasks.languages import markov, two_styles
from kl_companion.llm.tasks.look_up import look_up
from kl_companion.llm.tasks.questions import questions
from kl_companion.llm.tasks.sorting import sort

TASKS: dict[str, Callable[..., Task]] = {
    "sort": sort,
    "arithmetic": arithmetic,
    "markov": markov,
    "two_styles": two_styles,
    "look_up": look_up,
    "data": data,
    "questions": questions,
}


def make_task(name: str, **options: Any) -> Task:
    """The task of that name.

    Args:
        name: A key of `TASKS`.
        **options: Arguments of the function registered there.

    Raises:
        ValueError: unknown name or option (the known ones are listed), or an option out of range.
    """
    make = find("task", name, TASKS, {})
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(make).parameters)
        raise ValueError(f"task {name!r}: {error}, expected some of its options: {known}") from None
    return make(**options)
