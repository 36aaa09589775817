"""Terms of single tokens that are more than an estimate with clamps, as formulas; [batch, seq]."""

from __future__ import annotations

from typing import Literal

import torch

from kl_companion.frameworks.formulas import estimate, ratio, score_ratio, token_sum
from kl_companion.rollout import Rollout, credit

__all__ = [
    "decoded",
    "distilled",
    "fallen_dropped",
    "k3_weighted_after_its_clamp",
    "rpg_in_loss",
    "rpg_in_reward",
    "weighted_where_not_clamped",
]
_CLAMP, _FALLEN = 10.0, 0.2
Reference = Literal["reference", "sampler"]


def k3_weighted_after_its_clamp(rollout: Rollout) -> torch.Tensor:
    """EMA-PG's k3plusplus: k3, clamped, times pi / sg(pi)."""
    return estimate(rollout, kind="k3", input_clamp=20.0, output_clamp=_CLAMP) * score_ratio(rollout)


def weighted_where_not_clamped(rollout: Rollout, *, kind: str, on_policy_approximation: bool) -> torch.Tensor:
    """NeMo-RL's `calculate_kl` as the clipped policy-gradient loss calls it.

    Every estimator is multiplied by a ratio that keeps its gradient, and then clamped: by pi / sg(pi), or by
    the ratio to the policy that generated. Where the log-ratio is clamped the weight is detached too, so that
    such tokens are left alone.
    """
    weight = ratio(rollout) if on_policy_approximation else score_ratio(rollout)
    clamped = (rollout.ref_logp - rollout.logp).abs() > 20.0
    weight = torch.where(clamped, weight.detach(), weight)
    return estimate(rollout, kind=kind, input_clamp=20.0, output_clamp=_CLAMP, weight=weight)


def fallen_dropped(rollout: Rollout, *, kl_tau: float) -> torch.Tensor:
    """prime-rl's `ref_kl_loss_fn`: rho sg(log pi - log ref), and kl_tau times the squared log(pi / mu).

    Tokens whose probability has fallen by more than 0.2 since they were sampled have no first part.
    """
    sampler = rollout.sampled_from
    kept = rollout.logp.detach().exp() - sampler.exp() >= -_FALLEN
    cost = (rollout.logp - rollout.ref_logp).detach() * ratio(rollout)
    return torch.where(kept, cost, 0.0) + kl_tau * (rollout.logp - sampler) ** 2


def distilled(rollout: Rollout, *, discount: float, clip: float | None = None) -> torch.Tensor:
    """rLLM's `compute_distill_reverse_kl`, clipped after it is summed, as advantages; a scalar."""
    log_ratio = estimate(rollout, kind="k1", of="sampler")
    cost = credit(log_ratio, rollout.completion_mask, discount=discount)
    if clip is not None:
        cost = cost.clamp(-clip, clip)
    return token_sum(cost * ratio(rollout), rollout)


def decoded(rollout: Rollout) -> torch.Tensor:
    """`compute_decoded_sequence_kl` of a fork of slime: log teacher - log student of the sampled token."""
    return rollout.ref_logp - rollout.logp


def rpg_in_loss(rollout: Rollout, *, kind: str, to: Reference = "reference") -> torch.Tensor:
    """`kl_penalty` of ``rpg_`` and a kind, differentiated; w is pi / ref, and all but fkl are clamped.

    ``js`` is half of w log w + log w, where its comment has a minus. With ``use_iterative_ref_model`` the
    reference is the policy that sampled.
    """
    log_w = rollout.logp - (rollout.ref_logp if to == "reference" else rollout.sampled_from)
    w = log_w.exp()
    x = {
        "fkl": -log_w,
        "rkl": w * log_w,
        "ufkl": w - log_w - 1,
        "urkl": w * (log_w - 1) + 1,
        "js": (w * log_w + log_w) / 2,
        "ujs": (w * log_w - log_w) / 2,
    }[kind]
    return x if kind == "fkl" else x.clamp(-_CLAMP, _CLAMP)


def rpg_in_reward(rollout: Rollout, *, kind: str, to: Reference = "reference") -> torch.Tensor:
    """`kl_penalty` of ``rpg_rf_`` and a kind, of the policy that sampled; a suffix changes nothing."""
    log_w = rollout.sampled_from - (rollout.ref_logp if to == "reference" else rollout.sampled_from)
    w = log_w.exp()
    x = {
        "fkl": -torch.ones_like(w),
        "rkl": w * (log_w + 1),
        "ufkl": w - 1,
        "urkl": w * log_w,
    }[kind]
    return x.clamp(-_CLAMP, _CLAMP)
