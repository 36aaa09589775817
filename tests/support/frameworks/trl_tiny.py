"""Trainers of the example of `kl_companion.frameworks.trl_example`, and one step of their loss."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path
from typing import Any

import torch
import trl

from kl_companion.frameworks.trl_example import make as with_sgd
from kl_companion.frameworks.trl_example import reward, save_start, settings
from kl_companion.frameworks.trl_trainer import GRPOTrainer
from kl_companion.kl_term import KLTerm

__all__ = ["apart", "make", "reward", "save_start", "settings", "step", "weights", "with_sgd"]


def weights(made: Any) -> dict[str, torch.Tensor]:
    """Parameters by name, detached."""
    return {name: p.detach() for name, p in made.model.named_parameters()}


def make(start: Path, stock: bool = False, kl: Any = None, **changes: Any) -> Any:
    """A trainer of this package with that KL term, or TRL's own."""
    options: dict[str, Any] = {} if stock else {"kl": kl}
    kind = trl.GRPOTrainer if stock else GRPOTrainer
    return with_sgd(kind, start, settings(start.parent / "out", **changes), **options)


def step(trainer: Any, inputs: dict[str, Any], kl: KLTerm | None, **changes: Any) -> torch.Tensor:
    """Loss and gradient of one batch, in one vector."""
    before = {name: getattr(trainer, name) for name in changes}
    kept, trainer.kl = trainer.kl, kl
    for name, value in changes.items():
        setattr(trainer, name, value)
    try:
        trainer.model.zero_grad()
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
    finally:
        trainer.kl = kept
        for name, value in before.items():
            setattr(trainer, name, value)
    return torch.cat(
        [loss.detach().view(1), *(p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None)]
    )


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference."""
    return (a - b).abs().max().item()
