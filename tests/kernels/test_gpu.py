"""The kernels of a GPU: in Triton's interpreter, compiled for an H100, and what runs without Triton."""

import logging
import os
import subprocess
import sys

import pytest
import torch

from kl_companion.kernels import compiling, fused_kl, gpu, linear_logp
from tests.support.fused_cases import logits_pair
from tests.support.triton_kernels import CHECKS
from tests.support.warm import command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton is made for Linux alone")


def run(root, tmp_path, module, *arguments, **environment):
    """A program of tests.support; what Triton compiles is kept nowhere."""
    program = [*command(), "-m", f"tests.support.{module}", *arguments]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), **environment}
    done = subprocess.run(
        program, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.endswith("done\n")


@pytest.mark.slow
def test_kernels_in_the_interpreter_against_float64(root, tmp_path):
    run(root, tmp_path, "triton_kernels", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_on_a_gpu_against_float64(root, tmp_path, check):
    run(root, tmp_path, "triton_kernels", "cuda", check)


@pytest.mark.slow
def test_machine_code_reads_every_logit_once(root, tmp_path):
    run(root, tmp_path, "triton_machine_code", "few")


@pytest.mark.reliability
def test_machine_code_of_every_kernel(root, tmp_path):
    run(root, tmp_path, "triton_machine_code", "all")


@pytest.fixture
def without_triton(monkeypatch):
    """Tensors of this processor count as those of a GPU, and Triton is not there."""
    monkeypatch.setattr(gpu, "takes", lambda *logits: True)
    monkeypatch.setattr(gpu, "_FAILED", set())
    monkeypatch.setattr(compiling, "_CAUSES", set())
    monkeypatch.setattr(compiling, "compiler_found", lambda device: True)
    monkeypatch.setattr(
        compiling.Kernel, "__call__", lambda kernel, _, *ts, **static: kernel.function(*ts, **static)
    )
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("triton_math", "triton_rows", "triton_tokens"):
        monkeypatch.delitem(sys.modules, f"kl_companion.kernels.{name}", raising=False)


@pytest.mark.usefixtures("without_triton")
def test_without_triton_other_kernels_are_used_and_that_is_logged_once(caplog):
    x, y = logits_pair(1, 3, 40, gap=0.5)
    with caplog.at_level(logging.WARNING, compiling.__name__):
        for _ in range(2):
            values, slopes = [], []
            for backend in ("compiled", "eager"):
                leaf = x.clone().requires_grad_()
                values.append(fused_kl(leaf, y, backend=backend))
                slopes.append(torch.autograd.grad(values[-1].sum(), leaf)[0])
            assert torch.equal(*values)
            assert torch.equal(*slopes)
    (record,) = caplog.records
    assert record.message.startswith(
        "the eager kernels are used, because the compiler failed: ModuleNotFound"
    )
    assert list(gpu._FAILED) == ["reverse_kl"]


@pytest.mark.usefixtures("without_triton")
def test_without_triton_log_probs_from_hidden_states_are_right():
    h, w = logits_pair(2, 4, 6)[0], logits_pair(3, 50, 6)[0].requires_grad_()
    found = [linear_logp(h, w, torch.arange(4), backend=backend) for backend in ("compiled", "eager")]
    assert torch.equal(*found)
    slopes = [torch.autograd.grad(logp.sum(), w)[0] for logp in found]
    assert slopes[0].isfinite().all()
    assert torch.equal(*slopes)


def test_which_tensors_go_to_these_kernels(monkeypatch):
    assert not gpu.takes(torch.zeros(2, 3))
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert not gpu.takes(torch.zeros(2, 3, device="cuda"))  # there are no numbers
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    narrow, wide = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3, dtype=torch.float64)
    assert gpu.takes(narrow, narrow.float())
    assert not gpu.takes(narrow, wide)


@pytest.mark.parametrize(
    ("vocab", "block", "pieces"), [(1, 128, 1), (129, 256, 1), (2048, 2048, 1), (151936, 2048, 75)]
)
def test_how_rows_are_cut(vocab, block, pieces):
    cut = gpu.Cut(vocab, 2)
    assert (cut.block, cut.pieces) == (block, pieces)
