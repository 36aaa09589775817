"""The tensor: a flat list of entries, a shape, a kind, and the step that made it.

A batch of few rows that stand many times holds those instead, see `kl_book.paste.stand_in.copies`.

Its operations are in the modules beside this one; `methods` hangs them on it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kl_book.paste.stand_in import graph
from kl_book.paste.stand_in.arrays import Shape, nested, size_of
from kl_book.paste.stand_in.copies import Copies
from kl_book.paste.stand_in.graph import Back, GraphStep
from kl_book.paste.stand_in.kinds import BOOL, FLOAT64, INT64, Kind, as_kind, kind_of


class NotInPage(AttributeError):
    """Something that PyTorch has and this does not: ``lacking``; ``module`` is the one that lacks it."""

    def __init__(self, name: str, module: object = None) -> None:
        where = (
            "save the loss as loss.py and run kl-companion audit loss.py:NAME, with the name of your function"
        )
        self.lacking = name
        super().__init__(f"{name} does not run in this page. On your machine it does: {where}", obj=module)


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
        "_entries",
        "_version",
        "base",
        "copies",
        "grad",
        "kept",
        "kind",
        "requires_grad",
        "same",
        "size_",
        "small",
        "step",
        "taken",
        "views",
        "whose",
    )

    def __init__(
        self,
        entries: list[Any] | None,
        shape: Shape,
        kind: Kind,
        step: GraphStep | None = None,
        needs: bool = False,
    ) -> None:
        self._entries, self.size_, self.kind, self.step = entries, shape, kind, step
        self.requires_grad, self._version = needs, 0
        self.small: Any = None  # of a batch: the tensor of its rows
        self.copies: Copies | None = None
        self.whose: Tensor | None = None  # of the rows of a leaf: the leaf
        self.taken: Any = None  # of an index: what is known of it, see `row_by_row.rows_at`
        self.same: Tensor | None = None  # of a copy of a row, and what is made of one: the original, and
        self.kept: Any = None  # of that: what was computed of it, see `repeated`
        self.grad: Tensor | None = None
        self.base: Tensor | None = None
        self.views: weakref.WeakSet[Tensor] | None = None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What `methods` hangs on it."""

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def entries(self) -> list[Any]:
        """Its numbers in a row; nobody changes the list."""
        if self._entries is None:
            assert self.copies is not None
            self._entries = self.copies.spread(self.small.entries)
        return self._entries

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
        return self.step is None or (self.small is not None and self.small.step is None)

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
        return size_of(self.size_)

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
        if self.numel() != 1:
            raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
        return self.entries[0]

    def tolist(self) -> Any:
        """Nested lists of its entries."""
        return nested(self.entries, self.size_)

    def __bool__(self) -> bool:
        if self.numel() != 1:
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
        if self.copies is not None:
            return batch(self.small.as_kind(kind), self.copies)
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
        if self.copies is not None:
            return sharing(self, batch(self.small.detach(), self.copies))
        return sharing(self, Tensor(self.entries, self.size_, self.kind))

    def clone(self) -> Tensor:
        """A copy, which gradients pass."""
        if self.copies is not None:
            return batch(self.small.clone(), self.copies)
        return made(self.entries, self.size_, self.kind, (self,), lambda g: (g,), "CloneBackward0")

    # -- gradients -------------------------------------------------------------------------------------------

    def requires_grad_(self, mode: Any = True) -> Tensor:
        """Ask for its gradient.

        Raises:
            RuntimeError: its numbers are not floating, or a step made it.
        """
        if mode and self.kind is not FLOAT64:
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        if not mode and not self.is_leaf:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        if self.copies is not None and bool(mode) != self.requires_grad:
            rows = Tensor(self.small.entries, self.small.size_, self.kind, needs=bool(mode))
            self.small, self.step, rows.whose = rows, batch(rows, self.copies).step, self
        self.requires_grad, self.same, self.kept = bool(mode), None, None
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
                if leaf.whose is not None:
                    leaf.whose.grad = of_each_copy(leaf.whose, leaf.grad.entries)


class Device(str):
    """Where tensors are: the processor."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """Always cpu."""
        return "cpu"


def batch(small: Tensor, copies: Copies) -> Tensor:
    """The batch of some rows, [rows, ...]."""
    step = None
    if small.requires_grad:
        step = GraphStep((small,), lambda g: (copies.added(g),), "copies")
    found = Tensor(None, (len(copies), *small.size_[1:]), small.kind, step, small.requires_grad)
    found.small, found.copies = small, copies
    return found


def of_each_copy(leaf: Tensor, entries: list[float]) -> Tensor:
    """The gradient of a batch from that of its rows, which all copies of a row share."""
    assert leaf.copies is not None
    return batch(Tensor(leaf.copies.of_each(entries), leaf.small.size_, FLOAT64), leaf.copies)


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
    if tensor.numel() != 1:
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


def tensor_of(given: Any) -> Tensor:
    """A tensor, or a number as one."""
    if isinstance(given, Tensor):
        return given
    return Tensor([given], (), kind_of(given))


def close(x: float, y: float, rtol: float, atol: float, equal_nan: bool) -> bool:
    """Whether two numbers are as close as `torch.isclose` asks for."""
    if math.isnan(x) or math.isnan(y):
        return equal_nan and math.isnan(x) and math.isnan(y)
    return x == y or (abs(x) != math.inf and abs(x - y) <= atol + rtol * abs(y) and abs(y) != math.inf)
