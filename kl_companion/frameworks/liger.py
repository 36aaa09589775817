"""Liger: the chunked GRPO and JSD losses of any release, the classes as a user calls them, not compiled.

The logits of the rollout are the hidden states and the identity is the output layer; what is compiled casts
to float32.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kl_companion.frameworks.installed import Distribution, SourceLocation, Unavailable, statement
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import NEEDED, Shipped, chosen, written
from kl_companion.rollout import Rollout

__all__ = ["grpo", "jsd"]
_FOLDER = "liger_kernel/chunked_loss"


def _parameters(liger: Distribution, file: str, method: str) -> dict[str, Any]:
    """The parameters of a method after self, with literal defaults; `NEEDED` for one without."""
    if not (liger.root / file).is_file():
        raise Unavailable(f"liger-kernel {liger.version} has no {Path(file).name}")
    node = statement(liger, file, method)
    assert isinstance(node, ast.FunctionDef)
    names = [a.arg for a in node.args.args[1:]]
    values = [ast.literal_eval(d) for d in node.args.defaults]
    return dict(zip(names, [NEEDED] * (len(names) - len(values)) + values, strict=True))


def _head(logits: torch.Tensor) -> torch.Tensor:
    return torch.eye(logits.shape[-1], dtype=logits.dtype)


def _call(loss_fn: torch.nn.Module, parameters: Mapping[str, Any], given: Mapping[str, Any]) -> torch.Tensor:
    """The loss of a module that is called with those arguments that this release has."""
    found = loss_fn(**{name: value for name, value in given.items() if name in parameters})
    loss: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return loss


def _grpo_loss(
    cls: Any,
    parameters: Mapping[str, Any],
    config: Mapping[str, Any],
    rollout: Rollout,
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    logits, ref_logits = rollout.logits, rollout.ref_logits
    assert logits is not None
    assert ref_logits is not None
    tokens, mask = rollout.tokens, rollout.completion_mask
    if "rewards" in parameters:  # advantages are made inside: a group of two equal answers has none
        logits, ref_logits, tokens, mask = (torch.cat((x, x)) for x in (logits, ref_logits, tokens, mask))
    count = len(tokens)
    own = {
        "beta": 1.0 if advantages is None else 0.0,
        "compiled": False,
        "chunk_size": count,
        "num_generations": count,
    }
    given = {**config, **{name: value for name, value in own.items() if name in config}}
    if given.get("max_completion_length", count) is None:
        given["max_completion_length"] = tokens.shape[1]
    zeros = torch.zeros(count, dtype=logits.dtype)
    arguments = {
        "_input": logits,
        "lin_weight": _head(logits),
        "selected_token_ids": tokens,
        "attention_mask": mask,
        "rewards": zeros,
        "advantages": zeros if advantages is None else advantages[:, 0],
        "ref_per_token_logps": rollout.ref_logp,
        "old_per_token_logps": rollout.sampled_from,
        "num_items_in_batch": torch.tensor(float(count), dtype=logits.dtype),
    }
    if "ref_per_token_logps" not in parameters:
        arguments |= {"ref_input": ref_logits, "ref_weight": _head(ref_logits)}
    return _call(cls(**given), parameters, arguments)


def grpo(liger: Distribution, options: Mapping[str, Any]) -> Shipped:
    """`LigerFusedLinearGRPOLoss`: the KL term, with the defaults of the class.

    The first two releases are not told which tokens were sampled: they take the most likely ones.
    """
    file, name = f"{_FOLDER}/grpo_loss.py", "LigerFusedLinearGRPOLoss"
    config, parameters = _read(liger, file, name, options)
    of = "LigerFusedLinearGRPOFunction"
    sampled = "selected_token_ids" in parameters
    function = f"{of}.{'ppo_loss_fn' if sampled else 'rlhf_loss_fn'}"
    shown = ("beta", "loss_type", "importance_sampling_level", "use_bias_correction_kl")
    return Shipped(
        partial(_grpo_loss, link(liger, file, name), parameters, config),
        written(name, config, shown, options),
        float(config["beta"]),
        SourceLocation(file, function),
        sampled=sampled,
    )


def _module(
    cls: Any, parameters: Mapping[str, Any], arguments: Mapping[str, Any], own: Mapping[str, Any]
) -> torch.Tensor:
    """The JSD loss as a user calls it."""
    return _call(cls(**own, compiled=False), parameters, arguments)


def _at_once(function: Any, arguments: Mapping[str, Any], own: Mapping[str, Any]) -> torch.Tensor:
    """The JSD loss of a release that calls `_compute_loss` token by token: here once for all of them."""
    renamed = {n.replace("input", "input_chunk"): x for n, x in arguments.items() if n != "true_labels"}
    labels = arguments["true_labels"]
    found = function._compute_loss(
        **renamed,
        target_chunk=labels,
        full_target=labels,
        distillation_loss_fn=function.distillation_loss_fn,
        **own,
    )
    loss: torch.Tensor = found[0]
    return loss


def _jsd_loss(loss: Any, config: Mapping[str, Any], rollout: Rollout) -> torch.Tensor:
    assert rollout.logits is not None
    assert rollout.ref_logits is not None
    kept = rollout.completion_mask.bool()
    student, teacher, labels = rollout.logits[kept], rollout.ref_logits[kept], rollout.tokens[kept]
    own = {**config, "weight_hard_loss": 0.0, "weight_soft_loss": 1.0}
    arguments = {
        "student_input": student,
        "student_weight": _head(student),
        "teacher_input": teacher,
        "teacher_weight": _head(teacher),
        "true_labels": labels,
        "student_bias": None,
        "teacher_bias": None,
    }
    return loss(arguments, own) * len(labels) / len(rollout.tokens)


def jsd(liger: Distribution, options: Mapping[str, Any]) -> Shipped:
    """`LigerFusedLinearJSDLoss` without its hard loss, times the tokens of the batch.

    It is given the tokens of the answers alone: before 0.6.5 it adds the divergence at every other position
    too, whose labels are ignored in the hard loss only, and divides by the number of all positions.
    """
    file, name = f"{_FOLDER}/jsd_loss.py", "LigerFusedLinearJSDLoss"
    config, parameters = _read(liger, file, name, options)
    if "chunk_size" in config:
        loss = partial(_module, link(liger, file, name), parameters)
    else:
        loss = partial(_at_once, link(liger, file, "LigerFusedLinearJSDFunction"))
    own = {key: value for key, value in config.items() if key != "compiled"}
    return Shipped(
        partial(_jsd_loss, loss, own),
        written(name, config, ("weight_hard_loss", "weight_soft_loss", "beta"), options),
        None,
        SourceLocation(file, "LigerFusedLinearJSDFunction.distillation_loss_fn"),
        sampled=False,
    )


def _read(
    liger: Distribution, file: str, name: str, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options that a class is made with, and the parameters of its call."""
    defaults = _parameters(liger, file, f"{name}.__init__")
    config = chosen(defaults, options, f"{name} of liger-kernel {liger.version}")
    return config, _parameters(liger, file, f"{name}.forward")
