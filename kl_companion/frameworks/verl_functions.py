"""verl's own functions, cut out of the installed files, and stand-ins for what they read of the rest of verl.

verl imports Ray, TensorDict and more (see `installed`). What its functions take from there (padding, metrics,
configuration) is stood in for by the few attributes that they read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import find, known, load
from kl_companion.rollout import Rollout

CORE = "verl/trainer/ppo/core_algos.py"
DISTILLATION = "verl/trainer/distillation/losses.py"
TOP_K = "verl/trainer/distillation/fsdp/losses.py"


class Configuration(SimpleNamespace):
    """A configuration as verl's functions read it: attributes, and ``get``."""

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or the default."""
        return getattr(self, name, default)


class _Metric:
    """verl's wrapper of a number for its logs: nothing is logged here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class Batch(dict[str, Any]):
    """A dictionary of tensors with a batch size, which is what is read of verl's data protocol."""

    @property
    def batch_size(self) -> tuple[int]:
        """How many sequences it holds."""
        return (len(next(iter(self.values()))),)


class Jagged(SimpleNamespace):
    """A nested tensor as the top-k loss reads it: the tokens of the batch, one after the other."""

    def values(self) -> torch.Tensor:
        """All rows, [tokens, k]."""
        return self.content


@cache
def functions() -> SimpleNamespace:
    """verl's own functions, out of the installed files; `Unavailable` without them."""
    verl = find(*known("verl"))
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
        *("compute_rloo_outcome_advantage", "compute_reinforce_plus_plus_outcome_advantage"),
    )
    core = load(verl, CORE, *wanted, given=given)
    reward = load(
        verl,
        "verl/trainer/ppo/ray_trainer.py",
        "apply_kl_penalty",
        given={"core_algos": SimpleNamespace(**core), "masked_mean": masked["masked_mean"]},
    )
    top_k = load(
        verl,
        TOP_K,
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
    distillation = load(verl, DISTILLATION, *names, given=given)
    losses |= dict.fromkeys(("k1", "abs", "k2", "k3"), distillation[estimator])
    losses["forward_kl_topk"] = distillation["compute_forward_kl_topk"]
    class_of_metrics = type("Metric", (_Metric,), {"from_dict": staticmethod(lambda x, **_: x)})
    actor = load(
        verl, "verl/workers/utils/losses.py", "ppo_loss", given={**given, "Metric": class_of_metrics}
    )
    return SimpleNamespace(
        **core,
        **reward,
        **actor,
        distillation_loss=distillation["distillation_loss"],
        top_k=top_k["compute_forward_kl_topk"],
    )


def global_batch(rollout: Rollout) -> dict[str, Any]:
    """The totals that verl hands to its aggregation; the tokens of the batch are a constant."""
    count = len(rollout.tokens)
    return {"dp_size": 1, "batch_num_tokens": count, "global_batch_size": count, "loss_scale_factor": None}
