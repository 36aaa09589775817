"""The Triton code of the kernels, made where there is neither a GPU nor Triton; run as a program.

`python -m tests.support.triton_text few` (or `all`) prints lines of JSON, [work, [[function, code], ...]],
of the kernels that no work before has used. The public functions run on fake tensors: PyTorch knows shapes,
dtypes and device, but there are no numbers. So whatever looks at a number, for which a real GPU would have
to be waited for, is an error here. The compiler does all that it does for an H100 until its code is
complete; it is not loaded, which needs Triton.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._inductor.compile_fx
from torch._dynamo.device_interface import CudaInterface
from torch._functorch import config as functorch_config
from torch._inductor import config, scheduler
from torch._inductor.fx_passes import joint_graph, post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kl_companion.divergences import DIVERGENCES, entries_of, get_divergence
from kl_companion.kernels import compiling
from kl_companion.kernels.fused import fused_f_divergence, fused_logp, fused_logp_and_entropy
from kl_companion.kernels.linear import linear_kl

ROWS, VOCAB, WIDTH = 64, 151_936, 32
H100 = DeviceProperties("cuda", 0, 132, 90, 9, 65536, 2048, 1024, 32)
CUDA, META = 1, 14  # types of devices as PyTorch numbers them
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
Texts = list[tuple[str, str]]


class CodeComplete(Exception):
    """Raised as soon as there is code, before it is loaded."""


def _guard_of_fake_gpu() -> None:
    """Let a PyTorch without CUDA work on fake tensors of a GPU: what selects a device does nothing."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (META + 1)).in_dll(library, GUARDS)
    guards[CUDA] = guards[CUDA] or guards[META]


@contextmanager
def fake_gpu() -> Iterator[Texts]:
    """Kernels run on fake tensors inside; yields a list that the name and the code of each are added to."""
    found: Texts = []
    codegen, first = GraphLowering.codegen, compiling.Kernel._first

    def until_complete(graph: GraphLowering) -> None:
        raise CodeComplete(codegen(graph)[0].value)

    def as_eager(kernel: compiling.Kernel, key: Any, tensors: Any, static: Any) -> Any:
        try:
            first(kernel, key, tensors, static)
        except Exception as error:
            inner = getattr(error, "inner_exception", None)
            if not isinstance(inner, CodeComplete):
                raise
            found.append((kernel.function.__name__, str(inner)))
        kernel._made[key] = partial(kernel.function, **static)  # the code of each is wanted once
        return kernel._made[key](*tensors)

    _guard_of_fake_gpu()
    with ExitStack() as stack:
        for where, name, stand_in in (
            (GraphLowering, "codegen", until_complete),
            (compiling.Kernel, "_first", as_eager),
            (compiling, "compiler_found", lambda device: True),
            (scheduler, "has_triton", lambda: True),
            (torch.utils._triton, "triton_hash_with_backend", lambda: ""),
            (DeviceProperties, "create", lambda device: H100),
            (CudaInterface, "is_bf16_supported", lambda **_: True),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.cuda, "current_device", lambda: 0),
            # two passes over the graph that try things out on the device; ours gives them nothing to find
            (joint_graph, "lazy_init", lambda *_: None),
            (post_grad, "lazy_init", lambda *_: None),
        ):
            stack.enter_context(mock.patch.object(where, name, stand_in))
        memory = mock.patch.object(FakeTensor, "data_ptr", lambda t: t.untyped_storage()._cdata, create=True)
        stack.enter_context(memory)
        stack.enter_context(config.patch(joint_graph_constant_folding=False, fx_graph_cache=False))
        stack.enter_context(functorch_config.patch(enable_autograd_cache=False))
        stack.enter_context(FakeTensorMode())
        yield found


def _logits(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(*shape or (ROWS, VOCAB), device="cuda", dtype=dtype)


def _backward(value: torch.Tensor, weights: torch.Tensor) -> None:
    """Backward of the function that made it; the engine of autograd asks for a real device."""
    step = value.grad_fn
    while not hasattr(step, "saved_tensors"):
        step = step.next_functions[0][0]
    with torch.no_grad():
        step.apply(weights)


def divergence(name: str) -> Callable[[torch.dtype], Any]:
    """What calls a divergence of logits, forward and backward."""
    entries_of(get_divergence(name))  # its trial runs need numbers

    def work(dtype: torch.dtype) -> None:
        x = _logits(dtype).requires_grad_()
        weights = _logits(torch.float32, ROWS)
        value = fused_f_divergence(name, x, _logits(dtype), temperature=0.7, backend="compiled")
        _backward(value, weights)

    return work


def log_probs(dtype: torch.dtype) -> None:
    """Log-probs of logits, forward and backward."""
    tokens, weights = torch.empty(ROWS, dtype=torch.int64, device="cuda"), _logits(torch.float32, ROWS)
    _backward(fused_logp(_logits(dtype).requires_grad_(), tokens, backend="compiled"), weights)


def entropies(dtype: torch.dtype) -> None:
    """Log-probs and entropies of logits."""
    tokens = torch.empty(ROWS, dtype=torch.int64, device="cuda")
    logp, entropy = fused_logp_and_entropy(_logits(dtype).requires_grad_(), tokens, backend="compiled")
    _backward(logp + entropy, _logits(torch.float32, ROWS))


def from_hidden_states(dtype: torch.dtype) -> None:
    """The KL from hidden states, where the gradient goes over the logits of a chunk."""
    h, w, ref_h, ref_w = (_logits(dtype, n, WIDTH) for n in (ROWS, VOCAB, ROWS, VOCAB))
    h.requires_grad_()
    weights = _logits(torch.float32, ROWS)
    value = linear_kl(h, w, ref_hidden=ref_h, ref_weight=ref_w, soft_cap=30.0, backend="compiled")
    _backward(value, weights)


def works(which: str) -> dict[str, tuple[Callable[[torch.dtype], Any], torch.dtype]]:
    """What is run, by a name: a few, or all."""
    if which == "few":
        return {"reverse_kl bfloat16": (divergence("reverse_kl"), torch.bfloat16)}
    ours = {"logp": log_probs, "logp_and_entropy": entropies, "linear_kl": from_hidden_states}
    every = {**{name: divergence(name) for name in ("jensen_shannon", *DIVERGENCES)}, **ours}
    found = {f"{name} bfloat16": (work, torch.bfloat16) for name, work in every.items()}
    again = ("jensen_shannon", "reverse_kl", "logp")
    return found | {f"{name} float32": (every[name], torch.float32) for name in again}


def main(which: str) -> None:
    """Print what was found."""
    for name, (work, dtype) in works(which).items():
        with fake_gpu() as found:
            work(dtype)
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
