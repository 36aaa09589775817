"""Float64 where a framework casts to float32, so that an audit of its function is exact.

Trainers cast log-probs up to float32 from the model's bfloat16. An audit works in float64 and explains a
gradient to nine digits; there the same cast would round. `SinglesAsDoubles` reads "float32" as "float64" in
every operation of torch. And what is added against division by zero, such as 1e-8 to a number of tokens,
vanishes in float32 but not in float64: it is left out. Nothing else changes; the tests compare with the casts
left in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kl_companion.auditing.reading.heads import LIKELIEST
from kl_companion.rollout import Rollout

_ops = torch.ops.aten
_FACTORIES = (_ops.zeros.default, _ops.ones.default, _ops.empty.memory_format, _ops.full.default)
_VANISHES = 3e-8  # half a unit in the last place of 1 in float32: added to a count it does nothing there
_GUARD = 1e-5
_SMALLER = (torch.float32, torch.float16, torch.bfloat16)
_CASTS = frozenset(("float", "half", "bfloat16"))
_ADDS = frozenset(("add", "__add__", "__radd__"))
_REPLACED = _CASTS | _ADDS | {"cuda", "to", "topk"}
_FIELDS = ("logp", "logits")


def eager() -> AbstractContextManager[object]:
    """Return a context in which functions that were compiled run as they are written."""
    # the compiler is slow to import: who compiled a function has imported it already
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _double(x: Any) -> Any:
    return torch.float64 if x is torch.float32 else x


def _smaller_as_double(x: Any) -> Any:
    return torch.float64 if isinstance(x, torch.dtype) and x in _SMALLER else x


class CastsAsDoubles(TorchFunctionMode):
    """Inside it every cast to a smaller dtype is one to float64, in what the reader's own code calls.

    It sees functions, and so nothing inside a backward function of theirs, as `SinglesAsDoubles` does.

    Attributes:
        likeliest: Of how many entries the largest were asked for, call by call.
        cut: How many that were where there are not so many; `LIKELIEST` were taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.likeliest: list[int] = []
        self.cut = 0

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` with float64 in place of float32, float16 and bfloat16."""
        name = getattr(func, "__name__", "")
        if not kwargs and name not in _REPLACED and torch.dtype not in map(type, args):
            return func(*args)  # a loss that loops over rows makes thousands of calls
        given = {k: _smaller_as_double(v) for k, v in (kwargs or {}).items()}
        if name in _CASTS:
            return args[0].double()
        if name == "cuda":  # no GPU is needed
            return args[0]
        if given.get("device") is not None:
            given["device"] = "cpu"
        if name == "to" and len(args) > 1 and _is_device(args[1]):
            args = (args[0], "cpu", *args[2:])
        if name == "topk":
            k = given.pop("k", args[1] if len(args) > 1 else 0)
            if k > args[0].shape[-1] > LIKELIEST:  # of a real vocabulary
                self.cut, k = k, LIKELIEST
            self.likeliest.append(k)
            args = (args[0], k, *args[2:])
        if name in _ADDS and len(args) == 2 and _only_guards(args[0], args[1]):
            return args[0].clone()
        return func(*(_smaller_as_double(a) for a in args), **given)


@contextmanager
def as_formulas() -> Iterator[CastsAsDoubles]:
    """New tensors are float64, and functions that were compiled run as they are written."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with eager(), CastsAsDoubles() as seen:
            yield seen
    finally:
        torch.set_default_dtype(before)


def _is_device(x: Any) -> bool:
    return isinstance(x, str | torch.device | int) and not isinstance(x, bool)


def _only_guards(x: Any, constant: Any) -> bool:
    """Whether a constant is added against division by zero only, where nothing is zero."""
    if not isinstance(constant, float) or not 0 < constant <= _GUARD or not isinstance(x, torch.Tensor):
        return False
    least = x.detach().abs().min().item() if x.numel() else 0.0
    return least >= 0.5 or (least > 0 and constant < _VANISHES)  # counts of tokens; probabilities


class SinglesAsDoubles(TorchDispatchMode):
    """Inside it float32 means float64: in casts, in ``dtype=`` and in what makes new tensors.

    A mode for operations and not for functions: `torch.autograd.grad` is itself a function, during which
    torch would lay the latter aside, and frameworks cast in backward functions too.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch wraps what is below in a guard against compiling it, which loads the compiler.

        `eager` is the guard here, and costs nothing at every operation.
        """
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` with float64 in place of float32."""
        given = {k: _double(v) for k, v in kwargs.items()} if kwargs else {}
        if func is _ops.add.Tensor and isinstance(args[1], float) and 0 < args[1] < _VANISHES:
            return func(args[0], 0.0, **given)
        if func in _FACTORIES and given.get("dtype") is None:
            given["dtype"] = torch.float64
        return func(*(_double(a) for a in args), **given)


def exactly(loss: Callable[[Rollout], torch.Tensor]) -> Callable[[Rollout], torch.Tensor]:
    """Return the same loss in float64 throughout, its backward pass included.

    A framework's own backward functions cast too, and they run after the loss has returned. So value and
    gradient are taken here, inside the mode, and handed on together as a scalar that is linear around this
    policy: exact for the first derivative, which is all that an audit asks for.
    """

    def wrapped(rollout: Rollout) -> torch.Tensor:
        leaves = {
            name: x.detach().requires_grad_()
            for name in _FIELDS
            if (x := getattr(rollout, name)) is not None and x.requires_grad
        }
        with eager(), SinglesAsDoubles():
            value = loss(rollout.unchecked(**leaves))
            if not value.requires_grad or not leaves:
                return value
            slopes = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        total = value.detach()
        for name, slope in zip(leaves, slopes, strict=True):
            if slope is not None:
                x = getattr(rollout, name)
                total = total + (slope * (x - x.detach())).sum()
        return total

    return wrapped
