"""miles: a formula, because it is not on the registry. A fork of slime, whose estimates it shares.

What differs: low_var_kl clamps the log-ratio before its exponential, what is not a number becomes zero, PPO
refuses a KL in the reward, and on-policy distillation can compare the likeliest tokens of every position.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.frameworks import slime
from kl_companion.frameworks.formulas import estimate, in_loss, in_reward, ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

_HUB = "miles/backends/training_utils/loss_hub/"
_FILE = f"{_HUB}math_utils.py"
_KL = SourceLocation(_FILE, "compute_approx_kl")
_OPD = SourceLocation(f"{_HUB}opd.py", "apply_opd_kl_to_advantages")
_GRPO, _PPO, _PLUS_PLUS = _ALGORITHMS = tuple(
    algorithm._replace(place=place)
    for algorithm, place in zip(
        slime.ALGORITHMS,
        (
            SourceLocation("miles/ray/rollout/train_data_conversion.py", "_normalize_rewards_by_rollout"),
            SourceLocation(_FILE, "get_advantages_and_returns_batch"),
            SourceLocation("miles/utils/distributed_utils.py", "distributed_masked_whiten"),
        ),
        strict=True,
    )
)


def terms(kind: str, unbiased: bool, rollout: Rollout) -> torch.Tensor:
    """`compute_approx_kl` without what is not a number, [batch, seq]: as slime's but for low_var_kl."""
    if kind != "low_var_kl":
        found = slime.terms(kind, unbiased, rollout)
    else:
        weight = ratio(rollout) if unbiased else None
        found = estimate("k3", rollout, input_clamp=20.0, output_clamp=10.0, weight=weight)
    return found.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def top_k(k: int, rollout: Rollout) -> torch.Tensor:
    """`_compute_topk_reverse_kl` over the sampler's k likeliest tokens, by its renormalized probabilities.

    It is the same whichever token was sampled; [batch, seq].
    """
    student = rollout.logp_all if rollout.behavior_logits is None else rollout.behavior_logp_all
    assert student is not None
    head = student.detach().topk(k, dim=-1)
    teacher = rollout.ref_logp_all.gather(-1, head.indices)
    return (head.values.softmax(-1) * (head.values - teacher)).sum(-1)


def _in_loss(kind: str, unbiased: bool, per_token: bool = False) -> Setting:
    flags = " --use-unbiased-kl" * unbiased + " --calculate-per-token-loss" * per_token
    default = kind == "k1" and not unbiased and not per_token
    return in_loss(
        f"miles.loss_{kind}{'_unbiased' * unbiased}{'_per_token' * per_token}",
        f"--use-kl-loss --kl-loss-coef ... --kl-loss-type {kind}{flags}",
        partial(terms, kind, unbiased),
        _KL,
        how="tokens" if per_token else "sequences",
        default="once --use-kl-loss and a coefficient are given" if default else "",
        algorithms=_ALGORITHMS,
        beta=0.0 if default else None,
    )


def _in_reward(name: str, estimator: str, function: str, ahead: bool, note: str = "") -> Setting:
    return in_reward(
        f"miles.reward_{name}",
        f"{slime.CHOICE} {estimator} --normalize-advantages --kl-coef ...",
        slime.k1,
        SourceLocation(_FILE, function),
        ahead=ahead,
        note=note,
        algorithms=(_PLUS_PLUS._replace(when=""),),
        beta=0.0,
    )


_TOP_K = (
    "Every token is charged with a sum that does not depend on which token was sampled: a baseline, whose "
    "gradient is zero in the mean. So are the other strategies (--opd-top-k-strategy) and weights; and the "
    "reward of the task is set to zero."
)

FRAMEWORK = Framework(
    name="miles",
    title="miles",
    distribution="",
    versions=("commit 31f1ca961 (2026-08-21)",),
    settings=(
        *(
            _in_loss(kind, unbiased)
            for kind in ("k1", "k2", "k3", "low_var_kl")
            for unbiased in (False, True)
        ),
        _in_loss("k1", False, per_token=True),
        _in_loss("low_var_kl", True, per_token=True),
        in_reward(
            "miles.reward_grpo",
            f"{slime.CHOICE} grpo --kl-coef ... (also gspo)",
            slime.ignored,
            SourceLocation(_FILE, "get_grpo_returns"),
            ahead=True,
            note="The KL is computed, handed on, and not used. With ppo miles refuses a --kl-coef.",
            algorithms=(_GRPO,),
            beta=0.0,
        ),
        _in_reward("reinforce_plus_plus", "reinforce_plus_plus", "get_reinforce_plus_plus_returns", True),
        _in_reward(
            "reinforce_plus_plus_baseline",
            "reinforce_plus_plus_baseline",
            "get_reinforce_plus_plus_baseline_advantages",
            False,
            note="Its rewards are centered by group; a token is charged with its own term alone.",
        ),
        in_reward(
            "miles.opd",
            "--use-opd --opd-type ... (--opd-kl-coef 1.0)",
            slime.k1,
            _OPD,
            ahead=False,
            default="of on-policy distillation",
            algorithms=(_GRPO,),
            beta=0.0,
        ),
        in_reward(
            "miles.opd_top_2",
            "--use-opd --opd-type sglang --opd-log-prob-top-k 2 --opd-top-k-strategy only-student "
            "--opd-reward-weight-mode student_p",
            partial(top_k, 2),
            SourceLocation("miles/rollout/on_policy_distillation.py", "_compute_topk_reverse_kl"),
            ahead=False,
            note=_TOP_K,
        )._replace(sampled=False),
    ),
    remedy=Remedy(
        sequence="miles.reward_reinforce_plus_plus",
        token="miles.opd",
        words="In the loss: --calculate-per-token-loss with --use-unbiased-kl and k1, k3 or low_var_kl, the "
        "last until its clamp.",
    ),
)
