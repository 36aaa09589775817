"""unsloth-zoo: `grpo_compute_loss`, which stands in for the loss of TRL's trainer, in any release.

Its coefficient is TRL's, and so are most of its arguments; what it takes where it is called without them is
its own default, and is read here. Before 2026 it takes logits, later log-probs.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from kl_companion.frameworks.installed import Distribution, SourceLocation, Unavailable, statement
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, chosen, written
from kl_companion.rollout import Rollout

__all__ = ["grpo"]
_FILE, _NAME = "unsloth_zoo/rl_replacements.py", "grpo_compute_loss"
_SHOWN = ("loss_type", "importance_sampling_level", "use_bias_correction_kl")


def _read(zoo: Distribution) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The parameters of the loss, and its other arguments with their defaults."""
    if not (zoo.root / _FILE).is_file():
        raise Unavailable(f"unsloth-zoo {zoo.version} has no rl_replacements.py")
    node = statement(zoo, _FILE, _NAME)
    assert isinstance(node, ast.FunctionDef)
    defaults = {}
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "kwargs.get":
            name, *default = (ast.literal_eval(a) for a in call.args)
            defaults[name] = default[0] if default else None
    return tuple(a.arg for a in node.args.args), defaults


def _logits_of(logp: torch.Tensor, tokens: torch.Tensor, size: int) -> torch.Tensor:
    """Logits, [batch, seq, size], under which these tokens have these log-probs and others share the rest."""
    others = (torch.log(-torch.expm1(logp)) - math.log(size - 1)).unsqueeze(-1)
    return others.expand(*tokens.shape, size).scatter(-1, tokens.unsqueeze(-1), logp.unsqueeze(-1))


def _loss(
    function: Any,
    parameters: tuple[str, ...],
    config: Mapping[str, Any],
    rollout: Rollout,
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    tokens, count = rollout.tokens, len(rollout.tokens)
    given: dict[str, Any] = {
        "ref": rollout.ref_logp,
        "new": rollout.logp,
        "old": rollout.sampled_from,
        "ref_logits": rollout.ref_logits,
        "new_logits": rollout.logits,
        "sampling_per_token_logps": None,
        "input_ids": tokens,
        "mask": rollout.completion_mask,
        "beta": 1.0 if advantages is None else 0.0,
        "advantages": torch.zeros(count, dtype=rollout.logp.dtype) if advantages is None else advantages,
    }
    if "ref_logits" in parameters:
        assert rollout.logits is not None
        given["old_logits"] = _logits_of(rollout.sampled_from, tokens, rollout.logits.shape[-1])
    else:  # the first releases have no policy of their own that sampled: the old one is the reference
        given["old_logits"] = rollout.ref_logits
    own = dict(config)
    if own.get("num_items_in_batch", count) is None:
        own["num_items_in_batch"] = torch.tensor(float(count), dtype=rollout.logp.dtype)
    if "max_completion_length" in own:
        own["max_completion_length"] = tokens.shape[1]
    loss: torch.Tensor = function(*(given[name] for name in parameters), **own)[0]
    return loss


def grpo(zoo: Distribution, options: Mapping[str, Any]) -> Shipped:
    """`grpo_compute_loss`: the KL term, with what it takes where it is not told otherwise."""
    parameters, defaults = _read(zoo)
    config = chosen(defaults, options, f"{_NAME} of unsloth-zoo {zoo.version}")
    return Shipped(
        partial(_loss, link(zoo, _FILE, _NAME), parameters, config),
        written(_NAME, config, _SHOWN, options),
        None,
        SourceLocation(_FILE, _NAME),
    )
