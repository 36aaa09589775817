"""Functions of tensors that were made from f, put together where a single form would overflow.

No SymPy here: what is compiled from the registry and what was compiled before and is read from a file come
through the same lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Elementwise = Callable[[torch.Tensor], torch.Tensor]

NAMES = {
    **{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "expm1", "log1p")},
    **dict.fromkeys(("abs", "Abs"), torch.abs),
    "where": torch.where,
    "sgn": torch.sign,
    "softplus": lambda x: torch.nn.functional.softplus(x, threshold=40.0),
}


def filled(out: Any, like: torch.Tensor) -> Any:
    """What a printed expression gave, constants as tensors; of a tuple each."""
    if isinstance(out, tuple):
        return tuple(filled(part, like) for part in out)
    return out if isinstance(out, torch.Tensor) else torch.full_like(like, float(out))


def _moderate(log_t: torch.Tensor) -> bool:
    """Whether f and f' may be taken as they stand: float64, and no power of t near its largest number."""
    if log_t.dtype != torch.float64 or not log_t.numel():
        return False
    if log_t.device.type != "cpu":  # to look would wait for a GPU
        return False
    return bool(max(abs(x) for x in torch.aminmax(log_t.detach())) < 20.0)


def slope(below: Elementwise, above: Elementwise, log_t: torch.Tensor) -> torch.Tensor:
    """f'(t) from log t, by a function of log t for t <= 1 and one of -log t for t >= 1."""
    if _moderate(log_t):
        return below(log_t)
    low, high = log_t.clamp(max=0.0), log_t.clamp(min=0.0)
    return torch.where(log_t > 0, above(-high), below(low))


def generator(direct: Elementwise, other: Elementwise, log_t: torch.Tensor) -> torch.Tensor:
    """f(t) where t may overflow, from f and its dual: f(t) below t = 1, t times the dual of 1/t above."""
    if _moderate(log_t):
        return direct(log_t)
    low, high = log_t.clamp(max=0.0), log_t.clamp(min=0.0)
    above = high.exp() * other(-high)
    if above.isnan().any():
        above = torch.where(above.isnan(), direct(log_t), above)
    return torch.where(log_t > 0, above, direct(low))
