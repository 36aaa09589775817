"""axolotl: the loss of its asynchronous GRPO trainer, and its distillation of a teacher's top-k.

Its other GRPO trainer is TRL's own (see `trl`). The functions are cut out of the installed files (see
`installed`); the trainer's loss is called on a stand-in as TRL's is.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import Distribution, SourceLocation, known, load, loaded_from
from kl_companion.frameworks.trl import stand_in
from kl_companion.rollout import Rollout

__all__ = ["distillation", "trainer_loss"]

_TRAINER = "axolotl/core/trainers/grpo/async_trainer.py"
_LOSS = SourceLocation(_TRAINER, "AsyncGRPOTrainer._compute_loss")
_KD = SourceLocation(
    "axolotl/integrations/kd/kernels/liger.py", "LigerFusedLinearKLTopKLogprobFunction.distillation_loss_fn"
)


@loaded_from(*known("axolotl"))
def functions(axolotl: Distribution) -> SimpleNamespace:
    """axolotl's own functions, out of the installed files; `Unavailable` without them."""
    utils = load(axolotl, "axolotl/integrations/kd/utils.py", "normalize_logprobs")
    metrics = {"nanmin": torch.min, "nanmax": torch.max}
    return SimpleNamespace(
        **load(axolotl, _TRAINER, _LOSS.function, given=metrics),
        **load(axolotl, _KD.file, _KD.function, given=utils),
    )


def trainer_loss(
    rollout: Rollout,
    advantages: torch.Tensor | None = None,
    *,
    use_bias_correction_kl: bool = False,
    loss_type: str = "dapo",
) -> torch.Tensor:
    """`AsyncGRPOTrainer._compute_loss` with beta = 1 and advantages of zero, or advantages without a KL."""
    count = len(rollout.tokens)
    dtype = rollout.logp.dtype

    def scored(*_: Any, compute_aux_loss: bool | None = None, **__: Any) -> tuple[torch.Tensor | None, ...]:
        """Return log-probs and entropies, and since 0.20 a third value, the loss of a mixture's router."""
        both = (rollout.logp, rollout.logp.detach())
        return both if compute_aux_loss is None else (*both, None)

    trainer = stand_in(
        rollout,
        {},
        args=SimpleNamespace(use_bias_correction_kl=use_bias_correction_kl, delta=None),
        beta=1.0 if advantages is None else 0.0,
        importance_sampling_level="token",
        is_fsdp_enabled=False,
        loss_type=loss_type,
        top_entropy_quantile=1.0,
        _get_per_token_logps_and_entropies=scored,
    )
    nothing = rollout.tokens[:, :0]
    inputs = {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": rollout.tokens,
        "completion_mask": rollout.completion_mask,
        "advantages": torch.zeros(count, dtype=dtype) if advantages is None else advantages,
        "old_per_token_logps": rollout.sampled_from,
        "ref_per_token_logps": rollout.ref_logp,
        "num_items_in_batch": torch.tensor(float(count), dtype=dtype),
    }
    loss: torch.Tensor = functions()._compute_loss(trainer, None, inputs)
    return loss


def distillation(rollout: Rollout, *, beta: float, k: int, normalize_topk: bool) -> torch.Tensor:
    """`distillation_loss_fn` of the reference's k likeliest tokens, renormalized as the data set stores them.

    Args:
        rollout: The samples.
        beta: 0 for the forward KL, 1 for the reverse KL.
        k: Size of the head.
        normalize_topk: ``kd_normalize_topk``: renormalize the student's head too.
    """
    assert rollout.logits is not None
    inside = rollout.completion_mask.bool()
    head = rollout.ref_logp_all[inside].topk(k, dim=-1)
    total: torch.Tensor = functions().distillation_loss_fn(
        rollout.logits[inside],
        head.indices,
        head.values.log_softmax(-1),
        torch.ones_like(head.indices),
        beta=beta,
        normalize_topk=normalize_topk,
    )
    return total / len(rollout.tokens)
