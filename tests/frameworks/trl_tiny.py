"""A tiny training of TRL on the CPU: its model, settings, reward and optimizer, and one step of its loss."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset

from kl_companion.frameworks.kl_term import KLTerm
from kl_companion.frameworks.trl_trainer import GRPOTrainer
from kl_companion.llm.models import save_model, tiny_model
from kl_companion.llm.tokenizers import character_tokenizer

PROMPTS = ["12", "345=", "6", "7890", "1=", "2", "33", "404"]


def reward(completions: list[str], **rest: Any) -> list[float]:
    """A tenth of the sum of the digits that were written."""
    return [sum(int(c) for c in text if c.isdigit()) / 10 for text in completions]


def settings(folder: Path, **changes: Any) -> Any:
    """Settings of a few steps: one group of four completions, all kept on the CPU, nothing reported."""
    chosen: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 6,
        "max_steps": 2,
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 10.0,
        "beta": 0.1,
        "seed": 3,
    }
    return trl.GRPOConfig(**{**chosen, **changes})


def with_sgd(kind: Any, start: Path, args: Any, **options: Any) -> Any:
    """A trainer of that kind, whose steps are the gradient times the rate."""
    made = kind(
        model=str(start),
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        **options,
    )
    made.optimizer = torch.optim.SGD(made.model.parameters(), lr=args.learning_rate)
    return made


def weights(made: Any) -> dict[str, torch.Tensor]:
    """Parameters by name, detached."""
    return {name: p.detach() for name, p in made.model.named_parameters()}


def save_start(folder: Path) -> Path:
    """A random Qwen2 of 2,880 parameters and its tokenizer, from where TRL reads policy and reference."""
    save_model(tiny_model(character_tokenizer("0123456789="), hidden=16, layers=1, heads=2), folder)
    return folder


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
