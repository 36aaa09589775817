"""Cache-sized blocks of rows: how the exact kernels walk over logits of any size, shape and dtype.

And new memory for gradients as large as logits, in few and large pages. Whoever writes to new memory first
waits for its pages, 4 KiB at a time: on some machines longer than the gradient takes to compute. Linux gives
pages of 2 MiB to whoever asks for them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any, NamedTuple

import torch

# bytes of a block in the dtype that is worked in
_BLOCK_BYTES = {"cpu": 1 << 22}
_COMPILED_BYTES = {"cpu": 1 << 24}
_BLOCK_BYTES_ELSEWHERE = 1 << 27  # a GPU waits for whoever starts its work: few blocks
_SHORTEST, _LONGEST = 256, 4096  # entries of a piece
_MOST_BYTES = 1 << 24  # limit for rows so long that one per thread would take more
_PAGE = 1 << 21
_WORTH = 4 * _PAGE  # bytes of a tensor for which large pages are worth asking


def exact_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """The dtype of results: float64 where one of the tensors is, float32 for everything narrower."""
    return torch.float64 if torch.float64 in [x.dtype for x in tensors] else torch.float32


def block_bytes(device: torch.device, compiled: bool = False) -> int:
    """Bytes that a block should have on a device."""
    return (_COMPILED_BYTES if compiled else _BLOCK_BYTES).get(device.type, _BLOCK_BYTES_ELSEWHERE)


def rows_per_block(vocab: int, dtype: torch.dtype, device: torch.device, compiled: bool = False) -> int:
    """Rows that make a block of about `block_bytes`; at least one per thread."""
    row = max(1, vocab * dtype.itemsize)
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    return max(1, block_bytes(device, compiled) // row, min(threads, _MOST_BYTES // row))


def pieces(vocab: int, device: torch.device) -> int:
    """Into how many equal pieces a row is cut for its sums, on a processor.

    A piece stays in the smallest cache while it is read several times, and so few float32 numbers are added
    up one after the other that their sum keeps its digits; sums of pieces are added in float64.
    """
    return _equal_pieces(vocab) if device.type == "cpu" else 1


@cache
def _equal_pieces(vocab: int) -> int:
    good = [n for n in range(2, vocab // _SHORTEST + 1) if vocab % n == 0 and vocab // n <= _LONGEST]
    return next((n for n in good if vocab // n % 2 == 0), next(iter(good), 1))


def by_piece(numbers: torch.Tensor, each: int) -> torch.Tensor:
    """Numbers [..., rows] repeated for ``each`` pieces; no view, at whose base a compiler would look."""
    if each == 1:
        return numbers.clone()
    rows = numbers.shape[-1]
    return numbers.index_select(-1, torch.arange(rows * each, device=numbers.device) // each)


def plain(device: torch.device) -> AbstractContextManager[object]:
    """Neither gradients nor autocast inside."""
    inside = ExitStack()
    inside.enter_context(torch.no_grad())
    if torch.amp.is_autocast_available(device.type):
        inside.enter_context(torch.autocast(device.type, enabled=False))
    return inside


def matrices(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Aligned views [rows, vocab] of tensors [..., vocab] of one leading shape, in order, without copies."""
    first = tensors[0]
    if first.ndim == 1:
        yield tuple(t.unsqueeze(0) for t in tensors)
        return
    if first.ndim == 2:
        yield tensors
        return
    try:
        yield tuple(t.view(-1, t.shape[-1]) for t in tensors)
    except RuntimeError:  # strides of the leading axes do not merge
        for parts in zip(*tensors, strict=True):
            yield from matrices(*parts)


class Block(NamedTuple):
    """Rows start:stop of the flattened leading axes, and the view of every tensor there."""

    start: int
    stop: int
    views: tuple[torch.Tensor, ...]


def blocks(rows: int, *tensors: torch.Tensor) -> Iterator[Block]:
    """Blocks of ``rows`` rows of aligned tensors [..., vocab], one more where a single row would be left."""
    if tensors[0].numel() == 0:
        return
    done = 0
    for parts in matrices(*tensors):
        count = parts[0].shape[0]
        start = 0
        while start < count:
            stop = count if start + rows >= count - 1 else start + rows
            yield Block(done + start, done + stop, tuple(p[start:stop] for p in parts))
            start = stop
        done += count


@cache
def _madvise() -> Any:
    """The system's own function, Linux's or None: Python's covers only what Python has mapped."""
    return ctypes.CDLL(None).madvise if sys.platform == "linux" else None


def new_like(x: torch.Tensor) -> torch.Tensor:
    """Contiguous memory of the shape of a tensor, not filled."""
    made = torch.empty_like(x, memory_format=torch.contiguous_format)
    advise = _madvise()
    if advise is not None and made.device.type == "cpu" and made.nbytes >= _WORTH:
        start = -(-made.data_ptr() // _PAGE) * _PAGE
        stop = (made.data_ptr() + made.nbytes) // _PAGE * _PAGE
        # a system without such pages refuses, and nothing else is different
        advise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_HUGEPAGE)
    return made
