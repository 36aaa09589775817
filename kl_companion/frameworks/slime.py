"""slime: a formula, because it is not on the registry; `miles` is a fork of it and takes its parts."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward, ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

_FILE = "slime/utils/ppo_utils.py"
_KL = SourceLocation(_FILE, "compute_approx_kl")
CHOICE = "--advantage-estimator"
_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-6, aggregate="sequence_mean"),
    SourceLocation("slime/ray/rollout.py", "RolloutManager._post_process_rewards"),
    instead="--disable-grpo-std-normalization",
    after=True,
)
_PPO = Algorithm(
    "PPO",
    Recipe("none", aggregate="sequence_mean"),
    SourceLocation(_FILE, "get_advantages_and_returns_batch"),
)
_PLUS_PLUS = Algorithm(
    "REINFORCE++",
    Recipe("whitened", eps=1e-8, aggregate="sequence_mean"),
    SourceLocation("slime/utils/distributed_utils.py", "distributed_masked_whiten"),
)
ALGORITHMS = (
    _GRPO,
    _PPO._replace(when=f"{CHOICE} ppo"),
    _PLUS_PLUS._replace(when=f"{CHOICE} reinforce_plus_plus --normalize-advantages"),
)


def terms(kind: str, unbiased: bool, rollout: Rollout) -> torch.Tensor:
    """`compute_approx_kl`: only low_var_kl is clamped, after the ratio; [batch, seq]."""
    low_variance = kind == "low_var_kl"
    return estimate(
        "k3" if low_variance else kind,
        rollout,
        output_clamp=10.0 if low_variance else None,
        weight=ratio(rollout) if unbiased else None,
    )


def _in_loss(kind: str, unbiased: bool) -> Setting:
    flag = " --use-unbiased-kl" if unbiased else ""
    return in_loss(
        f"slime.loss_{kind}{'_unbiased' if unbiased else ''}",
        f"--use-kl-loss --kl-loss-coef ... --kl-loss-type {kind}{flag}",
        partial(terms, kind, unbiased),
        _KL,
        how="sequences",
        default="once --use-kl-loss and a coefficient are given" if kind == "k1" and not unbiased else "",
        algorithms=ALGORITHMS,
        beta=0.0 if kind == "k1" and not unbiased else None,
    )


def ignored(rollout: Rollout) -> torch.Tensor:
    """`get_grpo_returns` is handed the KL and does not use it; [batch, seq]."""
    return torch.zeros_like(rollout.sampled_from)


k1: Terms = partial(estimate, "k1", of="sampler")

FRAMEWORK = Framework(
    name="slime",
    title="slime",
    distribution="",
    versions=("commit 624b824a8 (2026-08-21, v0.3.1-38)",),
    settings=(
        *(
            _in_loss(kind, unbiased)
            for kind in ("k1", "k2", "k3", "low_var_kl")
            for unbiased in (False, True)
        ),
        in_reward(
            "slime.reward_grpo",
            "--advantage-estimator grpo --kl-coef ... (also gspo, cispo)",
            ignored,
            SourceLocation(_FILE, "get_grpo_returns"),
            ahead=True,
            note="The KL is computed, handed on, and not used.",
            algorithms=(_GRPO,),
            beta=0.0,
        ),
        in_reward(
            "slime.reward_ppo",
            "--advantage-estimator ppo --kl-coef ...",
            k1,
            SourceLocation(_FILE, "get_advantages_and_returns_batch"),
            ahead=True,
            note="With gamma and lambda of 1, its defaults; --normalize-advantages is off by default.",
            algorithms=(_PPO,),
            beta=0.0,
        ),
        in_reward(
            "slime.reward_reinforce_plus_plus",
            "--advantage-estimator reinforce_plus_plus --kl-coef ...",
            k1,
            SourceLocation(_FILE, "get_reinforce_plus_plus_returns"),
            ahead=True,
            note="slime asks for --normalize-advantages with this estimator.",
            algorithms=(_PLUS_PLUS,),
            beta=0.0,
        ),
        in_reward(
            "slime.opd",
            "on-policy distillation with opd_kl_coef=1.0",
            k1,
            SourceLocation("slime/backends/megatron_utils/loss.py", "apply_opd_kl_to_advantages"),
            ahead=False,
            default="of on-policy distillation",
            algorithms=(_GRPO,),
            beta=0.0,
        ),
    ),
    remedy=Remedy(
        sequence="slime.reward_ppo",
        token="slime.opd",
        words="In the loss, --use-unbiased-kl with k1 or k3 has the token-level gradient of each sequence, "
        "divided by its length.",
    ),
)
