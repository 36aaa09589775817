"""torchrl: the KL terms of `GRPOLoss`, its penalty in the reward, and its losses of distillation.

The losses are the installed ones (see `installed`): `GRPOLoss.forward` and what it calls run on stand-ins for
the loss module and for the dictionary of tensors. The KL term of GRPO is a mean over all positions of the
padded batch, prompts and padding among them, whatever the ``aggregation``; its policy loss is a mean over the
answers' tokens. The rollouts here have no prompts, so that a position is one of a padded answer.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.torchrl_functions import (
    KEYS,
    Tensors,
    functions,
)
from kl_companion.rollout import Rollout

__all__ = ["distilled", "grpo", "in_reward", "sft"]


def grpo(
    rollout: Rollout,
    *,
    part: str,
    mode: str = "token_mean",
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    """One part of what `GRPOLoss.forward` returns, with coefficients of 1; a scalar.

    Args:
        rollout: The samples.
        part: ``"loss_kl_to_ref"``, ``"loss_kl_to_inference"`` or ``"loss_objective"``.
        mode: torchrl's own option ``aggregation``.
        advantages: [batch, seq]; zero if there are none.
    """
    dist = SimpleNamespace(mask=rollout.completion_mask.bool())
    loss_module = functions().GRPO(
        tensor_keys=KEYS,
        kl_mask_threshold=None,
        entropy_bonus=False,
        aggregation=mode,
        reduction="mean",
        kl_to_ref_coeff=1.0,
        kl_to_inference_coeff=1.0,
        clip_epsilon_low=torch.tensor(0.2, dtype=rollout.logp.dtype),
        clip_epsilon_high=torch.tensor(0.2, dtype=rollout.logp.dtype),
        ref_log_prob_padding_side="left",
        ref_log_prob_padding_value=0.0,
        output_type=SimpleNamespace(from_tensordict=lambda found: found),
        _get_cur_log_prob=lambda _: (rollout.logp, dist, False),
        _loss_mask_key=None,
    )
    a = torch.zeros_like(rollout.sampled_from) if advantages is None else advantages
    batch = Tensors(
        action=rollout.tokens,
        advantage=a.unsqueeze(-1),
        sampled=rollout.sampled_from,
        reference=rollout.ref_logp,
    )
    found: torch.Tensor = loss_module.forward(batch)[part]
    return found


def distilled(rollout: Rollout, *, kl_direction: str, normalize_by_seq_length: bool) -> torch.Tensor:
    """`DistillationLoss.forward` with the teacher in the place of the reference."""
    mask = [rollout.completion_mask.bool()]
    student = Tensors(log_probs=[rollout.logp])
    loss_module = SimpleNamespace(
        tensor_keys=KEYS,
        actor_network=lambda _: student,
        assistant_only=True,
        kl_direction=kl_direction,
        normalize_by_seq_length=normalize_by_seq_length,
        reduction="mean",
        _device_fallback=None,
        _get_masks=lambda *_: (mask, mask, mask),
    )
    batch = Tensors(history=None, teacher=[rollout.ref_logp])
    loss: torch.Tensor = functions().distillation(loss_module, batch).loss_distill
    return loss


def sft(rollout: Rollout) -> torch.Tensor:
    """`SFTLoss._kl_to_ref`, times the tokens of the batch: their number is a constant there."""
    inside = rollout.completion_mask.bool()
    both = [rollout.logp[inside]], [rollout.ref_logp[inside]]
    loss: torch.Tensor = functions().sft(SimpleNamespace(kl_to_ref_coeff=1.0), *both)[0]
    return loss * inside.sum() / len(inside)


def in_reward(rollout: Rollout, *, ahead: bool) -> torch.Tensor:
    """`KLComputation._step` of the sampler, charged to its own token or to what was before it."""
    transform = SimpleNamespace(
        gen_log_probs_full_key="sampled",
        ref_log_probs_full_key="reference",
        kl_key="kl",
        add_to_reward=True,
        coeff=1.0,
    )
    nothing = torch.zeros_like(rollout.sampled_from).unsqueeze(-1)
    batch = Tensors(sampled=[rollout.sampled_from], reference=[rollout.ref_logp], reward=[nothing])
    (rewards,) = functions().reward(transform, batch, batch)["reward"]
    return charged(-rewards.squeeze(-1), rollout, ahead=ahead)
