"""OpenRLHF: `compute_approx_kl` in the loss and in the reward.

The package imports DeepSpeed, flash-attention and more; its functions are cut out of the installed files
(see `installed`).
"""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace

import torch

from kl_companion.frameworks.dividing import Division, whitened
from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.installed import SourceLocation, find, load
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

VERSIONS = ("0.11.2",)
_UTILS = "openrlhf/models/utils.py"
_DIVIDED = Division(
    "rewards and penalty",
    "batch",
    SourceLocation(
        "openrlhf/trainer/ppo_utils/experience_maker.py",
        "RemoteExperienceMaker.compute_advantages_and_returns",
    ),
    whitened(unbiased=False, floor="least"),
    instead="--algo.advantage.no_std_norm",
)
_MODES = {
    "token-mean": "sum / tokens of the global batch",
    "seq-mean-token-mean": "mean over sequences of token means",
}


@cache
def functions() -> SimpleNamespace:
    """OpenRLHF's own functions, out of the installed files; `Unavailable` without them."""
    openrlhf = find("openrlhf", VERSIONS)
    utils = load(openrlhf, _UTILS, "KL_IS_WEIGHT_CLIP", "compute_approx_kl", "compute_reward", "masked_mean")
    loss = load(
        openrlhf, "openrlhf/models/loss.py", "aggregate_loss", given={"masked_mean": utils["masked_mean"]}
    )
    return SimpleNamespace(**utils, **loss)


def in_loss(
    kind: str, rollout: Rollout, *, unbiased_gradient: bool, mode: str = "token-mean"
) -> torch.Tensor:
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
        token_level_loss=mode == "token-mean",
        batch_num_tokens=count,
        global_batch_size=count,
    )
    return total


def in_reward(kind: str, rollout: Rollout) -> torch.Tensor:
    """`compute_approx_kl` of the sampler, `compute_reward`, and returns with discount 1."""
    openrlhf = functions()
    kl = openrlhf.compute_approx_kl(rollout.sampled_from, rollout.ref_logp, kl_estimator=kind)
    nothing = torch.zeros(len(rollout.tokens), dtype=kl.dtype)
    rewards = openrlhf.compute_reward(nothing, 1.0, kl, action_mask=rollout.completion_mask)
    return charged(-rewards, rollout, ahead=True)


def _in_loss(kind: str, unbiased: bool, mode: str = "token-mean") -> Setting:
    suffix = ("_unbiased" if unbiased else "") + ("" if mode == "token-mean" else "_seq_mean_token_mean")
    flag = " --algo.kl.unbiased_gradient" if unbiased else ""
    return Setting(
        name=f"openrlhf.loss_{kind}{suffix}",
        option=f"--algo.kl.use_loss --algo.kl.estimator {kind}{flag} --actor.loss_agg_mode {mode}",
        loss=partial(in_loss, kind, unbiased_gradient=unbiased, mode=mode),
        place=SourceLocation(_UTILS, "compute_approx_kl"),
        placement="loss",
        level="token",
        aggregation=f"{mode}: {_MODES[mode]}",
        default="once use_loss is given (OpenRLHF then recommends k2 or k3)"
        if kind == "k1" and not suffix
        else "",
        note="The ratio to the sampler is detached and at most 10." if unbiased else "",
        divided=(_DIVIDED._replace(of="rewards"),),
    )


def _in_reward(kind: str) -> Setting:
    return Setting(
        name=f"openrlhf.reward_{kind}",
        option=f"--algo.kl.init_coef 0.01 --algo.kl.estimator {kind}",
        loss=partial(in_reward, kind),
        place=SourceLocation(_UTILS, "compute_approx_kl"),
        placement="reward",
        level="sequence",
        aggregation="return-to-go (gamma = lambda = 1)",
        default="of the trainer (init_coef is 0.01 by default)" if kind == "k1" else "",
        note="The KL is that of the policy that sampled; PPO's clip is left out.",
        divided=(_DIVIDED,),
    )


FRAMEWORK = Framework(
    name="openrlhf",
    title="OpenRLHF",
    distribution="openrlhf",
    versions=VERSIONS,
    settings=(
        *(_in_reward(kind) for kind in ("k1", "k2", "k3")),
        *(_in_loss(kind, unbiased) for kind in ("k1", "k2", "k3") for unbiased in (False, True)),
        *(_in_loss(kind, False, "seq-mean-token-mean") for kind in ("k2", "k3")),
    ),
    remedy=Remedy(sequence="openrlhf.reward_k1", token="openrlhf.loss_k3_unbiased"),
)
