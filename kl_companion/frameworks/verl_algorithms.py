"""verl's own functions of the installed release: advantages of groups and batches, and its actor's loss."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import find, known
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.verl import CORE, PADDED, PLAIN

__all__ = ["by_batch", "by_group"]


@cache
def core(name: str) -> Any:
    """A function of `core_algos`; `Unavailable` without verl."""
    return link(find(*known("verl")), CORE, name, given=PLAIN)


@cache
def ppo_loss() -> Any:
    """The actor's loss, on batches that are padded; `Unavailable` without verl."""
    given = {**PADDED, "get_policy_loss_fn": lambda _: core("compute_policy_loss_vanilla")}
    return link(find(*known("verl")), "verl/workers/utils/losses.py", "ppo_loss", given=given)


def by_batch(returns: torch.Tensor, *, name: str) -> torch.Tensor:
    """An estimator of batches without a critic, each row a batch of answers of one token."""

    def one(batch: torch.Tensor) -> torch.Tensor:
        column, ones = batch.unsqueeze(1), torch.ones_like(batch).unsqueeze(1)
        if "gae" in name:
            found = core(name)(column, torch.zeros_like(ones), ones, 1.0, 1.0)
        else:
            found = core(name)(column, ones, SimpleNamespace(gamma=1.0))
        advantages: torch.Tensor = found[0]
        return advantages.squeeze(1)

    return torch.stack([one(batch) for batch in returns])


def by_group(returns: torch.Tensor, *, name: str) -> torch.Tensor:
    """An estimator of groups, each row the answers to one prompt, of one token."""
    prompt = torch.arange(len(returns)).repeat_interleave(returns.shape[1]).tolist()
    column = returns.reshape(-1, 1)
    found: torch.Tensor
    found, _ = core(name)(column, torch.ones_like(column), prompt)
    return found.view_as(returns)
