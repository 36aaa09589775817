"""AReaL: `KLEstimator` in the reward, and the distillation of `grpo_loss_fn`.

The package imports its servers; its functions are cut out of the installed files (see `installed`). Its
advantages are made of whole sequences, prompt included: a prompt of one token stands before the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.auditing.reading.precision import SinglesAsDoubles
from kl_companion.frameworks.installed import Distribution, known, load, loaded_from
from kl_companion.rollout import Rollout

__all__ = ["by_batch", "distilled", "grpo", "penalty"]

_ACTOR = "areal/trainer/ppo/actor.py"
_DATA = "areal/utils/data.py"
_RECOMPUTE = "recompute"


def _unlogged(*_: Any, **__: Any) -> None:
    """Nothing is logged here."""


@loaded_from(*known("areal"))
def functions(areal: Distribution) -> SimpleNamespace:
    """AReaL's own functions, out of the installed files; `Unavailable` without them."""
    data = load(areal, _DATA, "Normalization", "KLEstimator", given={"dist": torch.distributed})
    loss = load(areal, "areal/utils/functional/functional.py", "ppo_actor_loss_fn")
    given = {
        **data,
        **loss,
        **dict.fromkeys(("infer_token_denominator", "_log_proximal_approximation_stats"), _unlogged),
        "stats_tracker": SimpleNamespace(denominator=_unlogged, stat=_unlogged, scalar=_unlogged),
        "PROX_LOGP_METHOD_RECOMPUTE": _RECOMPUTE,
        "PROX_LOGP_METHOD_LOGLINEAR": "loglinear",
        "PROX_LOGP_METHOD_METRICS": "metrics",
    }
    names = ("PPOActor._compute_advantages", "grpo_loss_fn", "_resolve_proximal_logp")
    return SimpleNamespace(**data, **load(areal, _ACTOR, *names, given=given))


def penalty(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """The penalty of `_compute_advantages`, taken from rewards of answers without a critic, [batch, seq]."""
    areal, mask = functions(), rollout.completion_mask
    actor = SimpleNamespace(
        config=SimpleNamespace(
            overlong_reward_penalty=False, use_decoupled_loss=False, recompute_logprob=False
        ),
        reward_bias=0.0,
        reward_scaling=1.0,
        reward_clip=20.0,
        reward_norm=None,
        kl_ctl=1.0,
        kl_estimator=areal.KLEstimator(kind),
        mask_no_eos_with_zero=False,
        discount=1.0,
        gae_lambda=1.0,
        adv_norm=None,
    )
    prompt = torch.zeros_like(mask[:, :1])
    data = {
        "input_ids": torch.cat([prompt.long(), rollout.tokens], 1),
        "attention_mask": torch.cat([prompt + 1, mask], 1),
        "loss_mask": torch.cat([prompt, mask], 1),
        "rewards": torch.zeros_like(mask[:, 0]),
        "logprobs": torch.cat([prompt, rollout.sampled_from], 1),
        "ref_logp": torch.cat([rollout.ref_logp, prompt], 1),  # the engine's are of the next token already
    }
    found: torch.Tensor = areal._compute_advantages(actor, data)["tot_rewards"]
    return -found[:, :-1]


def grpo(rollout: Rollout, advantages: torch.Tensor, **teacher: Any) -> torch.Tensor:
    """`grpo_loss_fn` of advantages [batch, seq]; the tokens of the batch are a constant number."""
    mask, old = rollout.completion_mask, rollout.sampled_from
    data = {"logprobs": old, "prox_logp": old, "advantages": advantages, "loss_mask": mask, **teacher}
    loss: torch.Tensor = functions().grpo_loss_fn(
        rollout.logp, torch.zeros_like(old), data, eps_clip=0.2, eps_clip_higher=None, c_clip=None
    )
    return loss * mask.sum() / len(mask)


def distilled(rollout: Rollout, *, rl_loss_weight: float) -> torch.Tensor:
    """`grpo_loss_fn` with the teacher in the place of the reference and advantages of zero."""
    return grpo(
        rollout,
        torch.zeros_like(rollout.sampled_from),
        teacher_logp=rollout.ref_logp,
        rl_loss_weight=rl_loss_weight,
        distill_loss_weight=1.0,
    )


def by_batch(returns: torch.Tensor) -> torch.Tensor:
    """`Normalization` with its defaults, each row a batch of answers of one token."""
    config = SimpleNamespace(
        mean_level="batch",
        mean_leave1out=False,
        std_level="batch",
        std_unbiased=True,
        group_size=1,
        eps=1e-5,
    )
    normalize: Callable[..., torch.Tensor] = functions().Normalization(config)
    with SinglesAsDoubles():
        columns = [normalize(batch.unsqueeze(1), torch.ones_like(batch).unsqueeze(1)) for batch in returns]
    return torch.cat(columns, 1).T
