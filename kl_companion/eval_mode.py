"""Contexts in which models compute without dropout; every module's mode is put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def eval_mode(*models: torch.nn.Module) -> Iterator[None]:
    """Turn dropout off inside; every module gets its own mode back."""
    modes = [(m, m.training) for model in models for m in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def evaluating(*models: torch.nn.Module) -> Iterator[None]:
    """Turn dropout and gradients off inside, as `eval_mode` does."""
    with eval_mode(*models), torch.no_grad():
        yield
