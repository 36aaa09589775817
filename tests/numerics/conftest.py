"""Counts the examples that each test tries: `make reliability` prints how many there were."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "KL_COMPANION_TALLY"


def counted(function: Callable[..., Any], tried: list[int]) -> Callable[..., Any]:
    """The same function, which adds one to ``tried[0]`` at every call."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        tried[0] += 1
        return function(*args, **options)

    return call


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Append a line of JSON to the file that the variable names: test, examples, whether it failed."""
    path = os.environ.get(VARIABLE)
    if path is None:
        return (yield)
    handle, tried, failed = getattr(item.obj, "hypothesis", None), [0], True
    if handle is not None:
        plain, handle.inner_test = handle.inner_test, counted(handle.inner_test, tried)
    try:
        result = yield
        failed = False
        return result
    finally:
        if handle is not None:
            handle.inner_test = plain
        line = {"test": item.nodeid, "examples": tried[0] if handle else 1, "failed": failed}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
