"""SkyRL: `compute_approx_kl` in the loss and in the reward, its advantages and its policy loss.

The package imports Ray and more; its functions are cut out of the installed files (see `installed`). The
penalty of its example of on-policy distillation is a formula: examples are not in the package.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.auditing.reading.precision import CastsAsDoubles
from kl_companion.frameworks.installed import Distribution, known, load, loaded_from
from kl_companion.rollout import Rollout

__all__ = ["in_loss", "of_answers", "of_batches", "penalty", "policy"]

_UTILS = "skyrl/backends/skyrl_train/utils/"
_CORE = f"{_UTILS}ppo_utils.py"
_TRAINER = "skyrl/train/trainer.py"
_PENALTY = "RayPPOTrainer.apply_reward_kl_penalty"


class _Batch(dict[str, Any]):
    """A dictionary of tensors with a place for metrics, which is what is read of SkyRL's batches."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__(tensors)
        self.metadata: dict[str, Any] = {}


@loaded_from(*known("skyrl"))
def functions(skyrl: Distribution) -> SimpleNamespace:
    """SkyRL's own functions, out of the installed files; `Unavailable` without them."""
    means = load(skyrl, f"{_UTILS}torch_utils.py", "masked_mean", "safe_exp_delta")
    correction = load(skyrl, f"{_UTILS}off_policy_correction_utils.py", "apply_off_policy_correction")
    core = load(
        skyrl,
        _CORE,
        *("compute_approx_kl", "masked_var", "masked_whiten", "reduce_loss", "ppo_policy_loss"),
        *("apply_loss_reduction_to_advantages_minibatch", "compute_gae_advantage_return"),
        *("compute_grpo_outcome_advantage", "compute_rloo_outcome_advantage"),
        "compute_reinforce_plus_plus_outcome_advantage",
        given={**means, **correction, "defaultdict": defaultdict, "logger_": None},
    )
    trainer = load(skyrl, _TRAINER, _PENALTY, given={**means, **core})
    return SimpleNamespace(**means, **core, **trainer)


def in_loss(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """The lines of SkyRL's worker under ``use_kl_loss``: `compute_approx_kl`, then `masked_mean`."""
    skyrl, mask = functions(), rollout.completion_mask
    kl = skyrl.compute_approx_kl(rollout.logp, rollout.ref_logp, loss_mask=mask, kl_estimator_type=kind)
    total: torch.Tensor = skyrl.masked_mean(kl, mask, dim=-1).mean()
    return total


def penalty(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """What `apply_reward_kl_penalty` subtracts from the rewards, [batch, seq]."""
    algorithm = SimpleNamespace(kl_estimator_type=kind, kl_loss_coef=1.0)
    trainer = SimpleNamespace(
        cfg=SimpleNamespace(trainer=SimpleNamespace(algorithm=algorithm)),
        reward_kl_controller=None,
        all_metrics={},
    )
    batch = _Batch(
        loss_mask=rollout.completion_mask,
        rewards=torch.zeros_like(rollout.sampled_from),
        base_action_log_probs=rollout.ref_logp,
        action_log_probs=rollout.sampled_from,
    )
    found: torch.Tensor = functions().apply_reward_kl_penalty(trainer, batch)["rewards"]
    return -found


def policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """`ppo_policy_loss`, token_mean: a mean over tokens, where the term in the loss is one over answers."""
    skyrl, mask = functions(), rollout.completion_mask
    scaled = skyrl.apply_loss_reduction_to_advantages_minibatch(
        advantages, mask, "token_mean", len(mask), mask.shape[1]
    )
    config = SimpleNamespace(
        policy_loss_type="regular", eps_clip_low=0.2, eps_clip_high=0.2, off_policy_correction=None
    )
    with CastsAsDoubles():
        loss: torch.Tensor
        loss, _ = skyrl.ppo_policy_loss(rollout.logp, rollout.sampled_from, scaled, config, mask)
    return loss


def of_answers(returns: torch.Tensor, *, name: str) -> torch.Tensor:
    """An estimator of groups, each row the answers to one prompt, of one token."""
    prompt = torch.arange(len(returns)).repeat_interleave(returns.shape[1]).tolist()
    column = returns.reshape(-1, 1)
    found: torch.Tensor = getattr(functions(), name)(column, torch.ones_like(column), prompt)[0]
    return found.view_as(returns)


def of_batches(returns: torch.Tensor, *, name: str) -> torch.Tensor:
    """An estimator of batches without a critic, each row a batch of answers of one token."""
    estimator: Callable[..., tuple[torch.Tensor, torch.Tensor]] = getattr(functions(), name)

    def one(batch: torch.Tensor) -> torch.Tensor:
        column = batch.unsqueeze(1)
        nothing, mask = torch.zeros_like(column), torch.ones_like(column)
        more = {"values": nothing, "lambd": 1.0} if "gae" in name else {}
        return estimator(token_level_rewards=column, response_mask=mask, gamma=1.0, **more)[0].squeeze(1)

    return torch.stack([one(batch) for batch in returns])
