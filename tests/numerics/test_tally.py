"""The counter of examples: one line per test, with how many were tried and whether it failed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.numerics import conftest


def run(test: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the counter writes of a test that is called as pytest would."""
    monkeypatch.setenv(conftest.VARIABLE, str(path))
    hook = conftest.pytest_runtest_call(SimpleNamespace(obj=test, nodeid="a test"))
    next(hook)
    try:
        test()
    except AssertionError as error:
        with pytest.raises(AssertionError):
            hook.throw(error)
    else:
        with pytest.raises(StopIteration):
            next(hook)
    return json.loads(path.read_text().splitlines()[-1])


@pytest.mark.parametrize("fails", [False, True])
def test_examples_and_failures_are_counted(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    @settings(max_examples=7, database=None, derandomize=True)
    @given(st.integers())
    def property_of_numbers(n: int) -> None:
        seen.append(n)
        assert not fails

    line = run(property_of_numbers, tmp_path / "tally", monkeypatch)
    assert line == {"test": "a test", "examples": len(seen), "failed": fails}
    assert fails or len(seen) == 7


def test_a_test_without_examples_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = run(lambda: None, tmp_path / "tally", monkeypatch)
    assert line == {"test": "a test", "examples": 1, "failed": False}
