"""Liger: the chunked GRPO and JSD losses, from hidden states.

`liger_kernel.chunked_loss` is plain torch and imports as it is. The logits of the rollout are its hidden
states and the identity is the output layer; ``compiled=False``, because what is compiled casts to float32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from kl_companion.frameworks.installed import find, import_from, known
from kl_companion.rollout import Rollout

__all__ = ["grpo", "jsd"]


@cache
def _from(module: str, name: str) -> Any:
    return getattr(import_from(find(*known("liger")), f"liger_kernel.chunked_loss.{module}"), name)


def _head(rollout: Rollout) -> torch.Tensor:
    assert rollout.logits is not None
    return torch.eye(rollout.logits.shape[-1], dtype=rollout.logits.dtype)


def grpo(
    rollout: Rollout,
    *,
    use_bias_correction_kl: bool = False,
    importance_sampling_level: str = "token",
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    """`LigerFusedLinearGRPOLoss` with beta = 1 and advantages of zero, or with advantages and without KL."""
    assert rollout.logits is not None
    count = len(rollout.tokens)
    loss_fn = _from("grpo_loss", "LigerFusedLinearGRPOLoss")(
        beta=1.0 if advantages is None else 0.0,
        compiled=False,
        chunk_size=count,
        use_bias_correction_kl=use_bias_correction_kl,
        importance_sampling_level=importance_sampling_level,
    )
    found = loss_fn(
        rollout.logits,
        _head(rollout),
        rollout.tokens,
        rollout.completion_mask,
        torch.zeros(count, dtype=rollout.logits.dtype) if advantages is None else advantages[:, 0],
        ref_per_token_logps=rollout.ref_logp,
        old_per_token_logps=rollout.sampled_from,
        num_items_in_batch=torch.tensor(float(count), dtype=rollout.logits.dtype),
    )
    loss: torch.Tensor = found[0]
    return loss


def jsd(rollout: Rollout, *, beta: float) -> torch.Tensor:
    """`LigerFusedLinearJSDLoss` without its hard loss, times the tokens of the batch.

    It divides by the number of tokens of the batch, which is a constant there and not to one sequence.
    """
    assert rollout.logits is not None
    assert rollout.ref_logits is not None
    head, labels = _head(rollout), rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)
    loss_fn = _from("jsd_loss", "LigerFusedLinearJSDLoss")(0.0, 1.0, beta=beta, compiled=False)
    loss: torch.Tensor = loss_fn(
        rollout.logits.flatten(0, 1), head, rollout.ref_logits.flatten(0, 1), head, labels.flatten()
    )
    return loss * rollout.completion_mask.sum() / len(rollout.tokens)
