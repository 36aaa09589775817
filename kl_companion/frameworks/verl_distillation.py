"""verl's distillation from a teacher in the place of the reference, in any release."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import Distribution, SourceLocation, Unavailable, tree_of
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, chosen
from kl_companion.frameworks.verl import (
    CONFIGS,
    CORE,
    PADDED,
    PLAIN,
    Configuration,
    below,
    global_batch,
    only,
    words,
)
from kl_companion.frameworks.yaml_defaults import yaml_defaults
from kl_companion.rollout import Rollout

__all__ = ["distillation", "distillation_of_heads"]
DISTILLATION = "verl/trainer/distillation/losses.py"
TOP_K = "verl/trainer/distillation/fsdp/losses.py"
Output = Callable[[Any, Rollout], dict[str, torch.Tensor]]
_DISTILLATION = ("loss_mode", "use_policy_gradient", "loss_max_clamp")


class Jagged(SimpleNamespace):
    """A nested tensor as the top-k loss reads it: the tokens of the batch, one after the other."""

    def values(self) -> torch.Tensor:
        """All rows, [tokens, k]."""
        return self.content


def _estimator(verl: Distribution, mode: str) -> str:
    """The function that is registered for a mode; `Unavailable` without one that reads sampled tokens."""
    for node in tree_of(verl.root / DISTILLATION).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                words = {n.value for n in ast.walk(decorator) if isinstance(n, ast.Constant)}
                if mode in words and "use_estimator" in ast.unparse(decorator):
                    return node.name
    raise Unavailable(f"verl {verl.version} has no distillation with loss_mode={mode} of sampled tokens")


def _distilled(function: Any, config: Mapping[str, Any], output: Output, rollout: Rollout) -> torch.Tensor:
    totals = global_batch(rollout)
    # 0.8 reads the totals that the micro-batch before has left in the configuration
    actor = Configuration(loss_agg_mode="token-mean", loss_scale_factor=None, global_batch_info=dict(totals))
    settings = SimpleNamespace(distillation_loss=Configuration(**config, global_batch_info={}))
    data = {
        "response_mask": rollout.completion_mask,
        "teacher_logprobs": rollout.ref_logp.unsqueeze(-1),
        "old_log_probs": rollout.sampled_from,
        **totals,
    }
    total: torch.Tensor = function(actor, settings, output(settings, rollout), data)[0]
    return total


def _log_probs(_: Any, rollout: Rollout) -> dict[str, torch.Tensor]:
    return {"log_probs": rollout.logp}


def _heads(function: Any, settings: Any, rollout: Rollout) -> dict[str, torch.Tensor]:
    """What the student's forward pass makes of the teacher's head."""
    assert rollout.logits is not None
    head = rollout.ref_logp_all.topk(settings.distillation_loss.topk, dim=-1)
    found = function(
        student_logits=rollout.logits.flatten(0, 1).unsqueeze(0),
        teacher_topk_log_probs=Jagged(is_nested=True, content=head.values.flatten(0, 1)),
        teacher_topk_ids=Jagged(is_nested=True, content=head.indices.flatten(0, 1)),
        config=settings,
        data_format="thd",
    )
    parts = {name: x.view(rollout.completion_mask.shape) for name, x in found.items()}
    return {"log_probs": rollout.logp, **parts}


def _distillation_loss(verl: Distribution, name: str) -> Any:
    """The release's `distillation_loss` with the function of a mode, on batches that are padded."""
    function = link(verl, DISTILLATION, name, given=PADDED)
    policy = link(verl, CORE, "compute_policy_loss_vanilla", given=PLAIN)
    given = {
        **PADDED,
        "get_distillation_loss_fn": lambda _: function,
        "get_policy_loss_fn": lambda _: policy,
    }
    return link(verl, DISTILLATION, "distillation_loss", given=given)


def distillation(verl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The distillation from a teacher in the place of the reference, with the defaults of the YAML files."""
    config = _distillation_config(verl, options, _DISTILLATION)
    if config["loss_mode"] == "k1" and not config["use_policy_gradient"]:
        # its other name, kl, is let through
        raise ValueError(f"verl {verl.version} refuses loss_mode=k1 without use_policy_gradient=True")
    name = _estimator(verl, config["loss_mode"])
    return Shipped(
        partial(_distilled, _distillation_loss(verl, name), config, _log_probs),
        words("distillation.distillation_loss", "", config, options, _DISTILLATION),
        None,
        SourceLocation(DISTILLATION, name),
    )


def distillation_of_heads(verl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The forward KL over the teacher's likeliest tokens."""
    name, shown = "compute_forward_kl_topk", ("loss_mode", "topk")
    config = _distillation_config(verl, options, shown)
    alone = {"get_ulysses_sequence_parallel_world_size": lambda: 1}
    output = partial(_heads, link(verl, TOP_K, name, given=alone))
    return Shipped(
        partial(_distilled, _distillation_loss(verl, name), config, output),
        words("distillation.distillation_loss", "", config, options, shown),
        None,
        SourceLocation(TOP_K, name),
        sampled=False,
    )


def _distillation_config(
    verl: Distribution, options: Mapping[str, Any], known: tuple[str, ...]
) -> dict[str, Any]:
    if not (verl.root / DISTILLATION).is_file():
        raise Unavailable(f"verl {verl.version} has no {DISTILLATION}")
    found = yaml_defaults(verl, f"{CONFIGS}/distillation/distillation.yaml")
    defaults = below("distillation_loss.", found)
    where = f"distillation_loss of verl {verl.version}"
    return {**defaults, **chosen(only(defaults, *known), options, where)}
