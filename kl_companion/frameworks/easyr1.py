"""EasyR1: `compute_kl` in the reward, which is what its configuration class does, or in the loss.

A formula, because it is not on the registry. The example's configuration file, which its scripts start
from, sets other values than the configuration class.
"""

from __future__ import annotations

from functools import partial

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import OF_VERL, as_verl, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy

_FILE = "verl/trainer/core_algos.py"
_CHOICE = "algorithm.adv_estimator="
_ALGORITHMS = (
    Algorithm(
        "GRPO",
        Recipe("group_std", eps=1e-6),
        SourceLocation(_FILE, "compute_grpo_outcome_advantage"),
        instead=f"{_CHOICE}rloo",
    ),
    Algorithm(
        "RLOO",
        Recipe("leave_one_out"),
        SourceLocation(_FILE, "compute_rloo_outcome_advantage"),
        when=f"{_CHOICE}rloo",
    ),
    Algorithm(
        "PPO",
        Recipe("whitened", eps=1e-8),
        SourceLocation(_FILE, "compute_gae_advantage_return"),
        when=f"{_CHOICE}gae",
        instead=f"{_CHOICE}rloo",
    ),
    Algorithm(
        "REINFORCE++",
        Recipe("whitened", eps=1e-8),
        SourceLocation(_FILE, "compute_reinforce_plus_plus_outcome_advantage"),
        when=f"{_CHOICE}reinforce_plus_plus",
        instead=f"{_CHOICE}rloo",
    ),
)

FRAMEWORK = Framework(
    name="easyr1",
    title="EasyR1",
    distribution="",
    versions=("commit b44b311b6 (2026-07-30)",),
    settings=(
        *(
            in_reward(
                f"easyr1.reward_{kind}",
                f"algorithm: use_kl_loss=false, kl_penalty={kind}, kl_coef=0.001",
                partial(as_verl, kind, of="sampler"),
                SourceLocation("verl/trainer/ray_trainer.py", "apply_kl_penalty"),
                ahead=True,
                default="of the configuration class" if kind == "kl" else "",
                algorithms=_ALGORITHMS,
                beta=0.001 if kind == "kl" else None,
            )
            for kind in OF_VERL
        ),
        *(
            in_loss(
                f"easyr1.loss_{kind}",
                f"algorithm: use_kl_loss=true, kl_penalty={kind}, kl_coef=0.01",
                partial(as_verl, kind),
                SourceLocation(_FILE, "compute_kl"),
                default="of examples/config.yaml" if kind == "low_var_kl" else "",
                note="With kl, what use_kl_loss=true alone leaves, nothing is regularized."
                if kind == "kl"
                else "",
                algorithms=_ALGORITHMS,
                beta=0.01 if kind == "low_var_kl" else None,
            )
            for kind in OF_VERL
        ),
        in_loss(
            "easyr1.loss_low_var_kl_seq",
            "algorithm: use_kl_loss=true, kl_penalty=low_var_kl, kl_coef=0.01; "
            "worker.actor.loss_avg_mode=seq",
            partial(as_verl, "low_var_kl"),
            SourceLocation(_FILE, "compute_kl"),
            how="sequences",
            algorithms=_ALGORITHMS,
        ),
    ),
    remedy=Remedy(
        sequence="easyr1.reward_kl",
        token="easyr1.loss_mse",
        words="mse in the loss has the token-level gradient on-policy only.",
    ),
)
