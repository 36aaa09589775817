"""Liger: the chunked GRPO and JSD losses, from hidden states.

`liger_kernel.chunked_loss` is plain torch and imports as it is. The logits of the rollout are its hidden
states and the identity is the output layer; ``compiled=False``, because what is compiled casts to float32.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.installed import SourceLocation, find, import_from
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

VERSIONS = ("0.8.5",)
_LOSS = SourceLocation("liger_kernel/chunked_loss/grpo_loss.py", "LigerFusedLinearGRPOFunction.ppo_loss_fn")
_JSD = SourceLocation(
    "liger_kernel/chunked_loss/jsd_loss.py", "LigerFusedLinearJSDFunction.distillation_loss_fn"
)


@cache
def _from(module: str, name: str) -> Any:
    return getattr(import_from(find("liger-kernel", VERSIONS), f"liger_kernel.chunked_loss.{module}"), name)


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


def _policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    return grpo(rollout, advantages=advantages)


_ALGORITHM = Algorithm("GRPO loss, advantages as handed in", Recipe("mean"), _LOSS, policy=_policy)


def _grpo(corrected: bool, level: str) -> Setting:
    suffix = ("_corrected" if corrected else "") + ("" if level == "token" else "_sequence_ratio")
    return Setting(
        name=f"liger.grpo{suffix}",
        option=f"LigerFusedLinearGRPOLoss(beta=0.04, use_bias_correction_kl={corrected}, "
        f'importance_sampling_level="{level}")',
        loss=partial(grpo, use_bias_correction_kl=corrected, importance_sampling_level=level),
        place=_LOSS,
        placement="loss",
        level="token",
        aggregation="dapo: sum / tokens of the generation batch",
        default="of the class" if not suffix else "",
        algorithms=(_ALGORITHM,),
        beta=None if suffix else 0.04,
    )


def _jsd(name: str, beta: float) -> Setting:
    return Setting(
        name=f"liger.jsd_{name}",
        option=f"LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta={beta})",
        loss=partial(jsd, beta=beta),
        place=_JSD,
        placement="loss",
        level="token",
        aggregation="sum / tokens of the batch",
        default="of the class (which adds half of a hard loss)" if beta == 0.5 else "",
        sampled=False,
    )


FRAMEWORK = Framework(
    name="liger",
    title="Liger-Kernel",
    distribution="liger-kernel",
    versions=VERSIONS,
    settings=(
        *(_grpo(corrected, level) for corrected in (False, True) for level in ("token", "sequence")),
        *(_jsd(name, beta) for name, beta in {"forward": 0.0, "jensen_shannon": 0.5, "reverse": 1.0}.items()),
    ),
    remedy=Remedy(
        sequence=None,
        token="liger.grpo_corrected",
        words="A loss has no reward: the gradient of the sequence KL is the trainer's business.",
    ),
)
