"""AReaL: `KLEstimator` in the reward, and the distillation of `grpo_loss_fn`.

The package imports its servers; its functions are cut out of the installed files (see `installed`). Its
advantages are made of whole sequences, prompt included: a prompt of one token stands before the answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.auditing.exact import SinglesAsDoubles
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import TOKENS, in_reward
from kl_companion.frameworks.installed import Distribution, SourceLocation, load, loaded_from
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

VERSIONS = ("1.0.4",)
_ACTOR = "areal/trainer/ppo/actor.py"
_DATA = "areal/utils/data.py"
_LOSS = SourceLocation(_ACTOR, "grpo_loss_fn")
_RECOMPUTE = "recompute"


def _unlogged(*_: Any, **__: Any) -> None:
    """Nothing is logged here."""


@loaded_from("areal", VERSIONS)
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


def penalty(kind: str, rollout: Rollout) -> torch.Tensor:
    """What `_compute_advantages` subtracts from the rewards of answers without a critic, [batch, seq]."""
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


def grpo(rollout: Rollout, weights: torch.Tensor, **teacher: Any) -> torch.Tensor:
    """`grpo_loss_fn` of advantages [batch, seq]; the tokens of the batch are a constant number."""
    mask, old = rollout.completion_mask, rollout.sampled_from
    data = {"logprobs": old, "prox_logp": old, "advantages": weights, "loss_mask": mask, **teacher}
    loss: torch.Tensor = functions().grpo_loss_fn(
        rollout.logp, torch.zeros_like(old), data, eps_clip=0.2, eps_clip_higher=None, c_clip=None
    )
    return loss * mask.sum() / len(mask)


def distilled(rl_loss_weight: float, rollout: Rollout) -> torch.Tensor:
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


_ALGORITHMS = (
    Algorithm(
        "PPO",
        Recipe("none", aggregate="sum"),
        SourceLocation(_ACTOR, "PPOActor._compute_advantages"),
        policy=grpo,
    ),
    Algorithm(
        "PPO, advantages normalized",
        Recipe("whitened", normalize=by_batch, aggregate="sum"),
        SourceLocation(_DATA, "Normalization"),
        when="actor.adv_norm is given, as in the examples (std_level: batch)",
        instead="adv_norm.std_level: null",
        policy=grpo,
    ),
)


def _in_reward(kind: str) -> Setting:
    return in_reward(
        f"areal.reward_{kind}",
        f"actor: kl_ctl=0.1, kl_estimator={kind}",
        partial(penalty, kind),
        SourceLocation(_DATA, "KLEstimator"),
        ahead=True,
        default="of PPOActor" if kind == "k1" else "",
        note="With discount and lambda of 1, its defaults. The KL is that of the policy that sampled; PPO's "
        "clip is left out.",
        algorithms=_ALGORITHMS,
        beta=0.1 if kind == "k1" else None,
    )


def _distilled(name: str, option: str, weight: float, default: str = "") -> Setting:
    return Setting(
        name=f"areal.distillation_{name}",
        option=f"actor: rl_loss_weight={option} with a teacher",
        loss=partial(distilled, weight),
        place=_LOSS,
        placement="loss",
        level="token",
        aggregation=TOKENS,
        default=default,
    )


FRAMEWORK = Framework(
    name="areal",
    title="AReaL",
    distribution="areal",
    versions=VERSIONS,
    settings=(
        *(_in_reward(kind) for kind in ("k1", "k2", "k3")),
        _distilled("joint", "1.0", 1.0, "of distillation (rl_loss_weight is 1.0 by default)"),
        _distilled("alone", "0", 0.0),
    ),
    remedy=Remedy(sequence="areal.reward_k1", token="areal.distillation_alone"),
)
