"""Unsloth: `grpo_compute_loss`, which replaces the loss of TRL's trainer and reads TRL's arguments.

The package imports Triton and more, and replaces parts of other packages; the function is cut out of the
installed file (see `installed`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from kl_companion.frameworks.installed import SourceLocation, find, known, load
from kl_companion.rollout import Rollout

__all__ = ["grpo"]

_PLACE = SourceLocation("unsloth_zoo/rl_replacements.py", "grpo_compute_loss")


@cache
def _function() -> Callable[..., Any]:
    found: Callable[..., Any] = load(find(*known("unsloth")), *_PLACE[:2], given={"math": math})[
        _PLACE.function
    ]
    return found


def grpo(rollout: Rollout, *, corrected: bool = True, advantages: torch.Tensor | None = None) -> torch.Tensor:
    """`grpo_compute_loss` with beta = 1 and advantages of zero, or with advantages and without KL."""
    count = len(rollout.tokens)
    loss: torch.Tensor = _function()(
        rollout.ref_logp,
        rollout.logp,
        rollout.sampled_from,
        None,
        rollout.tokens,
        rollout.completion_mask,
        1.0 if advantages is None else 0.0,
        torch.zeros_like(rollout.ref_logp[:, 0]) if advantages is None else advantages,
        loss_type="dapo",
        num_items_in_batch=count,
        use_bias_correction_kl=corrected,
    )[0]
    return loss
