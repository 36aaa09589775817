"""The monitor in verl: its batch holds what is needed under names of its own.

In a loop::

    monitor = KLMonitor(folder, beta=config.actor.kl_loss_coef, estimator="k3", clamp=(-20, 20))
    if monitor.due(step):                                  # in the trainer's loop, once advantages are known
        monitor.observe_batch(batch, step=step, logged=metrics["actor/kl_loss"])

A batch of verl holds log-probs of sampled tokens, so that what needs whole distributions stays unknown. Where
logits are at hand, [batch, seq, vocab] of the response's positions, they are added as ``logits`` and
``ref_logits``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kl_companion.checks import described

# argument of `observe` -> verl's names of it, the first that is there counts
NAMES: dict[str, tuple[str, ...]] = {
    "tokens": ("responses",),
    "mask": ("response_mask",),
    "logits": ("logits",),
    "ref_logits": ("ref_logits",),
    "logp": ("old_log_probs",),
    "ref_logp": ("ref_log_prob",),
    "behavior_logp": ("rollout_log_probs",),
    "advantages": ("advantages",),
    # rewards as they were scored; the others may have a KL subtracted
    "rewards": ("token_level_scores", "token_level_rewards"),
    "prompt_index": ("uid",),
}
NEEDED = ("tokens", "mask")


def arguments(batch: Any, **more: Any) -> dict[str, Any]:
    """The arguments of `KLMonitor.observe` that a batch of verl holds.

    Args:
        batch: A mapping with verl's names, or its `DataProto`: ``batch`` and ``non_tensor_batch`` are read.
        **more: Further arguments, and others than the batch's.

    Returns:
        Arguments by name. An answer without a token is left out; log-probs are only read without logits.

    Raises:
        ValueError: neither a mapping nor a `DataProto`, or no ``responses`` or ``response_mask``.
    """
    held = _mapping(batch)
    found = {
        argument: held[next(name for name in names if name in held)]
        for argument, names in NAMES.items()
        if any(name in held for name in names)
    }
    if lost := [NAMES[argument][0] for argument in NEEDED if argument not in found]:
        raise ValueError(f"the batch has no {' and no '.join(lost)}, expected verl's names: {_known()}")
    found.setdefault("logits", None)
    found.setdefault("ref_logits", None)
    if found["logits"] is not None:
        found.pop("logp", None)
        found.pop("ref_logp", None)
    mask = found["mask"]
    if "rewards" in found and found["rewards"].ndim == 2:
        found["rewards"] = (found["rewards"] * mask).sum(-1)
    if "prompt_index" in found:
        found["prompt_index"] = _numbered(found["prompt_index"])
    return {**_with_tokens(found), **more}


def _mapping(batch: Any) -> Mapping[str, Any]:
    if isinstance(batch, Mapping):
        return batch
    inner = getattr(batch, "batch", None)
    if inner is None or not hasattr(inner, "keys"):
        raise ValueError(f"batch is {described(batch)}, expected a mapping with verl's names, or a DataProto")
    others = getattr(batch, "non_tensor_batch", None) or {}
    return {**{name: inner[name] for name in inner.keys()}, **others}  # noqa: SIM118 (a TensorDict)


def _known() -> str:
    return ", ".join(name for names in NAMES.values() for name in names)


def _numbered(uid: Any) -> torch.Tensor:
    """Groups by number, [answers], from tensors or from arrays of any labels."""
    if isinstance(uid, torch.Tensor):
        return uid
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(str(x), len(numbers)) for x in uid])


def _with_tokens(found: dict[str, Any]) -> dict[str, Any]:
    """Without the answers that have no token; groups and rewards are of all of them."""
    kept = found["mask"].bool().any(-1).cpu()
    if kept.all():
        return found
    whole, index = ("rewards", "prompt_index"), kept.nonzero()[:, 0]
    return {name: x if x is None or name in whole else x[index.to(x.device)] for name, x in found.items()}
