"""EMA-PG's released code, a fork of verl: a formula, because it is not on the registry.

The source claims that its top-k estimate is unbiased in value and gradient. The head is a sum without the
constant that makes a Bregman term of it, the tail an estimator whose gradient drops that constant.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.estimators.registry import get_estimator
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, score_ratio
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout, per_token

_FILE = "search/verl/trainer/ppo/core_algos.py"
_PENALTY = SourceLocation(_FILE, "kl_penalty")
_ALGORITHMS = (
    Algorithm(
        "PPO",
        Recipe("whitened", eps=1e-8, aggregate="sum"),
        SourceLocation(_FILE, "compute_gae_advantage_return"),
        instead="algorithm.adv_estimator=grpo, norm_adv_by_std_in_grpo=False",
    ),
    Algorithm(
        "GRPO",
        Recipe("group_std", eps=1e-6, aggregate="sum"),
        SourceLocation(_FILE, "compute_grpo_outcome_advantage"),
        when="algorithm.adv_estimator=grpo, as in its scripts",
        instead="norm_adv_by_std_in_grpo=False",
    ),
)


def sampled(kind: str, rollout: Rollout) -> torch.Tensor:
    """k4, k5, and k3 times pi / sg(pi), whose value is clamped before; [batch, seq]."""
    if kind == "k3plusplus":
        return estimate("k3", rollout, input_clamp=20.0, output_clamp=10.0) * score_ratio(rollout)
    return get_estimator(kind).fn(rollout.logp, rollout.ref_logp)


def top_k(direction: str, k: int, weighted: bool, rollout: Rollout) -> torch.Tensor:
    """`compute_memory_efficient_kl`: an exact head, and a sampled tail outside of it; [batch, seq].

    The head of the reverse KL is the sampler's, that of the forward KL the reference's. ``weighted``
    multiplies the tail by the detached ratio to the sampler.
    """
    reverse = direction == "reverse"
    first = rollout.behavior_logp_all if reverse and rollout.behavior_logits is not None else None
    likeliest = rollout.logp_all if reverse and first is None else rollout.ref_logp_all
    index = (likeliest if first is None else first).detach().topk(k, dim=-1).indices
    logp, ref_logp = rollout.logp_all.gather(-1, index), rollout.ref_logp_all.gather(-1, index)
    head = logp.exp() * (logp - ref_logp) if reverse else ref_logp.exp() * (ref_logp - logp)
    tail = sampled("k4" if reverse else "k5", rollout)
    outside = (index != rollout.tokens.unsqueeze(-1)).all(-1)
    weight = (rollout.logp - rollout.sampled_from).detach().exp() if weighted else torch.ones_like(tail)
    return head.sum(-1) + torch.where(outside, weight * tail, 0.0)


def _sampled(kind: str) -> Setting:
    terms: Terms = partial(sampled, kind)
    clamped = "Where k3 is clamped the weight is 10: a token with ref > pi is pushed away from the reference."
    return in_loss(
        f"ema_pg.{kind}",
        f"kl_loss_type={kind}",
        terms,
        _PENALTY,
        note=clamped if kind == "k3plusplus" else "",
        algorithms=_ALGORITHMS,
    )


def _exact(direction: str, estimator: str) -> Setting:
    terms: Terms = partial(per_token, estimator)
    place = SourceLocation(_FILE, f"compute_full_{direction}_kl")
    return in_loss(
        f"ema_pg.full_{direction}",
        f"kl_loss_type=full_{direction}",
        terms,
        place,
        sampled=False,
        algorithms=_ALGORITHMS,
    )


def _top_k(direction: str, weighted: bool) -> Setting:
    return in_loss(
        f"ema_pg.top_1_{direction}{'_kl_iw' if weighted else ''}",
        f"kl_loss_type=full_{direction}, top-k with tail sampling (k = 32), kl_iw={weighted}",
        partial(top_k, direction, 1, weighted),
        SourceLocation(_FILE, "compute_memory_efficient_kl"),
        note="Audited with k = 1 of a vocabulary of three tokens.",
        sampled=False,
        algorithms=_ALGORITHMS,
        beta=0.001 if direction == "reverse" and weighted else None,  # of its scripts
    )


FRAMEWORK = Framework(
    name="ema_pg",
    title="EMA-PG",
    distribution="",
    versions=("commit f9b97763 (2026-02-05)",),
    settings=(
        *(_sampled(kind) for kind in ("k4", "k5", "k3plusplus")),
        _exact("reverse", "exact_kl"),
        _exact("forward", "exact_forward_kl"),
        *(_top_k(direction, weighted) for direction in ("reverse", "forward") for weighted in (False, True)),
    ),
    remedy=Remedy(sequence=None, token="ema_pg.full_reverse", words="Its loss works on tokens."),
)
