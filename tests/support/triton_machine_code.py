"""Machine code of an H100 for the kernels of a GPU, made without one; run as a program by test_gpu.

`python -m tests.support.triton_machine_code few` (or `all`) has Triton compile every launch of the public
functions. What its interpreter cannot see is looked at here: whether the kernels compile, whether every logit
is read once and 16 bytes at a time, and that nothing is put aside in memory.
"""

import re
import sys
from unittest import mock

import torch

from kl_companion.divergences import DIVERGENCES, get_divergence
from kl_companion.frameworks.installed import AUDIT
from kl_companion.kernels import compiling, fused_f_divergence, fused_logp_and_entropy, linear_kl
from tests.support.triton_kernels import KLS, on_gpu

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.bool: "*i1", torch.int64: "*i64"}
WHOLE = {
    "kl_sums": 4,  # of which two where a token is masked
    "first_sums": 2,
    "divergence_sums": 2,
    "gradient": 2,
    "token_sums": 1,
    "token_gradient": 1,
}  # readings


def specialized(value):
    """Type of an argument as Triton sees it, and whether it is known to be a multiple of 16."""
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype], value.data_ptr() % 16 == 0
    if isinstance(value, float):
        return "fp32", False
    if isinstance(value, int) and not isinstance(value, bool) and value != 1:
        return "i32", value % 16 == 0
    return "constexpr", False


def machine_code(kernel, *arguments, grid, warmup, num_warps, **static):
    """Compile a launch for an H100 instead of running it, and look at the code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    values = dict(zip(kernel.arg_names, arguments, strict=False)) | static
    found = {name: specialized(value) for name, value in values.items()}
    types = {name: "constexpr" if name in static else kind for name, (kind, _) in found.items()}
    places = [
        (kernel.arg_names.index(name),) for name, (_, whole) in found.items() if whole and name not in static
    ]
    source = ASTSource(
        fn=kernel,
        signature=types,
        constexprs={name: values[name] for name, kind in types.items() if kind == "constexpr"},
        attrs={place: [["tt.divisibility", 16]] for place in places},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})
    name, code = kernel.fn.__name__, made.asm["ptx"]
    assert made.asm["cubin"], name
    assert ".local" not in code, name
    if name in WHOLE:
        narrow = arguments[kernel.arg_names.index("x")].dtype == torch.bfloat16
        each = static["BLOCK"] // (32 * num_warps * (8 if narrow else 4))
        assert len(re.findall(r"ld\.global\S*\.v4", code)) == WHOLE[name] * each, name
        assert "f64" not in code, name
    COMPILED.add((name, *(v for v in static.values() if isinstance(v, bool))))


COMPILED: set = set()


def changing():
    """Constants of the kernels' files that Triton would take for changed: they differ from themselves."""
    from kl_companion.kernels import triton_math, triton_rows, triton_tokens

    files = (triton_math, triton_rows, triton_tokens)
    return [name for file in files for name, x in vars(file).items() if (y := getattr(x, "value", 0)) != y]


def compiled(which):
    """Every launch of the public functions, forward and backward, on long rows that nobody reads."""
    from triton.runtime.jit import JITFunction

    mock.patch.object(JITFunction, "run", machine_code).start()
    mock.patch.object(compiling.Kernel, "__call__", None).start()  # another kernel is an error
    few = (*KLS, "jensen_shannon")
    for dtype in (torch.bfloat16,) if which == "few" else (torch.bfloat16, torch.float32):
        x, y = torch.zeros(2, 3, 8192, dtype=dtype)
        for name in few if which == "few" else (*DIVERGENCES, "amari_alpha(0.3)"):
            leaf = x.clone().requires_grad_()
            fused_f_divergence(get_divergence(name), leaf, y, backend="compiled").sum().backward()
        leaf, ids = x.clone().requires_grad_(), torch.zeros(3, 2, dtype=torch.int64)
        logp, entropy = fused_logp_and_entropy(leaf, ids, mask=torch.ones(3), backend="compiled")
        (logp.sum() + entropy.sum()).backward()
    h, w = torch.zeros(3, 4).requires_grad_(), torch.zeros(2048, 4)
    options = {"soft_cap": 30.0, "ref_soft_cap": 30.0, "temperature": 0.7, "ref_temperature": 0.9}
    linear_kl(
        h, w, ref_logits=torch.zeros(3, 2048), mask=torch.ones(3), backend="compiled", **options
    ).sum().backward()
    assert {name for name, *_ in COMPILED} == {*WHOLE, "row_numbers", "value_and_mean", "token_numbers"}


def main(which):
    """Compile a few launches or all of them; raises where the code is not as it should be."""
    sys.path.append(str(AUDIT))  # at the end: what .venv has comes from there
    on_gpu()
    compiled(which)
    assert not changing()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
