"""Tunix's own functions, cut out of the installed files and run with PyTorch in the place of JAX.

See `jax_numpy`. The model is stood in for by a rollout, whose forward pass returns its log-probs; entropies
are only logged, and are those of logits of zero.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from kl_companion.auditing.reading.precision import CastsAsDoubles
from kl_companion.frameworks.installed import Distribution, known, load, loaded_from
from kl_companion.frameworks.jax_numpy import array, jax, jnp, optax
from kl_companion.rollout import Rollout

__all__ = ["by_batch", "by_group", "dr_grpo_policy", "grpo_policy", "ppo_policy"]

COMMON = "tunix/rl/common.py"
CORE = "tunix/rl/algo_core.py"
LOGIT = "tunix/distillation/strategies/logit.py"
_JAX: dict[str, Any] = {"jnp": jnp, "jax": jax, "np": np}


def _log_probs(rollout: Rollout, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What a forward pass of the model returns: log-probs [batch, seq], and logits that are only logged."""
    return array(rollout.logp), array(torch.zeros_like(rollout.logp).unsqueeze(-1))


@loaded_from(*known("tunix"))
def functions(tunix: Distribution) -> SimpleNamespace:
    """Tunix's own functions, out of the installed files; `Unavailable` without them."""
    names = ("compute_kl_divergence", "aggregate_loss", "_check_get_norm")
    common = load(tunix, COMMON, *names, given=_JAX)
    core = load(
        tunix,
        CORE,
        *("grpo_loss_fn", "ppo_policy_loss_fn", "compute_advantages", "compute_entropy_from_logits"),
        *("masked_mean", "masked_var", "masked_whiten"),
        given={
            **_JAX,
            "nnx": SimpleNamespace(split=lambda model: (model, None)),
            "common": SimpleNamespace(**common, compute_per_token_logps=_log_probs),
        },
    )
    logit = load(tunix, LOGIT, "LogitStrategy.compute_loss", given={**_JAX, "optax": optax})
    return SimpleNamespace(**common, **core, logit_loss=logit["compute_loss"])


def policy_loss(name: str, rollout: Rollout, advantages: torch.Tensor, **options: Any) -> torch.Tensor:
    """`grpo_loss_fn` or `ppo_policy_loss_fn` with the configuration's own defaults; a scalar.

    Args:
        name: Which.
        rollout: The samples.
        advantages: [batch, seq].
        **options: Of the configuration.
    """
    example = SimpleNamespace(
        prompt_ids=rollout.tokens[:, :0],
        completion_ids=rollout.tokens,
        completion_mask=array(rollout.completion_mask),
        advantages=array(advantages),
        old_per_token_logps=array(rollout.sampled_from),
        ref_per_token_logps=array(rollout.ref_logp),
    )
    config = SimpleNamespace(
        **{
            "beta": 0.0,
            "epsilon": 0.2,
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "entropy_coef": None,
            "loss_algo": "grpo",
            "loss_agg_mode": "sequence-mean-token-mean",
            "kl_loss_mode": "kl",
            "kl_clamp_value": None,
            "temperature": 1.0,
            **options,
        }
    )
    loss: torch.Tensor = getattr(functions(), name)(rollout, example, config, pad_id=0, eos_id=0)[0]
    return loss.as_subclass(torch.Tensor)


def grpo_policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """`grpo_loss_fn` of advantages [batch, seq] and without KL, in double precision."""
    with CastsAsDoubles():
        return policy_loss("grpo_loss_fn", rollout, advantages)


def dr_grpo_policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """The same as ``DrGRPOConfig`` aggregates it, times the longest length, which is a constant."""
    with CastsAsDoubles():
        loss = policy_loss("grpo_loss_fn", rollout, advantages, loss_agg_mode="sequence-mean-token-scale")
    return loss * rollout.tokens.shape[1]


def ppo_policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """`ppo_policy_loss_fn` of advantages [batch, seq], in double precision."""
    with CastsAsDoubles():
        return policy_loss("ppo_policy_loss_fn", rollout, advantages)


def by_group(returns: torch.Tensor) -> torch.Tensor:
    """`compute_advantages` of the rewards of groups, [groups, n]; of the same shape."""
    found = functions().compute_advantages(returns.reshape(-1).numpy(), returns.shape[1])
    return torch.from_numpy(found).view_as(returns)


def by_batch(returns: torch.Tensor) -> torch.Tensor:
    """`masked_whiten`, with which `compute_gae_advantages` ends; each row of [groups, n] is a batch."""

    def one(batch: torch.Tensor) -> torch.Tensor:
        with CastsAsDoubles():
            found: torch.Tensor = functions().masked_whiten(array(batch), array(torch.ones_like(batch)))
        return found.as_subclass(torch.Tensor)

    return torch.stack([one(batch) for batch in returns])
