"""What every test shares."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.typecheck import WrongType  # before kl_companion is imported

gc.disable()  # libraries and tests leave no garbage while they load: see `pytest_collection_finish`
# One thread per process: the runner starts two, and results do not depend on the number of cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
LONGEST = (  # files that are begun first, so that no process is left with one of them at the end
    *("test_fused_modes.py", "test_compiling.py", "test_registry_transforms.py", "test_losses_modes.py"),
    *("test_answer.py", "test_installation.py", "test_auditor_corpus.py", "test_how_to_add.py"),
    *("test_matching_free_coefficients.py", "test_cache.py", "test_direction.py", "test_environment.py"),
    *("test_recipe.py", "test_distributed.py", "test_token_terms_memory.py", "test_auditor.py"),
)
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


def pytest_collection_finish() -> None:
    """Look for garbage from here on, but never again among the libraries and the tests themselves."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long files go first; oracles know every divergence; tests marked gpu or real need what few have."""
    rank = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(LONGEST)))
    oracles = {f"tests.oracles.{name}" for name in ("fused", "optima", "top_k", "worlds")}
    if (oracles | {"tests.support.expected_verdicts"}) & set(sys.modules):
        from tests.support.derived import complete

        complete()
    if config.getoption("markexpr") != "real":
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip(reason="needs the real model: make real"))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
