"""What a monitor is told of a run, checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from kl_companion.checks import check_number, check_scalar, check_temperature, described
from kl_companion.monitor.mismatch import Engine
from kl_companion.monitor.moments import Clamp


def whole(name: str, x: Any, least: int) -> int:
    """A whole number of at least ``least``; ValueError for anything else."""
    if isinstance(x, bool) or not isinstance(x, int) or x < least:
        raise ValueError(f"{name} is {described(x)}, expected a whole number of at least {least}")
    return x


def one_number(name: str, x: Any) -> float:
    """A number or a tensor of one as a float, NaN for None; ValueError for anything else."""
    if x is None:
        return math.nan
    if isinstance(x, torch.Tensor) and x.numel() == 1:
        x = x.item()
    check_number(name, x)
    return float(x)


def engine_of(engine: Any) -> Engine | None:
    """The declared engine, or that of a (temperature, top_p, top_k)."""
    if engine is None:
        return None
    if not isinstance(engine, tuple) or len(engine) != 3:
        raise ValueError(f"engine is {described(engine)}, expected (temperature, top_p, top_k)")
    made = Engine(*engine)
    check_temperature(made.temperature)
    check_scalar("top_p", made.top_p, positive=True)
    if made.top_p > 1:
        raise ValueError(f"top_p is {made.top_p}, expected a mass of at most 1")
    whole("top_k", made.top_k, 0)
    return made


def clamp_of(clamp: Any) -> Clamp | None:
    """The clamp as two floats."""
    if clamp is None:
        return None
    if not isinstance(clamp, tuple | list) or len(clamp) != 2:
        raise ValueError(f"clamp is {described(clamp)}, expected (lowest, highest) log-ratio")
    for name, x in zip(("clamp[0]", "clamp[1]"), clamp, strict=True):
        check_number(name, x)
    if not clamp[0] <= clamp[1]:
        raise ValueError(f"clamp is {tuple(clamp)}, expected (lowest, highest) log-ratio in this order")
    return float(clamp[0]), float(clamp[1])


def ends_of(eos_token_id: Any, tokenizer: Any = None) -> tuple[int, ...]:
    """The ids that end an answer: those given, or else the tokenizer's; none where neither has one."""
    found = getattr(tokenizer, "eos_token_id", None) if eos_token_id is None else eos_token_id
    if found is None:
        return ()
    ids = tuple(found) if isinstance(found, Iterable) else (found,)
    return tuple(dict.fromkeys(whole("eos_token_id", x, 0) for x in ids))
