"""Cache-sized blocks of rows: how the exact kernels walk over logits of any size, shape and dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

_BLOCK_BYTES = {
    "cpu": 1 << 20
}  # size of one scratch buffer: five of them and the inputs fit into the L2 cache
_BLOCK_BYTES_ELSEWHERE = 1 << 25  # large enough to be worth a kernel launch
_MOST_BYTES = 1 << 24  # limit for rows so long that one per thread would take more


def exact_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype that rows are worked on in: float64 for float64, float32 for everything narrower."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def block_bytes(device: torch.device) -> int:
    """Bytes that one scratch buffer should have on a device."""
    return _BLOCK_BYTES.get(device.type, _BLOCK_BYTES_ELSEWHERE)


def rows_per_block(vocab: int, dtype: torch.dtype, device: torch.device) -> int:
    """Rows whose scratch buffer fits the cache; at least one per thread, because a softmax splits by rows."""
    row = max(1, vocab * dtype.itemsize)
    fitting = block_bytes(device) // row
    threads = torch.get_num_threads() if device.type == "cpu" else 1
    return max(1, fitting, min(threads, _MOST_BYTES // row))


class SoftCap(NamedTuple):
    """What stands between raw logits and the softmax's: c tanh(logits/c), where a model has it."""

    cap: float | None = None

    def load(self, raw: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        """The logits of a block in the dtype of scratch: the block itself where it is ready, else scratch."""
        if self.cap is None and raw.dtype == scratch.dtype:
            return raw
        scratch.copy_(raw)
        return scratch if self.cap is None else scratch.div_(self.cap).tanh_().mul_(self.cap)

    def chain(self, gradient: torch.Tensor, loaded: torch.Tensor) -> torch.Tensor:
        """The gradient by the raw logits, in place, from that by the loaded ones."""
        if self.cap is None:
            return gradient
        return gradient.mul_((loaded / self.cap).square_().neg_().add_(1.0))


def softmax_at(x: torch.Tensor, temperature: float, out: torch.Tensor) -> torch.Tensor:
    """softmax(x / temperature) of rows, into ``out``; an offset of the rows costs no digits.

    Long rows are to be divided by their own sum: torch adds up the normalizer with millionths of error.
    """
    if temperature == 1.0:
        return torch.softmax(x, -1, out=out)
    top = x.amax(-1, keepdim=True).nan_to_num(nan=torch.nan, posinf=0.0, neginf=0.0)
    return torch.softmax((x - top).div_(temperature), -1, out=out)


NO_CAP = SoftCap()


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
    """Blocks of at most ``rows`` rows of aligned tensors [..., vocab]."""
    if tensors[0].numel() == 0:
        return
    done = 0
    for parts in matrices(*tensors):
        count = parts[0].shape[0]
        for start in range(0, count, rows):
            stop = min(count, start + rows)
            yield Block(done + start, done + stop, tuple(p[start:stop] for p in parts))
        done += count
