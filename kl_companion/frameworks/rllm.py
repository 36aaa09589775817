"""rLLM: a formula; it trains with verl, Tinker or Fireworks, and what is its own are its advantages.

One option, ``kl_beta``, is handed on to verl's loss, and read by nothing on Tinker. On Fireworks the service
computes the loss, which cannot be read.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, as_verl, estimate, in_loss, in_reward, ratio, token_sum
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout, credit

_ADVANTAGE = SourceLocation("rllm/trainer/distill/advantage.py", "compute_distill_reverse_kl")
_ESTIMATORS = "rllm/trainer/algorithms/advantage.py"
_CHOICE = "rllm.algorithm.adv_estimator="
_ALGORITHMS = (
    Algorithm(
        "GRPO",
        Recipe("group_std", eps=1e-6, unbiased=False),
        SourceLocation("rllm/trainer/algorithms/rl_algo.py", "calculate_grpo_advantages_per_group"),
        instead="rllm.algorithm.norm_adv_by_std_in_grpo=false",
    ),
    Algorithm(
        "RLOO",
        Recipe("leave_one_out"),
        SourceLocation(_ESTIMATORS, "calculate_rloo_advantages"),
        when=f"{_CHOICE}rloo",
    ),
)
_TINKER = (
    _ALGORITHMS[0]._replace(recipe=Recipe("group_std", eps=1e-6, unbiased=False, aggregate="sum")),
    _ALGORITHMS[1]._replace(recipe=Recipe("leave_one_out", policy_loss="importance", aggregate="sum")),
)

k3: Terms = partial(as_verl, "low_var_kl")


def _ignored(rollout: Rollout) -> torch.Tensor:
    """Tinker's losses have no KL, and rLLM computes none for them; [batch, seq]."""
    return 0.0 * rollout.logp


def distilled(discount: float, clip: float | None, rollout: Rollout) -> torch.Tensor:
    """`compute_distill_reverse_kl`, clipped after it is summed, as advantages; a scalar."""
    log_ratio = estimate("k1", rollout, of="sampler")
    cost = credit(log_ratio, rollout.completion_mask, discount=discount)
    if clip is not None:
        cost = cost.clamp(-clip, clip)
    return token_sum(cost * ratio(rollout), rollout)


def _distilled(discount: int, clip: float | None = None) -> Setting:
    bounds = "" if clip is None else f", clip_min={-clip}, clip_max={clip}"
    return in_reward(
        f"rllm.distill{'_discount_1' if discount else ''}{'' if clip is None else '_clipped'}",
        f"use_precomputed_advantage=true, DistillationWorkflow{bounds}"
        if not discount
        else f"use_precomputed_advantage=true, compute_distill_reverse_kl(kl_discount_factor=1.0{bounds})",
        partial(estimate, "k1", of="sampler"),
        _ADVANTAGE,
        ahead=bool(discount),
        default="of DistillationWorkflow" if not discount and clip is None else "",
        note="" if clip is None else "Its example has 5; 3 is within reach of the audit's log-ratios.",
    )._replace(loss=partial(distilled, float(discount), clip))


FRAMEWORK = Framework(
    name="rllm",
    title="rLLM",
    distribution="",
    versions=("commit 9beb6e0f (2026-08-15, v0.3.0-pre-130)",),
    settings=(
        in_loss(
            "rllm.kl_beta_verl",
            'rllm.algorithm.kl_beta=..., backend="verl"',
            k3,
            SourceLocation("rllm/trainer/verl/utils.py", "sync_config"),
            default="once kl_beta > 0 (then verl's low_var_kl in the loss)",
            algorithms=_ALGORITHMS,
            beta=0.0,
        ),
        in_loss(
            "rllm.kl_beta_tinker",
            'rllm.algorithm.kl_beta=..., backend="tinker"',
            _ignored,
            SourceLocation(
                "rllm/trainer/tinker/tinker_policy_trainer.py",
                "TinkerPolicyTrainer._get_forward_backward_futures",
            ),
            note="Nothing reads the option there, and no warning says so.",
            algorithms=_TINKER,
            beta=0.0,
        ),
        _distilled(0),
        _distilled(0, 3.0),
        _distilled(1),
        _distilled(1, 3.0),
    ),
    remedy=Remedy(
        sequence="rllm.distill_discount_1",
        token="rllm.distill",
        words="Both are advantages of distillation, instead of rewards. On verl another kl_loss_type can be "
        "chosen beside kl_beta, such as k2; use_kl_in_reward is refused.",
    ),
)
