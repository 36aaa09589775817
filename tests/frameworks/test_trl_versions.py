"""The module of TRL's trainer where TRL is missing, or is not the version that it was compared with."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

import importlib.util
import sys
from types import ModuleType

import pytest
import trl

from kl_companion.frameworks import trl_trainer


def again() -> ModuleType:
    """The trainer's module, executed once more."""
    spec = importlib.util.spec_from_file_location("again", trl_trainer.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_trl_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(
        ImportError, match=r"needs trl.*'kl-companion\[trl\]' \(trl 1\.16\.0 is known to work\)"
    ):
        again()


def test_another_version_of_trl_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trl, "__version__", "9.9.9")
    with pytest.warns(UserWarning, match=r"trl is 9\.9\.9; .* compared with the stock trainer of 1\.16\.0"):
        again()
    monkeypatch.setattr(trl, "GRPOTrainer", object)
    with pytest.raises(ImportError, match=r"trl 9\.9\.9 has no GRPOTrainer\._compute_loss.*trl==1\.16\.0"):
        again()
