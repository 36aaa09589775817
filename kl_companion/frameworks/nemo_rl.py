"""NeMo-RL: a formula, because its package on the registry is a placeholder.

Every estimator is multiplied by a ratio that keeps its gradient, and then clamped: by pi / sg(pi), or by the
ratio to the policy that generated. Where the log-ratio is clamped the weight is detached too, so that such
tokens are left alone.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.advantages import whitened
from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward, ratio, score_ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

_INPUT, _OUTPUT = 20.0, 10.0
_UTILS = SourceLocation("nemo_rl/algorithms/utils.py", "calculate_kl")
_ADVANTAGES = "nemo_rl/algorithms/advantage_estimator.py"
_DISTILLATION = SourceLocation("nemo_rl/algorithms/loss/loss_functions.py", "DistillationLossFn")
_PLUS_PLUS = "ReinforcePlusPlusAdvantageEstimator"
_GAE = "GeneralizedAdvantageEstimator"
_GRPO = Algorithm(
    "GRPO",
    Recipe("others_std", eps=1e-6, aggregate="sum"),
    SourceLocation(_ADVANTAGES, "GRPOAdvantageEstimator"),
    instead="grpo.normalize_rewards=False",
)
_BY_BATCH = {
    _GAE: Algorithm(
        "PPO",
        Recipe("whitened", eps=1e-8, aggregate="sum"),
        SourceLocation(_ADVANTAGES, _GAE),
        instead="ppo.adv_estimator.normalize_advantages=False",
    ),
    _PLUS_PLUS: Algorithm(
        "REINFORCE++",
        Recipe("whitened", normalize=partial(whitened, unbiased=False, floor="least"), aggregate="sum"),
        SourceLocation(_ADVANTAGES, _PLUS_PLUS),
    ),
}
_CHOSEN = {
    _GAE: "the PPO trainer",
    _PLUS_PLUS: "grpo.adv_estimator.name=reinforce_plus_plus",
}
_ALGORITHMS = (_GRPO, *(a._replace(when=_CHOSEN[name]) for name, a in _BY_BATCH.items()))


def weighted(kind: str, on_policy_approximation: bool, rollout: Rollout) -> torch.Tensor:
    """`calculate_kl` as the clipped policy-gradient loss calls it, [batch, seq]."""
    weight = ratio(rollout) if on_policy_approximation else score_ratio(rollout)
    clamped = (rollout.ref_logp - rollout.logp).abs() > _INPUT
    weight = torch.where(clamped, weight.detach(), weight)
    return estimate(kind, rollout, input_clamp=_INPUT, output_clamp=_OUTPUT, weight=weight)


def penalty(kind: str, rollout: Rollout) -> torch.Tensor:
    """`calculate_kl` of the policy that sampled, [batch, seq]."""
    return estimate(kind, rollout, of="sampler", input_clamp=_INPUT, output_clamp=_OUTPUT)


def truncated(share: float, k: int, rollout: Rollout) -> torch.Tensor:
    """Sums over the teacher's k likeliest tokens, not renormalized and without a tail, [batch, seq].

    ``share`` is that of the forward KL; the rest is reverse KL.
    """
    head = rollout.ref_logp_all.topk(k, dim=-1)
    teacher, student = head.values, rollout.logp_all.gather(-1, head.indices)
    forward = (teacher.exp() * (teacher - student)).sum(-1)
    reverse = (student.exp() * (student - teacher)).sum(-1)
    return share * forward + (1 - share) * reverse


def _in_loss(kind: str, approximation: bool) -> Setting:
    suffix = "_generation_ratio" if approximation else ""
    terms: Terms = partial(weighted, kind, approximation)
    return in_loss(
        f"nemo_rl.loss_{kind}{suffix}",
        f"loss_fn: reference_policy_kl_penalty=0.01, reference_policy_kl_type={kind}, "
        f"use_on_policy_kl_approximation={approximation}",
        terms,
        _UTILS,
        default="of ClippedPGLossFn" if kind == "k3" and not approximation else "",
        algorithms=_ALGORITHMS,
        beta=0.01 if kind == "k3" and not approximation else None,
    )


def _in_reward(kind: str, name: str, estimator: str, ahead: bool, default: str = "") -> Setting:
    terms: Terms = partial(penalty, kind)
    return in_reward(
        f"nemo_rl.reward_{kind}_{name}",
        f"use_kl_in_reward=True, reference_policy_kl_type={kind}, {estimator}",
        terms,
        SourceLocation(_ADVANTAGES, estimator),
        ahead=ahead,
        default=default,
        algorithms=(_BY_BATCH[estimator],),
        beta=0.0 if default else None,
    )


_DEFAULT = "once use_kl_in_reward is True (the type is shared with the loss)"
_opd: Terms = partial(estimate, "k1", of="sampler")

FRAMEWORK = Framework(
    name="nemo_rl",
    title="NeMo-RL",
    distribution="",
    versions=("commit 7ea279abf (2026-08-22)",),
    settings=(
        *(_in_loss(kind, approximation) for kind in ("k3", "k1", "k2") for approximation in (False, True)),
        _in_reward("k3", "gae", _GAE, True, _DEFAULT),
        _in_reward("k1", "gae", _GAE, True),
        _in_reward("k3", "reinforce_plus_plus", _PLUS_PLUS, False, _DEFAULT),
        _in_reward("k1", "reinforce_plus_plus", _PLUS_PLUS, False),
        in_reward(
            "nemo_rl.opd",
            "OPDAdvantageEstimator",
            _opd,
            SourceLocation(_ADVANTAGES, "OPDAdvantageEstimator"),
            ahead=False,
            default="of on-policy distillation",
        ),
        *(
            in_loss(
                f"nemo_rl.distillation_{name}_top_1",
                f"DistillationLossFn: kl_type={name}, topk_logits_k=1, zero_outside_topk=False",
                partial(truncated, share, 1),
                _DISTILLATION,
                default="of DistillationLossFn (with k = 64)" if name == "mixed" else "",
                note="Audited with a vocabulary of three tokens.",
                sampled=False,
            )
            for name, share in {"mixed": 0.5, "forward": 1.0, "reverse": 0.0}.items()
        ),
    ),
    remedy=Remedy(
        sequence="nemo_rl.reward_k1_gae",
        token="nemo_rl.loss_k1_generation_ratio",
        words="k3 has the same gradient until its clamp; k2 has not.",
    ),
)
