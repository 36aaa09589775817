"""The loss in what a function returns: reduced to one number, or one per token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from kl_companion.auditing.reading.arguments import ALIGNED, Given, Unusable
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.rollout import Rollout, masked


def loss_of(out: Any, rollout: Rollout, label: str, layout: Layout = ALIGNED) -> tuple[torch.Tensor, str]:
    """The loss in what a function returned, reduced to [batch, seq] or a scalar, and how it was found.

    Args:
        out: A tensor, or a tuple, dict or record that holds one.
        rollout: What was passed.
        label: The function's name, for messages.
        layout: Under which it was passed.

    Raises:
        Unusable: no loss in it, of no shape that is known, or NaN.
    """
    x, where = _within(out)
    x = _unpacked(x, rollout, layout)
    if not isinstance(x, torch.Tensor):
        raise Unusable(
            f"{label} returned {type(out).__name__}, expected a tensor: a scalar, or one per token"
        )
    mask = rollout.completion_mask
    batch, length = mask.shape
    shape = list(x.shape)
    per_token = [length, length + layout.prompt - 1, length + layout.prompt]  # some with a prompt
    if x.numel() == 1 and shape != [batch]:
        x, how = x.reshape(()), "one number"
    elif shape in ([batch, n] for n in per_token):
        begin = layout.prompt - (layout.wide in ("ahead", "short") or shape[1] < per_token[-1])
        x = x if shape[1] == length else x[:, begin : begin + length]
        how = "one value per token: summed over the tokens of an answer, mean over answers"
    elif shape in ([batch], [batch, 1]):
        x, how = x.mean(), "one value per answer: the mean is taken"
    elif shape == [int(mask.sum())]:
        x, how = x.sum() / batch, "one value per token under the mask: summed, mean over answers"
    else:
        raise Unusable(
            f"{label} returned shape {shape}, expected a scalar, or one per token {[batch, length]}, or one "
            f"per answer {[batch]}"
        )
    if (x if x.ndim == 0 else masked(x, mask)).isnan().any():
        raise Unusable(f"{label} returned NaN on an enumerated batch, expected numbers")
    return x, f"{where}{how}"


def _unpacked(x: Any, rollout: Rollout, layout: Layout) -> Any:
    """Return numbers of a row of all answers, one per token, as [batch, seq]; all else as it is."""
    sizes = Given(rollout, layout).of("lengths").tolist() if layout.packed else []
    if not isinstance(x, torch.Tensor) or x.numel() != sum(sizes) or x.numel() != max([*x.shape, 0]):
        return x
    padded = torch.nn.utils.rnn.pad_sequence(list(x.reshape(-1).split(sizes)), batch_first=True)
    width = rollout.tokens.shape[1] + (layout.prompt if layout.shifted else 0)
    return torch.nn.functional.pad(padded, (0, width - padded.shape[1]))


def _within(out: Any) -> tuple[Any, str]:
    """Return what may be the loss in what a function returned, and where it was."""
    if isinstance(out, list) and out and all(isinstance(x, torch.Tensor) and x.ndim < 2 for x in out):
        rows = [x.reshape(-1) for x in out]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).squeeze(-1), "a list: "
    if isinstance(out, tuple) and not hasattr(out, "_fields"):
        tensors = [x for x in out if isinstance(x, torch.Tensor)]
        others = sum(x.requires_grad for x in tensors[1:])
        rest = _not_taken([f"{others} more with a gradient"] * bool(others))
        return tensors[0] if tensors else out, f"the first tensor of the tuple{rest}: "
    quoted = isinstance(out, Mapping)
    entries = out if quoted else {n: getattr(out, n, None) for n in _fields(out)}
    named = [n for n, x in entries.items() if isinstance(n, str) and isinstance(x, torch.Tensor)]
    losses = [n for n in named if n == "loss"] or [n for n in named if "loss" in n]
    if not losses:
        return out, ""
    words = [repr(n) if quoted else n for n in losses]
    return entries[losses[0]], f"its {'' if quoted else '.'}{words[0]}{_not_taken(words[1:])}: "


def _fields(record: Any) -> Sequence[str]:
    """Return the names of what may be a loss in a record; of a tensor none."""
    if isinstance(record, torch.Tensor):
        return ()
    names = getattr(record, "_fields", ())
    return ["loss", *names, *(f.name for f in (fields(record) if is_dataclass(record) else ()))]


def _not_taken(others: Iterable[str]) -> str:
    """The end of a sentence on what was taken as the loss, where there were other candidates."""
    return f", not {', '.join(names)}" if (names := list(others)) else ""
