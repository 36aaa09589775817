"""Which form of a kernel runs, that both give the same numbers, and that nothing small is ever compiled."""

import importlib
import logging
import os
import subprocess
import sys
import time

import pytest
import torch

from kl_companion.kernels import compiling
from kl_companion.kernels.compiling import Kernel, compiler_found, compiles
from kl_companion.kernels.fused import fused_kl
from tests.support.data import data
from tests.support.warm import command

DATA = data(__file__)


CPU, LARGE = torch.device("cpu"), 1 << 20


@pytest.fixture
def searched():
    """The search for a compiler is made once in a process: forget its result before and after."""
    compiler_found.cache_clear()
    yield
    compiler_found.cache_clear()


def compiled_kernels(which, root, *on, **environment):
    program = [*command(), "-m", "tests.support.compiled_kernels", which, *on]
    environment = {**os.environ, **environment}
    return subprocess.run(
        program, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=3000
    )


@pytest.mark.slow
def test_compiled_kernels_against_float64(root):
    done = compiled_kernels("few", root)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.endswith("done\n")


@pytest.mark.gpu
def test_compiled_kernels_of_a_gpu(root):
    done = compiled_kernels("few", root, "cuda")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.reliability
def test_every_compiled_kernel_against_float64(root):
    done = compiled_kernels("all", root)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.usefixtures("searched")
def test_auto_compiles_what_is_large_where_a_compiler_is_found(monkeypatch):
    monkeypatch.setattr(compiling, "_cpp_compiler", lambda: True)
    assert compiles("auto", LARGE, CPU)
    assert not compiles("auto", LARGE - 1, CPU)
    assert compiles("compiled", 1, CPU)
    assert not compiles("eager", LARGE, CPU)
    assert not compiles("auto", LARGE, torch.device("mps"))


@pytest.mark.usefixtures("searched", "as_installed")
def test_without_a_compiler_the_eager_kernels_are_used_and_that_is_logged_once(monkeypatch, caplog):
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING, compiling.__name__):
        assert not compiles("auto", LARGE, CPU)
        assert not compiles("auto", LARGE, CPU)
    assert [record.message for record in caplog.records] == [
        "the eager kernels are used on cpu: a C++ compiler is missing"
    ]
    x = torch.randn(2, 1 << 19, generator=torch.Generator().manual_seed(0))
    assert fused_kl(x, x.flip(0)).isfinite().all()
    with pytest.raises(ValueError, match=r"backend is 'compiled', but no compiler is found for cpu"):
        fused_kl(x, x, backend="compiled")


@pytest.mark.usefixtures("searched")
def test_a_mode_that_watches_every_operator_sees_them(monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode

    monkeypatch.setattr(compiling, "_cpp_compiler", lambda: True)
    with FlopCounterMode(display=False):
        assert not compiles("auto", LARGE, CPU)


def test_nothing_small_is_compiled(monkeypatch):
    def refuse(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(compiling, "_compile", refuse)
    x = torch.randn(16, 4096, generator=torch.Generator().manual_seed(0)).requires_grad_()
    fused_kl(x, x.detach().flip(0)).sum().backward()


def test_a_slow_compilation_is_announced_once(monkeypatch, caplog):
    monkeypatch.setattr(compiling, "_PATIENCE", 0.01)

    def slow(function, static, integers, tensors):
        time.sleep(0.2)
        return lambda *ts: function(*ts, **static), function(*tensors, **static)

    monkeypatch.setattr(compiling, "_compile", slow)
    kernel = Kernel(lambda x, *, by: x * by)
    with caplog.at_level(logging.WARNING, compiling.__name__):
        assert kernel(True, torch.ones(3), by=2).tolist() == [2, 2, 2]
        assert kernel(True, torch.ones(4), by=2).tolist() == [2, 2, 2, 2]
    assert [record.message[:20] for record in caplog.records] == ["compiling the kernel"]
    assert len(kernel._made) == 1
    kernel(True, torch.ones(3, dtype=torch.float64), by=2)
    kernel(True, torch.ones(3), by=3)
    assert len(kernel._made) == 3


@pytest.fixture
def causes(monkeypatch):
    """Causes that no other test has told of."""
    monkeypatch.setattr(compiling, "_CAUSES", set())


@pytest.mark.usefixtures("causes")
def test_a_compiler_that_fails_is_told_once_and_the_eager_form_runs(monkeypatch, caplog):
    attempts, errors = [], (RuntimeError("no space left"), RuntimeError("another file"), OSError("read-only"))

    def fail(function, static, integers, tensors):
        attempts.append(tensors)
        raise errors[len(attempts) - 1]

    monkeypatch.setattr(compiling, "_compile", fail)
    x, out = torch.arange(12.0).view(3, 4), torch.zeros(3, 4)
    kernel = Kernel(lambda x, out, by: out.copy_(x * by))
    for _ in errors:
        for by in (torch.tensor(2.0), torch.tensor(3.0)):
            kernel(True, x, out.zero_(), by)
            assert torch.equal(out, x * by)
        kernel._made.clear()
    assert len(attempts) == len(errors)
    assert [record.message.rpartition("failed: ")[2] for record in caplog.records] == [
        "RuntimeError: no space left",
        "OSError: read-only",
    ]


@pytest.mark.usefixtures("causes")
@pytest.mark.parametrize("module", DATA["a_release_that_has_moved_what_is_patched"])
def test_a_release_that_has_moved_what_is_patched(monkeypatch, caplog, module):
    importlib.import_module(module)
    monkeypatch.setitem(sys.modules, module, None)
    parent, _, name = module.rpartition(".")
    monkeypatch.delattr(sys.modules[parent], name)
    x, y = torch.randn(2, 4, 600, generator=torch.Generator().manual_seed(0))
    want = fused_kl(x, y, backend="eager")
    walks = importlib.import_module("kl_companion.kernels.walks")
    for kernel in (walks.FIRST_SUMS, walks.KL_NUMBERS):
        monkeypatch.setattr(kernel, "_made", {})
    assert torch.equal(fused_kl(x, y, backend="compiled"), want)
    (record,) = (record for record in caplog.records if "the compiler failed" in record.message)
    assert record.levelname == "WARNING"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", [{"CXX": "/bin/false"}, {"TORCHINDUCTOR_CACHE_DIR": "/proc/none"}])
def test_a_broken_toolchain_breaks_no_result(root, tmp_path, trouble):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), **trouble}
    code = (
        "import torch; from kl_companion.kernels import fused_kl; "
        "x, y = torch.randn(2, 2, 700); x.requires_grad_(); "
        "for_each = [fused_kl(x, y, backend=b) for b in ('compiled', 'eager')]; "
        "print(*(torch.autograd.grad(v.sum(), x)[0].sum().item() == 0 for v in for_each), "
        "torch.equal(*for_each))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("True\n"), done.stderr[-2000:]
    assert done.stderr.count("the eager kernels are used, because the compiler failed") == 1


def test_integers_reach_the_compiler_as_floats_and_the_kernel_as_integers(monkeypatch):
    given = []
    monkeypatch.setattr(torch, "compile", lambda made, **_: lambda *ts: given.extend(ts) or made(*ts))
    kernel = Kernel(lambda x, none, out, scale: out.copy_((x << 1) * scale.int()))
    out = torch.zeros(2, 4, dtype=torch.int32)
    for _ in range(2):
        kernel(True, torch.full((2, 4), -3, dtype=torch.int32), None, out, torch.tensor(5.0))
        assert out.tolist() == [[-30] * 4] * 2
        out.zero_()
    assert [None if t is None else t.dtype for t in given] == [torch.float32, None, *[torch.float32] * 2] * 2


def test_the_eager_form_works_on_parts(monkeypatch):
    monkeypatch.setattr(compiling, "_PART", 6)
    seen = []

    def sums(x, scale, out, *, by):
        seen.append(len(x))
        out.copy_(x * scale.unsqueeze(-1))
        return x.sum(-1) * by, x.amax(-1)

    x, scale = torch.arange(10.0).view(5, 2), torch.arange(5.0)
    out = torch.empty_like(x)
    total, top = Kernel(sums)(False, x, scale, out, by=2)
    assert seen == [3, 2]
    torch.testing.assert_close((total, top, out), (2 * x.sum(-1), x.amax(-1), x * scale.unsqueeze(-1)))


def test_the_compiler_remembers_what_a_value_is_made_of():
    from torch._inductor import ir, virtualized

    create, traced = ir.Pointwise.create, []

    def inner(index):
        traced.append(index)
        return len(traced)

    with compiling._traced_once():
        box = ir.Pointwise.create(device=CPU, dtype=torch.float32, inner_fn=inner, ranges=[2])
    assert ir.Pointwise.create == create
    once = box.data.data.inner_fn
    for first in (1, 3):
        with virtualized.V.set_ops_handler(object()):
            assert [once(at) for at in ([0], [0], [1], [0])] == [first, first, first + 1, first]
    assert traced == [[0], [1], [0], [1]]


def test_one_compiled_form_for_all_sizes_views_and_gradients(monkeypatch):
    compiled = []
    monkeypatch.setattr(
        compiling, "_compile", lambda f, static, integers, ts: (compiled.append(ts) or f, f(*ts))
    )
    kernel, leaf = Kernel(lambda x: x.clone()), torch.ones(6, 8, requires_grad=True)
    kinds = (
        (
            torch.ones(2, 4),
            torch.ones(5, 7),
            torch.ones(9, 3),
            leaf,
            leaf * 2,
            leaf[1:3],
            leaf.T.contiguous(),
        ),
        (leaf[:, 1:], leaf[:, 3:]),  # rows apart from each other
        (torch.ones(2), torch.ones(9)),
        (torch.ones(2, 4, dtype=torch.float64),),
    )
    for forms, tensors in enumerate(kinds, 1):
        for t in tensors:
            assert torch.equal(kernel(True, t), t)
        assert len(compiled) == forms
    for t in (torch.ones(1, 4), torch.ones(4, 1), torch.ones(9, 2), torch.ones(1)):
        assert torch.equal(kernel(True, t), t)
    assert len(compiled) == len(kinds)
    assert not any(t.requires_grad or t._is_view() for (t,) in compiled)
