"""Tunix: the KL of GRPO's loss, that of PPO's reward, and the distillation of logits.

Its functions are written in JAX, which is not installed: what runs is the installed text with PyTorch's
operations in the place of JAX's (see `jax_numpy` and `tunix_functions`). PPO's reward stands among lines of
the learner that need a cluster: its KL is Tunix's, the returns are written here.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.jax_numpy import array
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.frameworks.tunix_functions import (
    COMMON,
    CORE,
    LOGIT,
    VERSIONS,
    by_batch,
    by_group,
    dr_grpo_policy,
    functions,
    grpo_policy,
    policy_loss,
    ppo_policy,
)
from kl_companion.rollout import Rollout

_KINDS = ("kl", "mse_kl", "low_var_kl")
_MEAN, _SCALE = "sequence-mean-token-mean", "sequence-mean-token-scale"
_MODES = {
    _MEAN: "mean over sequences of token means",
    "token-mean": "sum / tokens of the local batch",
    _SCALE: "sum / padded length, mean over sequences",
    "seq-mean-token-sum": "sum over tokens, mean over sequences",
}


def grpo(
    rollout: Rollout, *, kind: str = "kl", mode: str = _MEAN, clamp: float | None = None
) -> torch.Tensor:
    """`grpo_loss_fn` with beta = 1 and advantages of zero."""
    nothing = torch.zeros_like(rollout.sampled_from)
    return policy_loss(
        "grpo_loss_fn",
        rollout,
        nothing,
        beta=1.0,
        kl_loss_mode=kind,
        loss_agg_mode=mode,
        kl_clamp_value=clamp,
    )


def ppo(kind: str, rollout: Rollout) -> torch.Tensor:
    """`compute_kl_divergence` of the policy that sampled, charged to the tokens before it and to its own."""
    sampler, reference = array(rollout.sampled_from), array(rollout.ref_logp)
    kl = functions().compute_kl_divergence(sampler, reference, method=kind, clamp_value=None)
    return charged(kl.as_subclass(torch.Tensor), rollout, ahead=True)


def logits(rollout: Rollout, *, temperature: float, k: int = 0) -> torch.Tensor:
    """`LogitStrategy.compute_loss` with alpha = 1; the teacher is the reference.

    It takes the mean over all positions, padding included: behind an answer both are handed the same logits.
    """
    assert rollout.logits is not None
    assert rollout.ref_logits is not None
    inside = rollout.completion_mask.unsqueeze(-1)
    student, teacher = (array(x * inside) for x in (rollout.logits, rollout.ref_logits))
    strategy = SimpleNamespace(temperature=temperature, distill_top_k=k, alpha=1.0)
    loss: torch.Tensor
    loss, _ = functions().logit_loss(strategy, student, teacher, torch.zeros_like(teacher))
    return loss.as_subclass(torch.Tensor)


_ADVANTAGES = SourceLocation(CORE, "compute_advantages")
_ESTIMATOR = "GRPOConfig(advantage_estimator="
_GRPO = (
    Algorithm(
        "GRPO",
        Recipe("group_std", normalize=by_group),
        _ADVANTAGES,
        instead='advantage_estimator="drgrpo"',
        policy=grpo_policy,
    ),
    Algorithm(
        "RLOO",
        Recipe("leave_one_out"),
        SourceLocation(CORE, "compute_rloo_advantages"),
        when=f'{_ESTIMATOR}"rloo")',
        policy=grpo_policy,
    ),
)
_DR_GRPO = Algorithm(
    "Dr. GRPO",
    Recipe("mean"),
    SourceLocation(CORE, "compute_drgrpo_advantages"),
    when="DrGRPOConfig()",
    policy=dr_grpo_policy,
)
_PPO = Algorithm(
    "PPO",
    Recipe("whitened", normalize=by_batch),
    SourceLocation(CORE, "compute_gae_advantages"),
    policy=ppo_policy,
)


def _grpo(kind: str, mode: str, clamp: float | None = None) -> Setting:
    suffix = ("" if mode == _MEAN else "_" + mode.replace("-", "_")) + ("" if clamp is None else "_clamped")
    default = ""
    algorithms: tuple[Algorithm, ...] = _GRPO
    if kind == "kl" and mode == _MEAN:
        default = "of GRPOConfig (beta is 0.04 by default)"
    if kind == "kl" and mode == _SCALE:
        default, algorithms = "of DrGRPOConfig (beta is 0.04 by default)", (_DR_GRPO,)
    same = ' (or "sequence-mean-token-sum-norm")' if mode == "seq-mean-token-sum" else ""
    clamped = "" if clamp is None else f", kl_clamp_value={clamp}"
    return Setting(
        name=f"tunix.grpo_{kind}{suffix}",
        option=f'GRPOConfig(beta=0.04, kl_loss_mode="{kind}", loss_agg_mode="{mode}"{same}{clamped})',
        loss=partial(grpo, kind=kind, mode=mode, clamp=clamp),
        place=SourceLocation(COMMON, "compute_kl_divergence"),
        placement="loss",
        level="token",
        aggregation=f"{mode}: {_MODES[mode]}",
        default=default,
        note=""
        if clamp is None
        else "The source suggests 10000; 2 is within reach of the audit's log-ratios.",
        algorithms=algorithms,
        beta=0.04 if default else None,
    )


def _ppo(kind: str) -> Setting:
    default = "of PPOConfig (beta is 0.04 by default)" if kind == "low_var_kl" else ""
    return Setting(
        name=f"tunix.ppo_{kind}",
        option=f'PPOConfig(beta=0.04, kl_method="{kind}", gae_lambda=1.0)',
        loss=partial(ppo, kind),
        place=SourceLocation("tunix/rl/ppo/ppo_learner.py", "PPOLearner._generate_and_compute_advantage"),
        placement="reward",
        level="sequence",
        aggregation="return-to-go (gamma = gae_lambda = 1)",
        default=default,
        note="gae_lambda is 0.95 by default: what is many tokens ahead is then the critic's to say.",
        algorithms=(_PPO,),
        beta=0.04 if default else None,
    )


def _logits(suffix: str, temperature: float, k: int = 0) -> Setting:
    return Setting(
        name=f"tunix.logit_strategy{suffix}",
        option=f"LogitStrategy(alpha=1.0, temperature={temperature}, distill_top_k={k})",
        loss=partial(logits, temperature=temperature, k=k),
        place=SourceLocation(LOGIT, "LogitStrategy.compute_loss"),
        placement="loss",
        level="token",
        aggregation="sum / all positions, padding included",
        default="" if suffix else "of the class (with alpha=0.5, and half of a task loss)",
        note="Behind the end of an answer student and teacher are handed the same logits here; in Tunix "
        "what they say there counts.",
        sampled=False,
    )


FRAMEWORK = Framework(
    name="tunix",
    title="Tunix",
    distribution="google-tunix",
    versions=VERSIONS,
    settings=(
        *(_grpo(kind, mode) for kind in _KINDS for mode in _MODES),
        _grpo("low_var_kl", _MEAN, clamp=2.0),
        *(_ppo(kind) for kind in ("low_var_kl", "kl", "mse_kl")),
        _logits("", 2.0),
        _logits("_temperature_1", 1.0),
        _logits("_top_2", 1.0, k=2),
    ),
    remedy=Remedy(
        sequence="tunix.ppo_kl",
        token="tunix.grpo_mse_kl_seq_mean_token_sum",
        words="On-policy; the loss has no ratio to the policy that sampled. With GRPO no option puts the KL "
        "into the reward.",
    ),
)
