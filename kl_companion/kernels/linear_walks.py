"""Chunks of tokens from hidden states to logits and back: no [tokens, vocab] array is ever whole.

Two sizes of chunk meet here. A matrix product wants as many tokens as memory allows, because every chunk
reads the weight again (and its gradient twice); the softmax in between wants a few rows that stay in the
cache, and gets them from `kl_companion.kernels.walks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.checks import check_choice
from kl_companion.kernels.blocks import block_bytes, exact_dtype

MEMORY = {"fast": 320_000_000, "frugal": 70_000_000}  # bytes of logits alive at once
_SLAB = 8192  # rows of a weight gradient that are accumulated at once where the dtype is narrow


class Projection(NamedTuple):
    """Hidden states [rows, features] and the layer that makes logits of them."""

    hidden: torch.Tensor
    weight: torch.Tensor  # [vocab, features]
    bias: torch.Tensor | None  # [vocab]

    def logits(self, start: int, stop: int, out: torch.Tensor) -> torch.Tensor:
        """Raw logits of some rows, in the memory of ``out``."""
        found = torch.mm(self.hidden[start:stop], self.weight.T, out=out[: stop - start])
        return found if self.bias is None else found.add_(self.bias)


class Gradients(NamedTuple):
    """Where the gradients of a `Projection` go; None where one is not wanted."""

    hidden: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None

    @property
    def wanted(self) -> bool:
        """Whether any is."""
        return any(g is not None for g in self)


def budget(memory: str | int) -> int:
    """Bytes of a setting, or the bytes themselves; ValueError otherwise."""
    if isinstance(memory, str):
        check_choice("memory", memory, MEMORY)
        return MEMORY[memory]
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise ValueError(f"memory is {memory!r}, expected 'fast', 'frugal' or a number of bytes")
    return memory


def chunk_rows(count: int, memory: str | int, policy: torch.Tensor, buffers: int) -> int:
    """Tokens per chunk, so that ``buffers`` arrays of their logits fit the budget; chunks of equal size.

    At least one token, whatever the budget.
    """
    vocab, dtype = policy.shape[0], exact_dtype(policy)
    scratch = 5 * max(vocab * dtype.itemsize, block_bytes(policy.device))
    fitting = max(1, (budget(memory) - scratch) // (buffers * vocab * policy.dtype.itemsize))
    return math.ceil(count / math.ceil(count / fitting)) if count else 1


def _accumulate(total: torch.Tensor, chunk: torch.Tensor, hidden: torch.Tensor, first: bool) -> None:
    """Add chunk.T @ hidden to a weight gradient; the sum of narrow products is kept wide."""
    if chunk.dtype == total.dtype:
        torch.addmm(total, chunk.T, hidden, beta=0 if first else 1, out=total)
        return
    for start in range(0, total.shape[0], _SLAB):
        part = torch.mm(chunk[:, start : start + _SLAB].T, hidden)
        slab = total[start : start + _SLAB]
        slab.copy_(part) if first else slab.add_(part)


def walk_chunks(
    projection: Projection,
    rows: int,
    on_logits: Callable[[int, int, torch.Tensor, bool], None],
    wanted: tuple[bool, bool, bool],
) -> Gradients:
    """Make the logits of every chunk, let ``on_logits(start, stop, logits, overwrite)`` have them.

    Where ``overwrite`` is true it replaces the logits by their gradient, from which those of hidden states,
    weight and bias are made, whichever is wanted.
    """
    hidden, weight, bias = projection
    count, several = hidden.shape[0], rows < hidden.shape[0]
    wide = exact_dtype(weight) if several else weight.dtype
    # filled by the first chunk; without tokens there is none
    room = torch.empty_like if count else torch.zeros_like
    made = Gradients(
        room(hidden) if wanted[0] else None,
        room(weight, dtype=wide) if wanted[1] else None,
        torch.zeros_like(bias, dtype=exact_dtype(bias)) if wanted[2] and bias is not None else None,
    )
    buffer = weight.new_empty(min(rows, max(count, 1)), weight.shape[0])
    for start in range(0, count, rows):
        stop = min(count, start + rows)
        chunk = projection.logits(start, stop, buffer)
        on_logits(start, stop, chunk, made.wanted)
        if made.hidden is not None:
            torch.mm(chunk, weight, out=made.hidden[start:stop])
        if made.weight is not None:
            _accumulate(made.weight, chunk, hidden[start:stop], start == 0)
        if made.bias is not None:
            made.bias.add_(chunk.sum(0, dtype=made.bias.dtype))
    if weight.dtype == torch.float16:
        # an overflow times zero, or minus another, is NaN: make it infinity, as a scaler of the loss expects
        for gradient in made:
            if gradient is not None:
                gradient.nan_to_num_(math.inf, math.inf, -math.inf)
    return made


def narrow(made: Gradients, policy: Projection) -> tuple[torch.Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    pairs = zip(made, policy, strict=True)
    return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in pairs)
