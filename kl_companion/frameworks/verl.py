"""verl: `kl_penalty` in the loss and in the reward, and the losses of its distillation.

Aggregation, penalty, PPO loss and distillation switch are all verl's own text (see `verl_functions`).
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from kl_companion.frameworks.verl_algorithms import policy
from kl_companion.frameworks.verl_functions import (
    Batch,
    Configuration,
    Jagged,
    functions,
    global_batch,
)
from kl_companion.rollout import Rollout, credit

__all__ = ["distilled", "in_loss", "in_reward"]


def in_loss(rollout: Rollout, *, kind: str, mode: str) -> torch.Tensor:
    """The lines of verl's `ppo_loss` under ``use_kl_loss``: `kl_penalty`, then `agg_loss`."""
    verl = functions()
    kl = verl.kl_penalty(logprob=rollout.logp, ref_logprob=rollout.ref_logp, kl_penalty=kind)
    total: torch.Tensor = verl.agg_loss(kl, rollout.completion_mask, mode, **global_batch(rollout))
    return total


def in_reward(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """`apply_kl_penalty`, the returns of its rewards (discount 1), and verl's clipped PPO loss."""
    verl, mask = functions(), rollout.completion_mask
    batch = Batch(
        response_mask=mask,
        token_level_scores=torch.zeros_like(rollout.sampled_from),
        old_log_probs=rollout.sampled_from,
        ref_log_prob=rollout.ref_logp,
    )
    control = SimpleNamespace(value=1.0, update=lambda **_: None)
    data, _ = verl.apply_kl_penalty(SimpleNamespace(batch=batch), control, kind)
    returns = credit(data.batch["token_level_rewards"], mask)
    return policy(rollout, returns)


def distilled(
    rollout: Rollout,
    *,
    kind: str,
    policy_gradient: bool = False,
    loss_max_clamp: float | None = None,
    log_prob_min_clamp: float | None = None,
    k: int = 1,
) -> torch.Tensor:
    """`distillation_loss` with the teacher in the place of the reference."""
    verl, mask = functions(), rollout.completion_mask
    loss_config = Configuration(
        loss_mode=kind,
        loss_max_clamp=loss_max_clamp,
        log_prob_min_clamp=log_prob_min_clamp,
        use_policy_gradient=policy_gradient,
        policy_loss_mode="vanilla",
        topk=k,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        global_batch_info={},
    )
    distillation_config = SimpleNamespace(distillation_loss=loss_config)
    output = {"log_probs": rollout.logp}
    if kind == "forward_kl_topk":
        head = rollout.ref_logp_all.topk(k, dim=-1)
        student = rollout.logits
        assert student is not None
        found = verl.top_k(
            student_logits=student.flatten(0, 1).unsqueeze(0),
            teacher_topk_log_probs=Jagged(is_nested=True, content=head.values.flatten(0, 1)),
            teacher_topk_ids=Jagged(is_nested=True, content=head.indices.flatten(0, 1)),
            config=distillation_config,
            data_format="thd",
        )
        output |= {name: x.view(mask.shape) for name, x in found.items()}
    data = {
        "response_mask": mask,
        "teacher_logprobs": rollout.ref_logp.unsqueeze(-1),
        "old_log_probs": rollout.sampled_from,
        **global_batch(rollout),
    }
    config = SimpleNamespace(loss_agg_mode="token-mean", loss_scale_factor=None, global_batch_info={})
    loss: torch.Tensor
    loss, _ = verl.distillation_loss(config, distillation_config, output, data)
    return loss
