"""TRL: the KL term of GRPO, RLOO's penalty, the moving reference; distillation is in `trl_distillation`.

Everything is TRL's own. `GRPOTrainer._compute_loss` and `RLOOTrainer._compute_loss` are called on a
stand-in for the trainer: an object with the attributes that they read, whose forward pass returns the
rollout's log-probs. Where the KL term is looked at alone, GRPO's advantages are zero. How TRL makes
advantages stands among its lines for several processes, and is written here as a formula.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.trl_distillation import from_trl, trainer_stand_in
from kl_companion.rollout import Rollout, masked

__all__ = ["grpo", "rloo"]


def _inputs(rollout: Rollout, **more: Any) -> dict[str, Any]:
    nothing = rollout.tokens[:, :0]
    return {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": rollout.tokens,
        "completion_mask": rollout.completion_mask,
        **more,
    }


def grpo(
    rollout: Rollout,
    *,
    use_bias_correction_kl: bool = True,
    importance_sampling_level: str = "token",
    loss_type: str = "dapo",
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    """`GRPOTrainer._compute_loss` with beta = 1 and advantages of zero, or with advantages and without KL."""
    count, length = rollout.tokens.shape
    trainer = trainer_stand_in(
        rollout,
        args=SimpleNamespace(
            use_bias_correction_kl=use_bias_correction_kl, delta=None, steps_per_generation=1
        ),
        beta=1.0 if advantages is None else 0.0,
        importance_sampling_level=importance_sampling_level,
        loss_type=loss_type,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        current_gradient_accumulation_steps=1,
        max_completion_length=length,
    )
    inputs = _inputs(
        rollout,
        advantages=torch.zeros(count, dtype=rollout.logp.dtype) if advantages is None else advantages,
        ref_per_token_logps=rollout.ref_logp,
        old_per_token_logps=rollout.sampled_from,
        num_items_in_batch=torch.tensor(float(count), dtype=rollout.logp.dtype),
    )
    loss: torch.Tensor = from_trl("trainer.grpo_trainer", "GRPOTrainer")._compute_loss(trainer, None, inputs)
    return loss


def rloo(rollout: Rollout, advantages: torch.Tensor | None = None) -> torch.Tensor:
    """`RLOOTrainer._compute_loss`; by default of minus the KL of each sequence, a baseline left out.

    Args:
        rollout: The samples.
        advantages: [batch, seq]; that of a sequence is that of its first token.
    """
    mask = rollout.completion_mask
    if advantages is None:
        each = -masked(rollout.sampled_from - rollout.ref_logp, mask).sum(-1).detach()
    else:
        each = advantages[:, 0]
    inputs = _inputs(rollout, advantages=each, old_logps=masked(rollout.sampled_from, mask).sum(-1))
    trainer_class = from_trl("trainer.rloo_trainer", "RLOOTrainer")
    loss: torch.Tensor = trainer_class._compute_loss(trainer_stand_in(rollout), None, inputs)
    return loss


def anchor_decay(ref_model_mixup_alpha: float) -> float:
    """The EMA decay of TRL's ``sync_ref_model``: anchor <- alpha x policy + (1 - alpha) x anchor.

    The anchor moves every ``ref_model_sync_steps`` optimizer steps, which is the ``period`` of
    `kl_companion.tabular.follow_anchor`. TRL's defaults, alpha = 0.6 and 512 steps, are a decay of 0.4.

    Raises:
        ValueError: alpha outside [0, 1].
    """
    if not 0 <= ref_model_mixup_alpha <= 1:
        raise ValueError(f"ref_model_mixup_alpha is {ref_model_mixup_alpha}, expected a number from 0 to 1")
    return 1 - ref_model_mixup_alpha
