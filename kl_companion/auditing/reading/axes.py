"""What a loss does to the last axis of log-probs: are they of one token, or of the whole vocabulary?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_OF_DISTRIBUTIONS = frozenset(
    ["kl_div", "log_softmax", "softmax", "logsumexp", "cross_entropy", "nll_loss", "gather", "topk"]
)
_PRODUCTS = frozenset(["mul", "__mul__", "__rmul__", "multiply"])
_SUMS = frozenset(("sum", "nansum"))
_SAME = frozenset(["float", "double", "half", "bfloat16", "to", "type", "contiguous", "clone", "detach"])


class LastAxis(TorchFunctionMode):
    """Inside it, note an operation of whole distributions on tensors that were given as those of tokens.

    Attributes:
        names: Of parameters whose name does not say which they are.
        given: Their tensors.
        reason: The operation, as a clause; "" while there was none.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = list(names)
        self.given: list[torch.Tensor] = []
        self.reason = ""
        self._probabilities: list[Any] = []
        self._weighted: list[Any] = []

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` and note what it says about its arguments."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, values = getattr(func, "__name__", ""), [*args, *kwargs.values()]
        if name in _SAME and _among(self.given, values):
            self.given.append(out)
        elif name == "kl_div" or (name in _OF_DISTRIBUTIONS and _among(self.given, values)):
            self.reason = f"{name} is of distributions"
        elif name == "exp" and _among(self.given, values):
            self._probabilities.append(out)
        elif name in _PRODUCTS and _among([*self._probabilities, *self._weighted], values):
            self._weighted.append(out)
        elif name in _SUMS and _among(self._weighted, values) and _is_last(args, kwargs):
            self.reason = self.reason or "exp(log-probs) weights a sum over the last axis"
        return out


def _among(tensors: Sequence[Any], values: Sequence[Any]) -> bool:
    return any(x is y for x in tensors for y in values)


def _is_last(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
    return dim in (-1, args[0].ndim - 1, (-1,), [-1]) if args else False
