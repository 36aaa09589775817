"""What PyTorch's compiler makes of the kernels for a GPU, read as text: no GPU and no Triton is needed."""

import json
import os
import re
import subprocess

import pytest

from tests.support.warm import command

NUMBERS = {"kl_numbers", "ratio_numbers"}  # of rows, in float64
FIELD = "divergence_rows"  # the one that leaves something of the size of the logits behind
LOOPS = {
    "first_sums": 3,
    "token_sums": 2,
    FIELD: 1,
    "kl_gradient": 0,
    "gradient_of_field": 0,
    "token_gradient": 0,
}
KERNEL = re.compile(r"@triton\.jit\ndef .*?(?=\n''', device_str)", re.DOTALL)
BUFFER = re.compile(r"empty_strided_cuda\(\((.*?)\), .*?, (torch\.\w+)\)")
WAITS = ("device_assert", ".cpu()", "synchronize", "empty_strided_cpu(", "extern_kernels.")


def texts(which, root):
    program = [*command(), "-m", "tests.support.triton_text", which]
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        program, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def large(shape):
    """Whether a buffer has an entry for every logit."""
    return len([size for size in shape.split(",") if size.strip()]) > 1


def check(function, code, narrow):
    """One kernel a function, one loop a reading, sums in float32, and nothing stored in between."""
    (kernel,) = KERNEL.findall(code)
    call = code[code.index("def call(self") :]
    assert not [wait for wait in WAITS if wait in code], function
    # a number that the kernel is given lies in the memory of the processor: nothing waits for it
    for given in re.findall(r"(\w+)\.item\(\)", call):
        assert f"assert_size_stride({given}, (), ()" in call
    assert [shape for shape, _ in BUFFER.findall(call) if large(shape)] == (
        [shape for shape, _ in BUFFER.findall(call)][-1:] if function == FIELD else []
    )
    if function in NUMBERS:
        assert "tl.float64" in kernel
        return
    assert "float64" not in kernel
    assert "fp64" not in code
    assert kernel.count("in tl.range(") == LOOPS[function], function
    whole = re.findall(r"tl\.load\(in_ptr\d+ \+ \((?:r0_1 \+ ks0\*x0|x2)\).*", kernel)
    assert whole
    if narrow:
        assert all(load.endswith(".to(tl.float32)") for load in whole if "field" not in load)
    assert "tl.bfloat16" not in kernel


@pytest.mark.slow
def test_triton_code_of_the_kl(root):
    found = texts("few", root)
    assert {work: [function for function, _ in of] for work, of in found.items()} == {
        "reverse_kl bfloat16": ["first_sums", "kl_numbers", "kl_gradient"]
    }
    for function, code in found["reverse_kl bfloat16"]:
        check(function, code, narrow=True)
