"""A GPU that is emulated on the CPU: it counts reads on the host and refuses tensors of two devices.

`EmulatedGPU` is entered as a context. Tensors that `put` returns are on "cuda:0" for whoever asks, and so is
everything that is computed from them or made with ``device=``; the numbers are computed by the CPU, so that
code which decides by a value runs as it does on a GPU. Inside the context

* every operator that returns a number, or as many entries as values say, to the host is counted, with the
  line that called it: ``item``, ``bool``, ``tolist``, ``cpu``, ``nonzero``, ``unique``, boolean masks;
* operands on two devices are the RuntimeError that CUDA raises, and ``numpy`` is its TypeError.

What is not seen: waits inside CUDA's own libraries, copies from the host to the device, and kernels that are
compiled by Triton.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

Module = TypeVar("Module", bound=torch.nn.Module)
CUDA = torch.device("cuda:0")
_BENEATH = torch.device("lazy:0")  # a device of torch whose gradients are computed without a driver
_READS = {
    *("_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount"),
    *("unique_consecutive", "is_nonzero", "_linalg_check_errors"),
}
_BETWEEN = {"_to_copy", "copy_"}  # operators that may have operands on two devices
_PACKAGE = Path(__file__).parents[2] / "kl_companion"
_LIBRARIES = ("/transformers/", "/trl/", "/accelerate/")


class Read(NamedTuple):
    """One read on the host.

    Attributes:
        operator: Name of torch.
        place: ``file:line function`` of the innermost line of the package, of a library of models, or of
            the caller.
    """

    operator: str
    place: str


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU; its numbers are in ``numbers``, on the CPU."""

    numbers: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> OnGPU:
        """Return a tensor without memory of its own."""
        tensor: OnGPU = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=_BENEATH,
        )
        tensor.numbers = numbers
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that this tensor is said to be on."""
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """True, as of a tensor of CUDA."""
        return True

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Select entries; a list of Python selects as the tensor of the host that torch makes of it."""
        return super().__getitem__(_lists_as_tensors(index))

    def new_tensor(self, data: Any, *, dtype: Any = None) -> torch.Tensor:  # type: ignore[override]
        """Return a tensor of these numbers on the GPU, by way of the host as torch does."""
        return torch.tensor(data, dtype=self.dtype if dtype is None else dtype).to(CUDA)

    def data_ptr(self) -> int:
        """Return where the numbers begin."""
        return self.numbers.data_ptr()

    def tolist(self) -> Any:
        """Return the numbers by way of the host."""
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Raise the TypeError of CUDA, unless the caller asks for a copy."""
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        """Raise the TypeError of CUDA."""
        return self.numpy()

    def __format__(self, spec: str) -> str:
        """Return a number by way of the host, as torch does for tensors without axes."""
        return self.item().__format__(spec) if self.ndim == 0 else object.__format__(self, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Return shape and dtype."""
        return f"OnGPU({list(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> OnGPU:
        """Return a copy with memory of its own; copies of parameters are parameters."""
        if id(self) not in memo:
            copy = OnGPU(self.numbers.detach().clone())
            memo[id(self)] = _as_parameter(copy, self.requires_grad) if _is_parameter(self) else copy
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator outside of the context: nothing is counted."""
        return _run(func, args, kwargs or {}, lambda name: None)


class EmulatedGPU(TorchDispatchMode):
    """The context; see the module.

    Attributes:
        reads: Every read on the host so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[Read] = []
        self._patches = ExitStack()

    def __enter__(self) -> EmulatedGPU:
        """Let torch make tensors on a GPU that has no driver."""
        self._patches.enter_context(mock.patch.object(torch.cuda, "_lazy_init"))
        for name in ("tensor", "as_tensor"):
            self._patches.enter_context(mock.patch.object(torch, name, _by_way_of_the_host(name)))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave torch as it was."""
        super().__exit__(*error)
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and note whether the host reads its result."""
        return _run(func, args, kwargs or {}, lambda name: self.reads.append(Read(name, _place())))

    def put(self, value: Any) -> Any:
        """Return a tensor, or a structure of tensors, on the GPU; what requires grad is a leaf there."""

        def one(x: Any) -> Any:
            if isinstance(x, OnGPU) or not isinstance(x, torch.Tensor):
                return x
            return OnGPU(x.detach().clone()).requires_grad_(x.requires_grad)

        return pytree.tree_map(one, value)

    def move(self, module: Module) -> Module:
        """Put the parameters and buffers of a module on the GPU, in place; tied ones stay tied."""
        moved: dict[int, torch.Tensor] = {}
        for part in module.modules():
            for name, x in part._parameters.items():
                if x is not None and not isinstance(x, OnGPU):
                    new = moved.setdefault(id(x), _as_parameter(OnGPU(x.detach().clone()), x.requires_grad))
                    part._parameters[name] = new  # type: ignore[assignment]
            for name, x in part._buffers.items():
                if x is not None:
                    part._buffers[name] = moved.setdefault(id(x), self.put(x))
        return module

    @contextmanager
    def counted(self) -> Iterator[list[Read]]:
        """Yield a list that holds the reads of the block once it has ended."""
        before, found = len(self.reads), []
        try:
            yield found
        finally:
            found += self.reads[before:]

    def reads_of(self, function: Callable[[], Any]) -> list[Read]:
        """Return the reads of one call."""
        with self.counted() as found:
            function()
        return found


def table(reads: list[Read]) -> str:
    """Return the places that read, the most frequent first, one a line."""
    places = Counter(f"{read.place} [{read.operator}]" for read in reads)
    return "\n".join(f"{count:4d}  {place}" for place, count in places.most_common())


def _by_way_of_the_host(name: str) -> Callable[..., torch.Tensor]:
    """Return `torch.tensor` or `torch.as_tensor` in two steps: torch shows a mode only the second one."""
    original = getattr(torch, name)

    def make(data: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> torch.Tensor:
        if isinstance(data, OnGPU) or device is None or torch.device(device).type == "cpu":
            return original(data, dtype=dtype, device=device, **options)
        return original(data, dtype=dtype, **options).to(device)

    return make


def _run(func: Any, args: Any, kwargs: dict[str, Any], note: Callable[[str], None]) -> Any:
    """Compute an operator of tensors on the GPU by the CPU."""
    name = func._schema.name.partition("::")[2]
    operands = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    inside = any(isinstance(x, OnGPU) for x in operands)
    if name == "_fused_sdp_choice" and inside:
        return 0  # attention by products of matrices, which exists on every device
    wanted = kwargs.get("device")
    target = inside if wanted is None else torch.device(wanted).type != "cpu"
    if inside:
        _check_devices(name, args, operands)
        if name in _READS or (name in ("index", "index_put", "index_put_") and _by_mask(args[1])):
            note(name)
    if inside and (not target or (name == "copy_" and not isinstance(args[0], OnGPU))):
        note(name)
    generator = kwargs.get("generator")
    if target and generator is not None and generator.device.type == "cpu":
        raise RuntimeError(f"{name}: Expected a 'cuda' device type for generator but found 'cpu'")
    if wanted is not None:  # there is no memory to pin without a driver
        kwargs = {**kwargs, "device": torch.device("cpu")}
    kwargs = {name: x for name, x in kwargs.items() if name != "pin_memory"}
    on_cpu = pytree.tree_map(lambda x: x.numbers if isinstance(x, OnGPU) else x, (args, kwargs))
    out = func(*on_cpu[0], **on_cpu[1])
    if not target:
        return out
    wrapped = pytree.tree_map(lambda x: OnGPU(x) if isinstance(x, torch.Tensor) else x, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if inside else wrapped


def _check_devices(name: str, args: Any, operands: list[torch.Tensor]) -> None:
    """Raise the error of CUDA for operands on two devices; numbers without axes and indices may be mixed."""
    indices = set(map(id, args[1])) if name in ("index", "index_put", "index_put_") else set()
    others = [x for x in operands if not isinstance(x, OnGPU) and x.ndim and id(x) not in indices]
    if others and name not in _BETWEEN:
        raise RuntimeError(f"{name}: Expected all tensors to be on the same device, but found cuda:0 and cpu")


def _lists_as_tensors(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(map(_lists_as_tensors, index))
    return torch.tensor(index) if isinstance(index, list) else index


def _by_mask(indices: Any) -> bool:
    return any(isinstance(x, OnGPU) and x.dtype in (torch.bool, torch.uint8) for x in indices)


def _is_parameter(x: torch.Tensor) -> bool:
    return isinstance(x, torch.nn.Parameter)


def _as_parameter(x: OnGPU, requires_grad: bool) -> torch.Tensor:
    return torch.nn.Parameter(x, requires_grad=requires_grad)


def _place() -> str:
    """Return the innermost line of the package or of a library of models, else that of the caller."""
    frame, first = sys._getframe(2), None
    while frame is not None:
        file = frame.f_code.co_filename
        where = f"{Path(file).name}:{frame.f_lineno} {frame.f_code.co_name}"
        if file.startswith(str(_PACKAGE)) and not file.endswith("host_reads.py"):
            return f"{Path(file).relative_to(_PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}"
        if any(library in file for library in _LIBRARIES):
            return next(x for x in _LIBRARIES if x in file).strip("/") + " " + where
        if first is None and "/torch/" not in file and file != __file__:
            first = where
        frame = frame.f_back  # type: ignore[assignment]
    return str(first)
