"""A tiny training of TRL on the CPU: its settings, its reward, its optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig

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
    return GRPOConfig(**{**chosen, **changes})


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
