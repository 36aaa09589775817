"""Small models for the tests of language models, as fixtures; no test reaches for the network."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# read by the library when it is imported, which is later than this line
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

if TYPE_CHECKING:
    from kl_companion.llm.models import LanguageModel

DIGITS = "0123456789="


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    """A random model over the digits and "=": hidden 32, two layers. A test that trains it copies it."""
    from kl_companion.llm.models import tiny_model
    from kl_companion.llm.tokenizers import character_tokenizer

    return tiny_model(character_tokenizer(DIGITS), hidden=32, layers=2)


@pytest.fixture(scope="module")
def sharp() -> LanguageModel:
    """Random weights, scaled so that the next token depends on what was read."""
    import torch

    from kl_companion.llm.models import tiny_model
    from kl_companion.llm.tokenizers import character_tokenizer

    lm = tiny_model(character_tokenizer(DIGITS), hidden=32, layers=2, seed=3)
    with torch.no_grad():
        for p in lm.model.parameters():
            if p.ndim > 1:
                p.mul_(1.5)
    return lm


@pytest.fixture
def model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in which models that are trained on the spot are kept."""
    folder = tmp_path / "models"
    monkeypatch.setenv("KL_COMPANION_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def task():
    """Two digits whose reward is how many of them are odd: a random model earns some of it."""
    from kl_companion.llm.tasks import make_task

    return replace(
        make_task("sort", digits=2), reward=lambda text, example: sum(c in "13579" for c in text) / 2
    )
