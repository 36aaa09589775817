"""What every test shares."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.typecheck import WrongType  # before kl_companion is imported

# One thread per process: the runner starts two, and results do not depend on the number of cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
collect_ignore = ["support/example_project"]  # of someone else: tests/testing runs it
if hypothesis.settings.get_current_profile_name() != "mutants":  # they have less to do with a failure
    hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("tests")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder that holds the book, the package and the tables."""
    return ROOT


@pytest.fixture
def as_installed() -> Iterator[None]:
    """Without the tests' own checker of types, which would answer before the function does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WrongType)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Oracles know every registered divergence; tests marked gpu run only where there is a CUDA device."""
    oracles = {f"tests.oracles.{name}" for name in ("fused", "optima", "top_k", "worlds")}
    if (oracles | {"tests.support.expected_verdicts"}) & set(sys.modules):
        from tests.support.derived import complete

        complete()
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
