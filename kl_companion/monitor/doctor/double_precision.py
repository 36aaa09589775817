"""Casts to narrow types are left out, so that the small world stays exact."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from kl_companion.monitor.doctor.tracing import Line, trainer_line

_NARROW = (torch.bfloat16, torch.float16)


class DoublePrecision(TorchFunctionMode):
    """Casts to bfloat16 and float16 do nothing while this is entered: the small world is exact.

    Args:
        lines: Where such casts are noted.
    """

    def __init__(self, lines: list[Line]) -> None:
        super().__init__()
        self.lines = lines

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options, name = kwargs or {}, getattr(func, "__name__", "")
        narrow = (
            [x for x in (*args[1:], *options.values()) if isinstance(x, torch.dtype) and x in _NARROW]
            if name in ("to", "type")
            else []
        )
        if not narrow and name not in ("bfloat16", "half"):
            return func(*args, **options)
        line = trainer_line()
        if line is not None and line not in self.lines:
            self.lines.append(line)
        return args[0].double() if args[0].is_floating_point() else args[0]
