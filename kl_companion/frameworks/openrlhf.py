"""OpenRLHF: `compute_approx_kl` in the loss and in the reward, its advantages and its policy loss.

The package imports DeepSpeed, flash-attention and more; its functions are cut out of the installed files
(see `installed`).
"""

from __future__ import annotations

import itertools
from functools import cache, partial
from types import SimpleNamespace

import torch

from kl_companion.auditing.exact import CastsAsDoubles
from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.installed import find, known, load
from kl_companion.rollout import Rollout

__all__ = ["by", "in_loss", "in_reward", "policy"]

_UTILS = "openrlhf/models/utils.py"
_MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"


@cache
def functions() -> SimpleNamespace:
    """OpenRLHF's own functions, out of the installed files; `Unavailable` without them."""
    openrlhf = find(*known("openrlhf"))
    utils = load(openrlhf, _UTILS, "KL_IS_WEIGHT_CLIP", "compute_approx_kl", "compute_reward", "masked_mean")
    loss = load(
        openrlhf,
        "openrlhf/models/loss.py",
        "aggregate_loss",
        "PolicyLoss",
        given={"masked_mean": utils["masked_mean"], "nn": torch.nn},
    )
    names = ("compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns")
    given = {
        "compute_reward": utils["compute_reward"],
        "apply_length_penalties": lambda _experiences, _args: None,
        "itertools": itertools,
    }
    maker = load(openrlhf, _MAKER, *(f"RemoteExperienceMaker.{n}" for n in names), given=given)
    return SimpleNamespace(**utils, **loss, **maker)


def in_loss(rollout: Rollout, *, kind: str, unbiased_gradient: bool) -> torch.Tensor:
    """`compute_approx_kl` as the actor calls it under ``use_loss``, then `aggregate_loss`."""
    openrlhf, count = functions(), len(rollout.tokens)
    kl = openrlhf.compute_approx_kl(
        rollout.logp,
        rollout.ref_logp,
        log_probs_old=rollout.sampled_from,
        kl_estimator=kind,
        unbiased_gradient=unbiased_gradient,
    )
    total: torch.Tensor = openrlhf.aggregate_loss(
        kl,
        rollout.completion_mask,
        token_level_loss=True,
        batch_num_tokens=count,
        global_batch_size=count,
    )
    return total


def in_reward(rollout: Rollout, *, kind: str) -> torch.Tensor:
    """`compute_approx_kl` of the sampler, `compute_reward`, and returns with discount 1."""
    openrlhf = functions()
    kl = openrlhf.compute_approx_kl(rollout.sampled_from, rollout.ref_logp, kl_estimator=kind)
    nothing = torch.zeros(len(rollout.tokens), dtype=kl.dtype)
    rewards = openrlhf.compute_reward(nothing, 1.0, kl, action_mask=rollout.completion_mask)
    return charged(-rewards, rollout, ahead=True)


def by(returns: torch.Tensor, *, estimator: str) -> torch.Tensor:
    """`compute_advantages_and_returns`, each row a batch of answers of one token to one prompt."""
    openrlhf, n = functions(), returns.shape[1]
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=n),
        reward=SimpleNamespace(clip_range=None),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
        ),
    )
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=args),
        advantage_estimator=estimator,
        kl_ctl=SimpleNamespace(value=0.0),
        get_advantages_and_returns=partial(openrlhf.get_advantages_and_returns, None),
        get_cumulative_returns=partial(openrlhf.get_cumulative_returns, None),
    )

    def one(batch: torch.Tensor) -> torch.Tensor:
        nothing = torch.zeros_like(batch).unsqueeze(1)
        answers = SimpleNamespace(
            rewards=batch, index=range(n), kl=nothing, values=nothing, action_mask=nothing + 1, info={}
        )
        with CastsAsDoubles():
            openrlhf.compute_advantages_and_returns(maker, [answers])
        found: torch.Tensor = answers.advantages
        return found.squeeze(1)

    return torch.stack([one(batch) for batch in returns])


def policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """`PolicyLoss`, token-mean."""
    count = len(rollout.tokens)
    loss: torch.Tensor = functions().PolicyLoss()(
        rollout.logp,
        rollout.sampled_from,
        advantages,
        action_mask=rollout.completion_mask,
        batch_num_tokens=count,
        global_batch_size=count,
    )[0]
    return loss
