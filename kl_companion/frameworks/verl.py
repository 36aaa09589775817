"""verl: `kl_penalty` in the loss and in the reward, and the losses of its distillation.

Aggregation, penalty, PPO loss and distillation switch are all verl's own text (see `verl_functions`).
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.frameworks.verl_algorithms import ALGORITHMS, policy
from kl_companion.frameworks.verl_functions import (
    CORE,
    DISTILLATION,
    TOP_K,
    VERSIONS,
    Batch,
    Configuration,
    Jagged,
    functions,
    global_batch,
)
from kl_companion.rollout import Rollout, credit

# two names for each; those of the shipped configuration first
_NAMES = {"k1": "kl (or k1)", "k2": "mse (or k2)", "k3": "low_var_kl (or k3)"}
_MODES = {
    "token-mean": "sum / tokens of the global batch",
    "token-sum": "sum over tokens",
    "seq-mean-token-sum": "sum over tokens, mean over sequences",
    "seq-mean-token-sum-norm": "sum / longest response, mean over sequences",
    "seq-mean-token-mean": "mean over sequences of token means",
}


def in_loss(kind: str, mode: str, rollout: Rollout) -> torch.Tensor:
    """The lines of verl's `ppo_loss` under ``use_kl_loss``: `kl_penalty`, then `agg_loss`."""
    verl = functions()
    kl = verl.kl_penalty(logprob=rollout.logp, ref_logprob=rollout.ref_logp, kl_penalty=kind)
    total: torch.Tensor = verl.agg_loss(kl, rollout.completion_mask, mode, **global_batch(rollout))
    return total


def in_reward(kind: str, rollout: Rollout) -> torch.Tensor:
    """`apply_kl_penalty`, the returns of its rewards (discount 1), and verl's clipped PPO loss."""
    verl, mask = functions(), rollout.completion_mask
    batch = Batch(
        response_mask=mask,
        token_level_scores=torch.zeros_like(rollout.sampled_from),
        old_log_probs=rollout.sampled_from,
        ref_log_prob=rollout.ref_logp,
    )
    control = SimpleNamespace(value=1.0, update=lambda **_: None)
    data, _ = verl.apply_kl_penalty(SimpleNamespace(batch=batch), control, kind)
    returns = credit(data.batch["token_level_rewards"], mask)
    return policy(rollout, returns)


def distilled(
    kind: str,
    rollout: Rollout,
    *,
    policy_gradient: bool = False,
    loss_max_clamp: float | None = None,
    log_prob_min_clamp: float | None = None,
    k: int = 1,
) -> torch.Tensor:
    """`distillation_loss` with the teacher in the place of the reference."""
    verl, mask = functions(), rollout.completion_mask
    loss_config = Configuration(
        loss_mode=kind,
        loss_max_clamp=loss_max_clamp,
        log_prob_min_clamp=log_prob_min_clamp,
        use_policy_gradient=policy_gradient,
        policy_loss_mode="vanilla",
        topk=k,
        clip_ratio=0.2,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        global_batch_info={},
    )
    distillation_config = SimpleNamespace(distillation_loss=loss_config)
    output = {"log_probs": rollout.logp}
    if kind == "forward_kl_topk":
        head = rollout.ref_logp_all.topk(k, dim=-1)
        student = rollout.logits
        assert student is not None
        found = verl.top_k(
            student_logits=student.flatten(0, 1).unsqueeze(0),
            teacher_topk_log_probs=Jagged(is_nested=True, content=head.values.flatten(0, 1)),
            teacher_topk_ids=Jagged(is_nested=True, content=head.indices.flatten(0, 1)),
            config=distillation_config,
            data_format="thd",
        )
        output |= {name: x.view(mask.shape) for name, x in found.items()}
    data = {
        "response_mask": mask,
        "teacher_logprobs": rollout.ref_logp.unsqueeze(-1),
        "old_log_probs": rollout.sampled_from,
        **global_batch(rollout),
    }
    config = SimpleNamespace(loss_agg_mode="token-mean", loss_scale_factor=None, global_batch_info={})
    loss: torch.Tensor
    loss, _ = verl.distillation_loss(config, distillation_config, output, data)
    return loss


def _in_loss(kind: str, mode: str = "token-mean") -> Setting:
    suffix = "" if mode == "token-mean" else "_" + mode.replace("-", "_")
    default = ""
    if kind == "k3" and not suffix:
        default = "of the actor once use_kl_loss is True"
    return Setting(
        name=f"verl.loss_{kind.replace('+', '_plus')}{suffix}",
        option="actor_rollout_ref.actor: use_kl_loss=True, kl_loss_coef=0.001, "
        f"kl_loss_type={_NAMES.get(kind, kind)}, loss_agg_mode={mode}",
        loss=partial(in_loss, kind, mode),
        place=SourceLocation(CORE, "kl_penalty"),
        placement="loss",
        level="token",
        aggregation=f"{mode}: {_MODES[mode]}",
        default=default,
        algorithms=ALGORITHMS,
        beta=0.0 if default else None,
    )


def _in_reward(kind: str) -> Setting:
    return Setting(
        name=f"verl.reward_{kind}",
        option="algorithm: use_kl_in_reward=True, kl_ctrl.kl_coef=0.001, "
        f"kl_penalty={_NAMES.get(kind, kind)}",
        loss=partial(in_reward, kind),
        place=SourceLocation("verl/trainer/ppo/ray_trainer.py", "apply_kl_penalty"),
        placement="reward",
        level="sequence",
        aggregation="sum over the sequence (GRPO, or GAE with gamma = lam = 1)",
        default="of the reward once use_kl_in_reward is True" if kind == "k1" else "",
        note="The KL is that of the policy that sampled; PPO's clip (0.2) acts off-policy.",
        algorithms=ALGORITHMS,
        beta=0.0 if kind == "k1" else None,
    )


def _distilled(name: str, option: str, default: str = "", note: str = "", **options: Any) -> Setting:
    kind = options.pop("kind")
    pg = options.get("policy_gradient", False)
    top_k = kind == "forward_kl_topk"
    return Setting(
        name=f"verl.distillation_{name}",
        option=f"distillation.distillation_loss: {option}",
        loss=partial(distilled, kind, **options),
        place=SourceLocation(TOP_K, "compute_forward_kl_topk")
        if top_k
        else SourceLocation(DISTILLATION, "compute_distillation_loss_reverse_kl_estimator"),
        placement="reward" if pg else "loss",
        level="token",
        aggregation=f"token-mean: {_MODES['token-mean']}",
        default=default,
        note=note,
        sampled=not top_k,
    )


_NO_K1 = "verl refuses loss_mode=k1 without use_policy_gradient, and says why."
_SETTINGS = (
    _in_loss("k3"),
    *(_in_loss("k3", mode) for mode in list(_MODES)[1:]),
    *(_in_loss(kind) for kind in ("k1", "k2", "abs", "k1+", "k3+", "abs+")),
    *(_in_loss("k2", mode) for mode in ("seq-mean-token-sum", "seq-mean-token-mean")),
    *(_in_reward(kind) for kind in ("k1", "k2", "k3", "abs")),
    _distilled(
        "k3",
        "loss_mode=k3, use_policy_gradient=False",
        default="of the YAML files (without clamps)",
        note=_NO_K1,
        kind="k3",
    ),
    _distilled("k2", "loss_mode=k2, use_policy_gradient=False", kind="k2"),
    _distilled("abs", "loss_mode=abs, use_policy_gradient=False", kind="abs"),
    _distilled(
        "policy_gradient_k3",
        "loss_mode=k3, use_policy_gradient=True, loss_max_clamp=10",
        default="of the class DistillationLossConfig",
        kind="k3",
        policy_gradient=True,
        loss_max_clamp=10.0,
    ),
    _distilled(
        "policy_gradient_k1",
        "loss_mode=k1, use_policy_gradient=True, loss_max_clamp=null",
        kind="k1",
        policy_gradient=True,
    ),
    _distilled(
        "policy_gradient_k1_clamped",
        "loss_mode=k1, use_policy_gradient=True, loss_max_clamp=2",
        note="The class's own clamp is 10; 2 is within reach of the audit's log-ratios.",
        kind="k1",
        policy_gradient=True,
        loss_max_clamp=2.0,
    ),
    _distilled(
        "forward_kl_topk",
        "loss_mode=forward_kl_topk, topk=2, use_policy_gradient=False",
        note="Audited with k = 2 of a vocabulary of three tokens. Negative sums are clamped to zero.",
        kind="forward_kl_topk",
        k=2,
    ),
)

FRAMEWORK = Framework(
    name="verl",
    title="verl",
    distribution="verl",
    versions=VERSIONS,
    settings=_SETTINGS,
    remedy=Remedy(
        sequence="verl.reward_k1",
        token="verl.loss_k2",
        words="For on-policy samples: no option weights the loss by the ratio to the policy that sampled. A "
        "name with a plus (k3+) has the gradient of k2 and the value of the other.",
    ),
)
