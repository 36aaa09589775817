"""Functions that trainers keep in a file of their own, under the names that most of them use.

A loss is pasted without that file. What its name says without doubt is lent to it, and the card says so; an
estimator of a KL only where the call names it, and a reduction that differs from trainer to trainer is not.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any, cast

import torch

from kl_companion.auditing.reading.arguments import NotHere
from kl_companion.auditing.reading.stand_ins import Absent, AbsentModule
from kl_companion.estimators.registry import get_estimator

_IMPORTS = """
import math, torch
import torch.nn as nn, torch.nn.functional as F
from dataclasses import dataclass, field
from typing import *
"""


def masked_sum(
    values: torch.Tensor, mask: torch.Tensor, axis: int | None = None, dim: int | None = None, **_: Any
) -> torch.Tensor:
    """Return the sum of values [...] under a mask [...], over all of them or along one axis."""
    along = dim if axis is None else axis
    inside = values * mask
    return inside.sum() if along is None else inside.sum(along)


def masked_mean(
    values: torch.Tensor, mask: torch.Tensor, axis: int | None = None, dim: int | None = None, **_: Any
) -> torch.Tensor:
    """Return the mean of values [...] under a mask [...], over all of them or along one axis."""
    return masked_sum(values, mask, axis, dim) / masked_sum(torch.ones_like(values), mask, axis, dim)


def masked_whiten(values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True) -> torch.Tensor:
    """Return values [...] over their standard deviation under a mask, with mean 0 unless it is kept."""
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    apart = (values - mean) * torch.rsqrt(variance + 1e-8)
    return apart if shift_mean else apart + mean


def gathered_log_probs(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return the log-probs [...] of labels [...] under logits [..., vocab]."""
    return torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def entropy_from_logits(logits: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return the entropy [...] of logits [..., vocab], in nats."""
    logp = torch.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1)


def named_estimator(logp: torch.Tensor, ref_logp: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return the estimator [...] that one further argument names, of log-probs [...] of two policies.

    Raises:
        NotHere: no argument names one, or there are others.
    """
    further = [*args, *kwargs.values()]  # a weight, a mask: what is done with it differs
    estimator = ESTIMATORS.get(further[0]) if len(further) == 1 and isinstance(further[0], str) else None
    if estimator is None:
        raise NotHere(
            f"the loss calls an estimator of the KL and names none of {', '.join(ESTIMATORS)}: expected "
            "a text with its lines too"
        )
    return cast(torch.Tensor, get_estimator(estimator).fn(logp, ref_logp))


ESTIMATORS = {"k1": "k1", "kl": "k1", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3"}
_MEANS: dict[Callable[..., Any], tuple[str, str]] = {
    masked_sum: ("the sum under the mask", "masked_sum"),
    masked_mean: ("the mean under the mask", "masked_mean"),
    masked_whiten: ("values less their mean, over their standard deviation", "masked_whiten"),
    gathered_log_probs: (
        "log-probs of the given tokens",
        "selective_log_softmax logprobs_from_logits log_probs_from_logits logprobs_of_labels "
        "gather_log_probs gather_logprobs compute_log_probs_from_logits",
    ),
    named_estimator: ("the estimator that its argument names", "kl_penalty compute_approx_kl"),
    entropy_from_logits: ("the entropy of every token", "entropy_from_logits compute_entropy_from_logits"),
}
HELPERS: dict[str, Callable[..., Any]] = {
    name: helper for helper, (_, names) in _MEANS.items() for name in names.split()
}


@cache
def usual_imports() -> Mapping[str, Any]:
    """Return what a text may read without importing it."""
    names: dict[str, Any] = {}
    exec(_IMPORTS, names)
    del names["__builtins__"]
    return MappingProxyType(names)


def lend(module: ModuleType, tree: ast.AST) -> None:
    """Give a module the helpers that its text reads and that are not there.

    Args:
        module: Executed; it keeps what it has made or imported, and gets ``__lent__``, names of helpers.
        tree: Its text.
    """
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            name, absent = node.id, isinstance(vars(module).get(node.id, Absent("")), Absent)
            owner: Any = module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name, owner = node.attr, vars(module).get(node.value.id)
            absent = isinstance(owner, Absent | AbsentModule)
        else:
            continue
        if absent and name in HELPERS:
            setattr(owner, name, HELPERS[name])
            names[name] = None
    vars(module)["__lent__"] = list(names)


def lent(function: Any) -> list[str]:
    """Return a sentence on each helper that was lent to the module of a function."""
    names = getattr(getattr(function, "__func__", function), "__globals__", {}).get("__lent__", ())
    return [f"{name} is not in the text: read as {_MEANS[HELPERS[name]][0]}" for name in names]
