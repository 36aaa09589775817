"""What PyTorch's compiler makes of the kernels for a GPU, read as text: no GPU and no Triton is needed."""

import json
import os
import re
import subprocess
import sys

import pytest

from kl_companion.divergences import DIVERGENCES, entries_of, get_divergence
from tests.support.warm import command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a file of PyTorch has this name on Linux")
NUMBERS = {"kl_numbers", "ratio_numbers"}  # of rows, in float64
READINGS = {
    "first_sums",
    "token_sums",
    "divergence_sums",
    "kl_gradient",
    "divergence_gradient",
    "token_gradient",
}
PIECES = 149  # of 1,024 entries in a row of 151,936
KERNEL = re.compile(r"@triton\.jit\ndef .*?(?=\n''', device_str)", re.DOTALL)
BUFFER = re.compile(r"empty_strided_cuda\(\((.*?)\), ")
WAITS = ("device_assert", ".cpu()", "synchronize", "empty_strided_cpu(", "extern_kernels.")


def texts(which, root):
    program = [*command(), "-m", "tests.support.triton_text", which]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        program, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line) for line in done.stdout.splitlines())


def check(function, code, *, narrow, wide=False):
    """One kernel a function, which reads each logit once, nothing large in between, sums in float32."""
    (kernel,) = KERNEL.findall(code)
    call = code[code.index("def call(self") :]
    assert not [wait for wait in WAITS if wait in kernel + call]
    # what is read as a number here lies in the memory of the processor: nothing waits for it
    for given in re.findall(r"(\w+)\.item\(\)", call):
        assert f"assert_size_stride({given}, (), ()" in call
    sizes = [int(size) for shape in BUFFER.findall(call) for size in re.findall(r"\b\d+", shape)]
    assert max(sizes, default=1) <= PIECES
    assert "in tl.range(" not in kernel
    assert ("float64" in kernel) == (wide or function in NUMBERS)
    halves = re.findall(r"'(in_ptr\d+)': '\*bf16'", code)
    assert bool(halves) == (narrow and function not in NUMBERS)
    for pointer in halves:
        loads = re.findall(rf"tl\.load\({pointer} .*", kernel)
        assert len(loads) == 1
        assert all(load.endswith(".to(tl.float32)") for load in loads)
    assert "tl.bfloat16" not in kernel


@pytest.mark.slow
def test_triton_code_of_the_kl(root):
    found = texts("few", root)
    (work,) = found
    assert [function for function, _ in found[work]] == ["first_sums", "kl_numbers", "kl_gradient"]
    for function, code in found[work]:
        check(function, code, narrow=True)


@pytest.mark.reliability
def test_triton_code_of_every_kernel(root):
    found = texts("all", root)
    assert {function for of in found.values() for function, _ in of} == READINGS | NUMBERS
    for work, of in found.items():
        name, dtype = work.rsplit(" ", 1)
        others = name in DIVERGENCES and name != "reverse_kl"
        wide = others and not entries_of(get_divergence(name)).narrow
        narrow = dtype == "bfloat16" and name != "linear_kl"  # whose tiles are float32
        for function, code in of:
            check(function, code, narrow=narrow, wide=wide)
