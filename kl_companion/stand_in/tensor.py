"""The tensor: a flat list of entries, a shape, a kind, and the step that made it.

Its operations are in the modules beside this one; `methods` hangs them on it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from kl_companion.stand_in import graph
from kl_companion.stand_in.arrays import Shape, flat, nested, size_of
from kl_companion.stand_in.graph import Back, GraphStep
from kl_companion.stand_in.kinds import BOOL, FLOAT64, INT64, Kind, as_kind, kind_of


class NotInPage(AttributeError):
    """Something that PyTorch has and this does not."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} does not run in this page. On your machine it does: save the loss as loss.py and run "
            "kl-companion audit loss.py:NAME, with the name of your function"
        )


class Size(tuple[int, ...]):
    """A shape."""

    def numel(self) -> int:
        """How many entries."""
        return size_of(self)

    def __repr__(self) -> str:
        """As torch prints it."""
        return f"torch.Size({list(self)})"


class Tensor:
    """An array of numbers that knows how it was made."""

    __slots__ = (
        "__weakref__",
        "_version",
        "base",
        "entries",
        "grad",
        "kind",
        "requires_grad",
        "size_",
        "step",
        "views",
    )

    def __init__(
        self, entries: list[Any], shape: Shape, kind: Kind, step: GraphStep | None = None, needs: bool = False
    ) -> None:
        self.entries, self.size_, self.kind, self.step = entries, shape, kind, step
        self.requires_grad, self._version = needs, 0
        self.grad: Tensor | None = None
        self.base: Tensor | None = None
        self.views: weakref.WeakSet[Tensor] | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What `methods` hangs on it."""

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        """Its sizes."""
        return Size(self.size_)

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.size_)

    @property
    def dtype(self) -> Kind:
        """The kind of its numbers."""
        return self.kind

    @property
    def device(self) -> Device:
        """Always the processor."""
        return Device("cpu")

    @property
    def is_leaf(self) -> bool:
        """Whether no step made it."""
        return self.step is None

    @property
    def grad_fn(self) -> GraphStep | None:
        """The step that made it."""
        return self.step

    @property
    def data(self) -> Tensor:
        """The same numbers, held fixed."""
        return self.detach()

    is_cuda = False
    is_sparse = False
    layout = "torch.strided"
    itemsize = 8

    def size(self, dim: int | None = None) -> Any:
        """Its sizes, or one of them."""
        return self.shape if dim is None else self.size_[dim]

    def dim(self) -> int:
        """How many axes it has."""
        return len(self.size_)

    def numel(self) -> int:
        """How many entries it has."""
        return len(self.entries)

    nelement = numel

    def is_floating_point(self) -> bool:
        """Whether its numbers are floating."""
        return self.kind is FLOAT64

    def is_inference(self) -> bool:
        """Never."""
        return False

    def is_contiguous(self) -> bool:
        """Always."""
        return True

    def __len__(self) -> int:
        if not self.size_:
            raise TypeError("len() of a 0-d tensor")
        return self.size_[0]

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        more = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({self.tolist()}{more})"

    # -- as numbers of Python --------------------------------------------------------------------------------

    def item(self) -> Any:
        """Its only entry.

        Raises:
            RuntimeError: it has none or several.
        """
        if len(self.entries) != 1:
            raise RuntimeError(f"a Tensor with {len(self.entries)} elements cannot be converted to Scalar")
        return self.entries[0]

    def tolist(self) -> Any:
        """Nested lists of its entries."""
        return nested(self.entries, self.size_)

    def __bool__(self) -> bool:
        if len(self.entries) != 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        return bool(self.entries[0])

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    __index__ = __int__

    def __iter__(self) -> Iterator[Tensor]:
        if not self.size_:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind())

    def __contains__(self, item: Any) -> bool:
        wanted = item.item() if isinstance(item, Tensor) else item
        return wanted in self.entries

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if not self.size_ else format(str(self), form)

    # -- kinds and copies ------------------------------------------------------------------------------------

    def as_kind(self, kind: Kind) -> Tensor:
        """The same numbers of another kind; itself where it has this kind already."""
        if kind is self.kind:
            return self
        return Tensor(as_kind(self.entries, self.kind, kind), self.size_, kind)

    def to(self, *where: Any, dtype: Kind | None = None, **_: Any) -> Tensor:
        """Of another kind; there is one device."""
        for given in where:
            if isinstance(given, Tensor):
                dtype = given.kind
            elif isinstance(given, Kind):
                dtype = given
        return self if dtype is None else self.as_kind(dtype)

    type = to

    def type_as(self, other: Tensor) -> Tensor:
        """Of the kind of another."""
        return self.as_kind(other.kind)

    def float(self) -> Tensor:
        """Floating, that is float64."""
        return self.as_kind(FLOAT64)

    double = half = bfloat16 = float

    def long(self) -> Tensor:
        """Whole numbers."""
        return self.as_kind(INT64)

    int = long

    def bool(self) -> Tensor:
        """Whether not 0."""
        return self.as_kind(BOOL)

    def cpu(self) -> Tensor:
        """Itself."""
        return self

    cuda = contiguous = cpu

    def detach(self) -> Tensor:
        """The same numbers, held fixed."""
        return sharing(self, Tensor(self.entries, self.size_, self.kind))

    def clone(self) -> Tensor:
        """A copy, which gradients pass."""
        return made(self.entries, self.size_, self.kind, (self,), lambda g: (g,), "CloneBackward0")

    # -- gradients -------------------------------------------------------------------------------------------

    def requires_grad_(self, mode: Any = True) -> Tensor:
        """Ask for its gradient.

        Raises:
            RuntimeError: its numbers are not floating, or a step made it.
        """
        if mode and self.kind is not FLOAT64:
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        if not mode and self.step is not None:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        self.requires_grad = bool(mode)
        return self

    def retain_grad(self) -> None:
        """Not kept here: `torch.autograd.grad` gives the gradient of any tensor."""
        raise NotInPage("Tensor.retain_grad")

    def backward(self, gradient: Tensor | None = None, **_: Any) -> None:
        """Add the gradients of all leaves up in their ``grad``."""
        start = started(self, gradient)
        found = graph.gradients([(self, start)], set())
        for leaf in graph.ordered([self]):
            part = found.get(id(leaf))
            if leaf.step is None and part is not None:
                old = [0.0] * len(part) if leaf.grad is None else leaf.grad.entries
                leaf.grad = Tensor([a + b for a, b in zip(old, part, strict=True)], leaf.size_, FLOAT64)


class Device(str):
    """Where tensors are: the processor."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """Always cpu."""
        return "cpu"


def started(tensor: Tensor, gradient: Tensor | None) -> list[float]:
    """What backward starts with.

    Raises:
        RuntimeError: the tensor has no gradient, or several entries and no gradient is given.
    """
    if not tensor.requires_grad:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    if gradient is not None:
        if gradient.size_ != tensor.size_:
            raise RuntimeError(f"Mismatch in shape: grad has {gradient.shape}, the output {tensor.shape}")
        return gradient.entries
    if len(tensor.entries) != 1:
        raise RuntimeError("grad can be implicitly created only for scalar outputs")
    return [1.0]


def made(
    entries: list[Any], shape: Shape, kind: Kind, parents: tuple[Tensor, ...], back: Back, name: str
) -> Tensor:
    """The result of a step, which is kept where a parent's gradient is wanted."""
    if kind is FLOAT64 and graph.is_grad_enabled():
        for parent in parents:
            if parent.requires_grad:
                return Tensor(entries, shape, kind, GraphStep(parents, back, name), True)
    return Tensor(entries, shape, kind)


def sharing(of: Tensor, view: Tensor) -> Tensor:
    """A tensor that in torch has its memory in common with another."""
    root = of if of.base is None else of.base
    view.base = root
    if root.views is None:
        root.views = weakref.WeakSet()
    root.views.add(view)
    return view


def overwrite(
    tensor: Tensor, operation: Callable[..., Tensor], *args: Any, name: str, **given: Any
) -> Tensor:
    """Let a tensor be what an operation makes of it and other arguments.

    Raises:
        RuntimeError: it is a leaf whose gradient is wanted, or the result has another shape or a wider kind.
        NotInPage: other tensors have its memory in common.
    """
    if graph.is_grad_enabled() and tensor.requires_grad and tensor.step is None:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    if tensor.base is not None or tensor.views:
        raise NotInPage(f"{name}, which writes into memory that another tensor shows too,")
    # what the step is made of is what this tensor was
    before = Tensor(tensor.entries, tensor.size_, tensor.kind, tensor.step, tensor.requires_grad)
    new = operation(before, *(before if a is tensor else a for a in args), **given)
    if new.size_ != tensor.size_:
        raise RuntimeError(
            f"output with shape {list(tensor.size_)} doesn't match the broadcast shape {list(new.size_)}"
        )
    if new.kind.rank > tensor.kind.rank:
        raise RuntimeError(f"result type {new.kind.name} can't be cast to {tensor.kind.name}")
    tensor.entries, tensor.step = as_kind(new.entries, new.kind, tensor.kind), new.step
    tensor.requires_grad = new.requires_grad
    tensor._version += 1
    return tensor


def tensor_of(given: Any) -> Tensor:
    """A tensor, or a number as one."""
    if isinstance(given, Tensor):
        return given
    return Tensor([given], (), kind_of(given))


def tensor(data: Any, *, dtype: Kind | None = None, requires_grad: bool = False, **_: Any) -> Tensor:
    """A new leaf from numbers, nested lists, or a tensor."""
    entries, shape = _flat(data)
    kinds = [kind_of(x) for x in entries]
    own = max(kinds) if kinds else FLOAT64
    kind = own if dtype is None else dtype
    found = [as_kind([x], k, kind)[0] for x, k in zip(entries, kinds, strict=True)]
    return Tensor(found, shape, kind).requires_grad_(requires_grad)


def _flat(data: Any) -> tuple[list[Any], Shape]:
    if isinstance(data, Tensor):
        return list(data.entries), data.size_
    return flat(_plain(data))


def _plain(data: Any) -> Any:
    if isinstance(data, Tensor):
        return data.tolist()
    return [_plain(part) for part in data] if isinstance(data, (list, tuple)) else data


def close(x: float, y: float, rtol: float, atol: float, equal_nan: bool) -> bool:
    """Whether two numbers are as close as `torch.isclose` asks for."""
    if math.isnan(x) or math.isnan(y):
        return equal_nan and math.isnan(x) and math.isnan(y)
    return x == y or (abs(x) != math.inf and abs(x - y) <= atol + rtol * abs(y) and abs(y) != math.inf)
