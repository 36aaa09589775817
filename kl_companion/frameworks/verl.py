"""verl: `kl_penalty` in the loss and in the reward, and the losses of its distillation.

verl imports Ray, TensorDict and more. Its functions are cut out of the installed files (see `installed`);
what they take from the rest of verl (padding, metrics, configuration) is stood in for here by the few
attributes that they read. Aggregation, penalty, PPO loss and distillation switch are all verl's own text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.dividing import Division
from kl_companion.frameworks.installed import SourceLocation, find, load
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout, credit

VERSIONS = ("0.9.1",)
_CORE = "verl/trainer/ppo/core_algos.py"
_DISTILLATION = "verl/trainer/distillation/losses.py"
_TOP_K = "verl/trainer/distillation/fsdp/losses.py"
_MODES = {
    "token-mean": "sum / tokens of the global batch",
    "token-sum": "sum over tokens",
    "seq-mean-token-sum": "sum over tokens, mean over sequences",
    "seq-mean-token-sum-norm": "sum / longest response, mean over sequences",
    "seq-mean-token-mean": "mean over sequences of token means",
}


class _Settings(SimpleNamespace):
    """A configuration as verl's functions read it: attributes, and ``get``."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


class _Metric:
    """verl's wrapper of a number for its logs: nothing is logged here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _Batch(dict[str, Any]):
    """A dictionary of tensors with a batch size, which is what is read of verl's data protocol."""

    @property
    def batch_size(self) -> tuple[int]:
        return (len(next(iter(self.values()))),)


class _Jagged(SimpleNamespace):
    """A nested tensor as the top-k loss reads it: the tokens of the batch, one after the other."""

    def values(self) -> torch.Tensor:
        return self.content


@cache
def functions() -> SimpleNamespace:
    """verl's own functions, out of the installed files; `Unavailable` without them."""
    verl = find("verl", VERSIONS)
    masked = load(
        verl, "verl/utils/torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten"
    )
    given = {
        "verl_F": SimpleNamespace(**masked),
        "AlgoConfig": type("AlgoConfig", (), {}),
        "defaultdict": defaultdict,
    }
    wanted = (
        *("kl_penalty", "kl_penalty_forward", "agg_loss", "compute_policy_loss_vanilla"),
        *("compute_gae_advantage_return", "compute_grpo_outcome_advantage"),
    )
    core = load(verl, _CORE, *wanted, given=given)
    reward = load(
        verl,
        "verl/trainer/ppo/ray_trainer.py",
        "apply_kl_penalty",
        given={"core_algos": SimpleNamespace(**core), "masked_mean": masked["masked_mean"]},
    )
    top_k = load(
        verl,
        _TOP_K,
        "kl_divergence",
        "_chunked_topk_log_probs",
        "compute_forward_kl_topk",
        given={"get_ulysses_sequence_parallel_world_size": lambda: 1},
    )
    estimator = "compute_distillation_loss_reverse_kl_estimator"
    metrics = SimpleNamespace(MIN=0, MAX=1, MEAN=2, SUM=3)
    losses: dict[str, Callable[..., Any]] = {}
    given = {
        **core,
        "Metric": _Metric,
        "AggregationType": metrics,
        "no_padding_2_padding": lambda x, _data: x,
        "get_policy_loss_fn": lambda _mode: core["compute_policy_loss_vanilla"],
        "get_distillation_loss_fn": lambda mode: losses[mode],
    }
    names = ("distillation_loss", "compute_distillation_loss_range", estimator, "compute_forward_kl_topk")
    distillation = load(verl, _DISTILLATION, *names, given=given)
    losses |= dict.fromkeys(("k1", "abs", "k2", "k3"), distillation[estimator])
    losses["forward_kl_topk"] = distillation["compute_forward_kl_topk"]
    return SimpleNamespace(
        **core,
        **reward,
        distillation_loss=distillation["distillation_loss"],
        top_k=top_k["compute_forward_kl_topk"],
    )


def _global_batch(rollout: Rollout) -> dict[str, Any]:
    """The totals that verl hands to its aggregation; the tokens of the batch are a constant."""
    count = len(rollout.tokens)
    return {"dp_size": 1, "batch_num_tokens": count, "global_batch_size": count, "loss_scale_factor": None}


def in_loss(kind: str, mode: str, rollout: Rollout) -> torch.Tensor:
    """The lines of verl's `ppo_loss` under ``use_kl_loss``: `kl_penalty`, then `agg_loss`."""
    verl = functions()
    kl = verl.kl_penalty(logprob=rollout.logp, ref_logprob=rollout.ref_logp, kl_penalty=kind)
    total: torch.Tensor = verl.agg_loss(kl, rollout.completion_mask, mode, **_global_batch(rollout))
    return total


def in_reward(kind: str, rollout: Rollout) -> torch.Tensor:
    """`apply_kl_penalty`, the returns of its rewards (discount 1), and verl's clipped PPO loss."""
    verl, mask = functions(), rollout.completion_mask
    batch = _Batch(
        response_mask=mask,
        token_level_scores=torch.zeros_like(rollout.sampled_from),
        old_log_probs=rollout.sampled_from,
        ref_log_prob=rollout.ref_logp,
    )
    control = SimpleNamespace(value=1.0, update=lambda **_: None)
    data, _ = verl.apply_kl_penalty(SimpleNamespace(batch=batch), control, kind)
    returns = credit(data.batch["token_level_rewards"], mask)
    config = _Settings(
        clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, global_batch_info=_global_batch(rollout)
    )
    loss: torch.Tensor
    loss, _ = verl.compute_policy_loss_vanilla(
        rollout.sampled_from, rollout.logp, returns, mask, "token-mean", config
    )
    return loss


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
    loss_config = _Settings(
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
            teacher_topk_log_probs=_Jagged(is_nested=True, content=head.values.flatten(0, 1)),
            teacher_topk_ids=_Jagged(is_nested=True, content=head.indices.flatten(0, 1)),
            config=distillation_config,
            data_format="thd",
        )
        output |= {name: x.view(mask.shape) for name, x in found.items()}
    data = {
        "response_mask": mask,
        "teacher_logprobs": rollout.ref_logp.unsqueeze(-1),
        "old_log_probs": rollout.sampled_from,
        **_global_batch(rollout),
    }
    config = SimpleNamespace(loss_agg_mode="token-mean", loss_scale_factor=None, global_batch_info={})
    loss: torch.Tensor
    loss, _ = verl.distillation_loss(config, distillation_config, output, data)
    return loss


def by_batch(returns: torch.Tensor) -> torch.Tensor:
    """`compute_gae_advantage_return` without a critic, each row a batch of answers of one token."""
    ones = returns.new_ones(returns.shape[1], 1)
    nothing = torch.zeros_like(ones)

    def one(batch: torch.Tensor) -> torch.Tensor:
        rewards = batch.unsqueeze(1)
        found: torch.Tensor
        found, _ = functions().compute_gae_advantage_return(rewards, nothing, ones, 1.0, 1.0)
        return found.squeeze(1)

    return torch.vmap(one)(returns)


def by_group(returns: torch.Tensor) -> torch.Tensor:
    """`compute_grpo_outcome_advantage`, each row the answers to one prompt, of one token."""
    prompt = torch.arange(len(returns)).repeat_interleave(returns.shape[1]).tolist()
    column = returns.reshape(-1, 1)
    found: torch.Tensor
    found, _ = functions().compute_grpo_outcome_advantage(column, torch.ones_like(column), prompt)
    return found.view_as(returns)


_DIVIDED = (
    Division(
        "rewards and penalty",
        "batch",
        SourceLocation(_CORE, "compute_gae_advantage_return"),
        by_batch,
        instead="algorithm.adv_estimator=rloo",
    ),
    Division(
        "rewards and penalty",
        "group",
        SourceLocation(_CORE, "compute_grpo_outcome_advantage"),
        by_group,
        when="algorithm.adv_estimator=grpo",
        instead="algorithm.norm_adv_by_std_in_grpo=False",
    ),
)


def _in_loss(kind: str, mode: str = "token-mean") -> Setting:
    suffix = "" if mode == "token-mean" else "_" + mode.replace("-", "_")
    default = ""
    if kind == "k3" and not suffix:
        default = "of the actor once use_kl_loss is True (there called low_var_kl)"
    also = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}.get(kind)
    return Setting(
        name=f"verl.loss_{kind.replace('+', '_plus')}{suffix}",
        option=f"actor_rollout_ref.actor: use_kl_loss=True, kl_loss_type={kind}, loss_agg_mode={mode}",
        loss=partial(in_loss, kind, mode),
        place=SourceLocation(_CORE, "kl_penalty"),
        placement="loss",
        level="token",
        aggregation=f"{mode}: {_MODES[mode]}",
        default=default,
        note=f"{also} is another name of {kind}." if also else "",
        divided=tuple(d._replace(of="rewards") for d in _DIVIDED),
    )


def _in_reward(kind: str) -> Setting:
    return Setting(
        name=f"verl.reward_{kind}",
        option=f"algorithm: use_kl_in_reward=True, kl_penalty={'kl' if kind == 'k1' else kind}",
        loss=partial(in_reward, kind),
        place=SourceLocation("verl/trainer/ppo/ray_trainer.py", "apply_kl_penalty"),
        placement="reward",
        level="sequence",
        aggregation="sum over the sequence (GRPO, or GAE with gamma = lam = 1)",
        default="of the reward once use_kl_in_reward is True" if kind == "k1" else "",
        note="The KL is that of the policy that sampled; PPO's clip (0.2) acts off-policy.",
        divided=_DIVIDED,
    )


def _distilled(name: str, option: str, default: str = "", note: str = "", **options: Any) -> Setting:
    kind = options.pop("kind")
    pg = options.get("policy_gradient", False)
    top_k = kind == "forward_kl_topk"
    return Setting(
        name=f"verl.distillation_{name}",
        option=f"distillation.distillation_loss: {option}",
        loss=partial(distilled, kind, **options),
        place=SourceLocation(_TOP_K, "compute_forward_kl_topk")
        if top_k
        else SourceLocation(_DISTILLATION, "compute_distillation_loss_reverse_kl_estimator"),
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
        words="On-policy; no option weights the loss by the ratio to the policy that sampled. A name with a "
        "plus (k3+) has the gradient of k2 and the value of the other.",
    ),
)
