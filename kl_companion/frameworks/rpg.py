"""RPG's released code, a fork of verl: a formula, because it is not on the registry.

The paper's losses are those of samples from an old policy, which is the reference too. The code makes them of
log-probs and reference log-probs. Its scripts set ``use_iterative_ref_model``, with which the old policy is
the reference; its configuration does not, and then the reference is a model that has sampled nothing.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout

_FILE = "verl/trainer/ppo/core_algos.py"
_LOSS = "actor_rollout_ref.actor: use_kl_loss=True, kl_loss_coef=0.0001"
_PENALTY = SourceLocation(_FILE, "kl_penalty")
_CLAMP = 10.0
_SCRIPTS = "algorithm.adv_estimator=rpg"
_RPG = Algorithm(
    "RPG",
    Recipe("mean", aggregate="sum"),
    SourceLocation(_FILE, "compute_rpg_outcome_advantage"),
    when=f"{_SCRIPTS}, as in its scripts",
)
_PPO = Algorithm(
    "PPO",
    Recipe("whitened", eps=1e-8, aggregate="sum"),
    SourceLocation(_FILE, "compute_gae_advantage_return"),
    instead=_SCRIPTS,
)
_ALGORITHMS = (_PPO, _RPG)
_LOSSES = ("fkl", "rkl", "ufkl", "urkl", "js", "ujs")
_SHIPPED = _LOSSES[:4]  # in its scripts
_OTHERS = {"low_var_kl": "k3", "mse": "k2", "kl": "k1"}


def _log_w(rollout: Rollout) -> torch.Tensor:
    """log pi / ref of every token, [batch, seq]."""
    return rollout.logp - rollout.ref_logp


def _old(terms: Terms) -> Terms:
    """The same with the policy that sampled in the place of the reference."""
    return lambda rollout: terms(replace(rollout, ref_logp=rollout.sampled_from))


def _penalized(terms: Terms) -> Terms:
    """The same of the policy that sampled, whose samples are charged."""
    return lambda rollout: terms(replace(rollout, logp=rollout.sampled_from))


def loss_terms(kind: str, rollout: Rollout) -> torch.Tensor:
    """`kl_penalty` of ``rpg_`` and a kind, differentiated; w is pi / ref, and all but fkl are clamped.

    Returns: [batch, seq]. ``js`` is half of w log w + log w, where its comment has a minus.
    """
    log_w = _log_w(rollout)
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


def reward_terms(kind: str, rollout: Rollout) -> torch.Tensor:
    """`kl_penalty` of ``rpg_rf_`` and a kind, [batch, seq]; a suffix behind the kind changes nothing."""
    log_w = _log_w(rollout)
    w = log_w.exp()
    x = {
        "fkl": -torch.ones_like(w),
        "rkl": w * (log_w + 1),
        "ufkl": w - 1,
        "urkl": w * log_w,
    }[kind]
    return x.clamp(-_CLAMP, _CLAMP)


def _reference(old: bool) -> str:
    return f"use_iterative_ref_model={'True' if old else 'False'}"


def _loss(kind: str, old: bool) -> Setting:
    terms: Terms = partial(loss_terms, kind)
    return in_loss(
        f"rpg.loss_{kind}{'_old' if old else ''}",
        f"{_LOSS}, kl_loss_type=rpg_{kind}, {_reference(old)}",
        _old(terms) if old else terms,
        _PENALTY,
        default="of its scripts" if old else "",
        note="The reference is the policy that sampled." if old else "",
        algorithms=(_RPG,) if old else _ALGORITHMS,
        beta=1e-4 if old else None,
    )


def _reward(kind: str, old: bool) -> Setting:
    terms = _penalized(partial(reward_terms, kind))
    shipped = old and kind == "rkl"
    return in_reward(
        f"rpg.reward_{kind}{'_old' if old else ''}",
        f"algorithm: use_kl_in_reward=True; actor_rollout_ref.actor: kl_loss_type=rpg_rf_{kind} (also "
        f"_clip_hard, _clip_ppo), {_reference(old)}",
        _old(terms) if old else terms,
        _PENALTY,
        ahead=True,
        default="of its script for rpg_rf_rkl" if shipped else "",
        note="The reference is the policy that sampled: every token is charged with the same number."
        if old
        else "",
        algorithms=(_RPG,) if old else _ALGORITHMS,
        beta=1e-4 if shipped else None,
    )


def _other(kind: str, reward: bool = False) -> Setting:
    """A name that is verl's too, with the reference model of the configuration."""
    clamp = _CLAMP if kind == "low_var_kl" else None
    terms: Terms = partial(estimate, _OTHERS[kind], of="sampler" if reward else "policy", output_clamp=clamp)
    if reward:
        option = f"algorithm: use_kl_in_reward=True; actor_rollout_ref.actor: kl_loss_type={kind}"
        return in_reward(f"rpg.reward_{kind}", option, terms, _PENALTY, ahead=True, algorithms=_ALGORITHMS)
    default = kind == "low_var_kl"
    return in_loss(
        f"rpg.loss_{kind}",
        f"{_LOSS}, kl_loss_type={kind}",
        terms,
        _PENALTY,
        default="of the actor once use_kl_loss is True" if default else "",
        algorithms=_ALGORITHMS,
        beta=0.0 if default else None,
    )


FRAMEWORK = Framework(
    name="rpg",
    title="RPG",
    distribution="",
    versions=("commit ec8e30b (2026-06-14)",),
    settings=(
        *(_loss(kind, False) for kind in _LOSSES),
        *(_loss(kind, True) for kind in _SHIPPED),
        *(_reward(kind, False) for kind in _SHIPPED),
        *(_reward(kind, True) for kind in _SHIPPED),
        _other("low_var_kl"),
        _other("mse"),
        _other("kl", reward=True),
    ),
    remedy=Remedy(
        sequence="rpg.reward_kl",
        token="rpg.loss_mse",
        words="Both are verl's own, with use_iterative_ref_model=False.",
    ),
)
