"""New memory for gradients as large as logits, in few and large pages.

Whoever writes to new memory first waits for its pages, 4 KiB at a time: on some machines longer than the
gradient takes to compute. Linux gives pages of 2 MiB to whoever asks for them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from typing import Any

import torch

_PAGE = 1 << 21
_WORTH = 4 * _PAGE  # bytes of a tensor that is worth asking


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
