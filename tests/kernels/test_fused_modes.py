"""What the three modes promise: whose memory, whose weights, what is refused, and who may call them."""

import subprocess

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from kl_companion.kernels import blocks, compiling
from kl_companion.kernels.fused import (
    fused_f_divergence,
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
    fused_top_k_f_divergence,
)
from tests.oracles import fused as oracle
from tests.support.allocations import Allocations
from tests.support.fused_cases import MODES, gradient_error, logits_pair, run
from tests.support.warm import command

TOKENS, HEAD = torch.tensor([3, 0, 5, 2]), torch.tensor([[0, 1, 2]] * 4)
X, Y = logits_pair(1, 4, 40)
WEIGHTS = torch.tensor([0.5, -1.0, 0.0, 2.0])
SHIPPED = Y.log_softmax(-1).gather(-1, HEAD), Y.log_softmax(-1).gather(-1, TOKENS.unsqueeze(-1)).squeeze(-1)
ALL = {
    "reverse_kl": lambda x, **o: fused_kl(x, Y, **o),
    "forward_kl": lambda x, **o: fused_forward_kl(x, Y, **o),
    "jensen_shannon": lambda x, **o: fused_f_divergence("jensen_shannon", x, Y, **o),
    "logp": lambda x, **o: fused_logp(x, TOKENS, **o),
}
WITHOUT_WEIGHTS = {
    "logp_and_entropy": lambda x, **o: torch.stack(fused_logp_and_entropy(x, TOKENS, **o)).sum(0),
    "top_k": lambda x, **o: fused_top_k_f_divergence("pearson", x, TOKENS, HEAD, *SHIPPED, **o),
}
EVERY = {**ALL, **WITHOUT_WEIGHTS}


def modes_of(name):
    return MODES if name in ALL else ("safe", "inplace")


@pytest.mark.parametrize("name", list(EVERY))
def test_safe_changes_nothing_and_every_mode_gives_the_same_numbers(name):
    """Twice: the same bytes."""
    before = X.clone(), Y.clone()
    value, gradient = run(EVERY[name], X, weights=WEIGHTS)
    for mode in modes_of(name):
        got = run(EVERY[name], X, mode=mode, weights=WEIGHTS)
        want = value * (WEIGHTS != 0) if mode in ("weights", "fused") else value, gradient
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)
        again = run(EVERY[name], X, mode=mode, weights=WEIGHTS)
        assert all(torch.equal(a, b) for a, b in zip(again, got, strict=True))
    for mode in modes_of(name)[::2]:
        leaf = X.clone().requires_grad_()
        value = EVERY[name](leaf, **({"weights": WEIGHTS} if mode == "weights" else {}))
        (WEIGHTS * value).sum().backward()
        assert torch.equal(leaf.detach(), before[0])
        assert torch.equal(Y, before[1])
        assert leaf.grad.data_ptr() != leaf.data_ptr()


@pytest.mark.parametrize("name", list(EVERY))
def test_in_place_the_memory_of_the_logits_holds_their_gradient(name):
    _, want = run(EVERY[name], X, weights=WEIGHTS)
    for mode in modes_of(name)[1::2]:
        leaf = X.clone().requires_grad_()
        logits = leaf * 1.0
        memory, options = logits.detach(), {"weights": WEIGHTS} if mode == "fused" else {}
        value = EVERY[name](logits, inplace=True, **options)
        (WEIGHTS * value).sum().backward()
        torch.testing.assert_close(memory, want, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(leaf.grad, want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", ["inplace", "fused"])
def test_logits_that_something_else_needs_are_not_overwritten_in_silence(mode):
    """exp keeps its result for its own backward pass: autograd notices that it is gone."""
    leaf = X.clone().requires_grad_()
    options = {"weights": WEIGHTS} if mode == "fused" else {}
    value = fused_kl(leaf.exp(), Y, inplace=True, **options)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (WEIGHTS * value).sum().backward()


@pytest.mark.parametrize("name", list(ALL))
def test_weights_known_up_front(name):
    """The values come without weights, 0 where the weight is; the loss may be any multiple, and no other."""
    plain, _ = run(ALL[name], X, weights=WEIGHTS)
    plain = plain * (WEIGHTS != 0)
    for mode in ("weights", "fused"):
        value, _ = run(ALL[name], X, mode=mode, weights=WEIGHTS)
        torch.testing.assert_close(value, plain, rtol=1e-6, atol=0)
        for multiple in (1.0, -3.0, 1e-3, 0.0):
            _, want = run(ALL[name], X, weights=WEIGHTS, scale=multiple)
            _, got = run(ALL[name], X, mode=mode, weights=WEIGHTS, scale=multiple)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-9)
        for other in (WEIGHTS.abs(), torch.ones(4), WEIGHTS + torch.tensor([0, 0, 0, 1e-2]), WEIGHTS.flip(0)):
            leaf = X.clone().requires_grad_()
            value = ALL[name](leaf * 1.0, inplace=mode == "fused", weights=WEIGHTS)
            with pytest.raises(ValueError, match="multiple"):
                (other * value).sum().backward()


def test_blocks_may_change_between_forward_and_backward(monkeypatch):
    """As they do with the number of threads: a row of the slow path may then share a block with others."""
    x, y = logits_pair(4, 4, 30)
    x[1], y[3] = x[1] * 300, y[3] * 300  # beyond the reach of the fast path
    for before, after in ((1, 1 << 20), (1 << 20, 1)):
        monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", before)
        leaf = x.clone().requires_grad_()
        value = fused_forward_kl(leaf, y)
        monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", after)
        value.sum().backward()
        exact = oracle.leaf(x)
        (want,) = oracle.gradients(oracle.divergence("forward_kl", exact, y), [exact])
        assert gradient_error(leaf.grad, want, x.dtype) <= 1


def test_weights_that_are_all_zero_or_single():
    for weights in (torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 0.0])):
        _, want = run(fused_kl, X, Y, weights=weights)
        _, got = run(fused_kl, X, Y, mode="fused", weights=weights)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9)


def test_no_gradient_is_made_where_none_is_asked_for():
    for options in ({}, {"inplace": True}, {"weights": WEIGHTS}, {"weights": WEIGHTS, "inplace": True}):
        logits = X.clone()
        with Allocations() as seen:
            value = fused_kl(logits, Y, **options)
        assert torch.equal(logits, X), options
        assert not value.requires_grad
        leaf = X.clone().requires_grad_()
        with torch.no_grad():
            value = fused_kl(leaf, Y, **options)
        assert torch.equal(leaf.detach(), X), options
        assert not value.requires_grad
        assert seen.largest < 10 * X.untyped_storage().nbytes()


@pytest.mark.parametrize("name", list(EVERY))
def test_second_derivatives_are_refused(name):
    for mode in modes_of(name):
        leaf = X.clone().requires_grad_()
        options = {"weights": torch.ones(4)} if mode in ("weights", "fused") else {}
        value = EVERY[name](leaf * 1.0, inplace=mode in ("inplace", "fused"), **options).sum()
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad(torch.autograd.grad(value, leaf, create_graph=True)[0].sum(), leaf)


# ---- errors at the door ------------------------------------------------------------------------------


def with_entry(a, value, *at):
    a = a.clone()
    a[at] = value
    return a


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("row", [0, 3])
def test_a_refused_call_leaves_the_logits_alone(row):
    """In place too: the rows before and after the one that is refused are what they were."""
    leaf = with_entry(X, float("nan"), row, 7).requires_grad_()
    logits = leaf * 1
    before = logits.detach().clone()
    with pytest.raises(ValueError, match="NaN"):
        fused_kl(logits, Y, weights=WEIGHTS, inplace=True, validate=True)
    assert torch.equal(logits.detach().nan_to_num(1e9), before.nan_to_num(1e9))


# ---- callers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(EVERY))
def test_under_autocast(name):
    for dtype in (torch.bfloat16, torch.float32):
        x = X.to(dtype)
        want = run(EVERY[name], x, weights=WEIGHTS)
        for mode in modes_of(name):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value, gradient = run(EVERY[name], x, mode=mode, weights=WEIGHTS)
            if mode in ("weights", "fused"):
                assert value[2] == 0  # of weight 0
                value[2] = want[0][2]
            rtol = 1e-6 if dtype == torch.float32 else 2**-7
            torch.testing.assert_close((value, gradient), want, rtol=rtol, atol=1e-7)
            assert value.dtype == torch.float32


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", list(EVERY))
def test_inside_gradient_checkpointing(name, reentrant):
    _, want = run(EVERY[name], X, weights=WEIGHTS)
    for mode in modes_of(name):
        options = {"weights": WEIGHTS} if mode in ("weights", "fused") else {}
        leaf = X.clone().requires_grad_()

        def layer(a, mode=mode, options=options):
            return EVERY[name](a * 1.0, inplace=mode in ("inplace", "fused"), **options)

        value = checkpoint(layer, leaf, use_reentrant=reentrant)
        (WEIGHTS * value).sum().backward()
        torch.testing.assert_close(leaf.grad, want, rtol=1e-6, atol=1e-9)


def compiled_callers(root, *names):
    compiled = [*command(), "-m", "tests.support.fused_compiled", *names]
    done = subprocess.run(compiled, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_inside_compiled_callers(root):
    """The same numbers, as one operator of the caller's graph, and two graphs for all lengths together."""
    lines = compiled_callers(root)
    assert "kl, fused" in lines
    assert "linear log-probs at all lengths 1\n" in lines
    assert "top-k at all lengths 2 1\n" in lines


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reference", "linear kl, weight"])
def test_a_compiled_caller_is_the_first_use_of_the_package(root, name):
    assert compiled_callers(root, name) == f"{name}\n"


@pytest.mark.parametrize("name", ["reverse_kl", "jensen_shannon", "logp", "logp_and_entropy"])
def test_on_a_device_that_is_not_waited_for(name):
    """Tensors without numbers stand for a GPU: whoever looks at one of theirs fails."""
    x, y = (torch.empty(6, 512, device="meta") for _ in range(2))
    tokens, weights = torch.zeros(6, dtype=torch.int64, device="meta"), torch.empty(6, device="meta")
    calls = {
        "logp": lambda a, **o: fused_logp(a, tokens, **o),
        "logp_and_entropy": lambda a, **o: sum(fused_logp_and_entropy(a, tokens)),
    }
    call = calls.get(name, lambda a, **o: fused_f_divergence(name, a, y, **o))
    for inplace in (False, True):
        leaf = x.clone().requires_grad_()
        value = call(leaf * 1.0, weights=weights, inplace=inplace)
        (weights * value).sum().backward()
        assert leaf.grad.shape == x.shape


# ---- memory, counted ---------------------------------------------------------------------------------


class Output(torch.autograd.Function):
    """Logits as a model returns them: no leaf, and their gradient is passed on as it is."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, incoming):
        return incoming


def measured(function, dtype, mode, rows, vocab):
    """(peak of bytes beyond the inputs, bytes kept for backward beside them) of a step."""
    x, y = (torch.rand(rows, vocab, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (1, 2))
    weights = torch.full((rows,), 1 / rows)
    options = {"weights": weights} if mode in ("weights", "fused") else {}
    leaf, kept = x.requires_grad_(), {}
    logits = Output.apply(leaf)

    def pack(a):
        kept[a.untyped_storage().data_ptr()] = a.untyped_storage().nbytes()
        return a

    with Allocations() as seen:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda a: a):
            value = function(logits, y, inplace=mode in ("inplace", "fused"), **options)
        (weights * value).sum().backward()
    beside = sum(size for at, size in kept.items() if at not in (logits.data_ptr(), y.data_ptr()))
    return seen.peak, beside


def logp_of(x, _, **options):
    return fused_logp(x, torch.arange(x.shape[0]), **options)


def entropy_of(x, _, **options):
    options.pop("weights", None)
    return fused_logp_and_entropy(x, torch.arange(x.shape[0]), **options)[1]


FUNCTIONS = {
    "kl": fused_kl,
    "forward kl": fused_forward_kl,
    "logp": logp_of,
    "entropy": entropy_of,
    "divergence": lambda x, y, **options: fused_f_divergence("squared_hellinger", x, y, **options),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_peak_of_memory(name, dtype, monkeypatch):
    """Beside a few rows of scratch: the new gradient in the safe mode, nothing in place."""
    monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", 1)  # a row at a time
    monkeypatch.setattr(compiling, "_PART", 4096)
    rows, vocab = 24, 8_192
    logits, row = rows * vocab * dtype.itemsize, vocab * 4 * torch.get_num_threads()
    for mode, new in (("safe", logits), ("inplace", 0), ("fused", 0), ("weights", logits)):
        if name == "entropy" and mode in ("weights", "fused"):
            continue
        peak, beside = measured(FUNCTIONS[name], dtype, mode, rows, vocab)
        assert new <= peak <= new + 12 * row, (mode, peak / row)
        # per token: values, what the gradient needs, tokens, weights; no copy of the logits
        assert beside <= 36 * rows, (mode, beside)


@pytest.mark.slow
def test_peak_of_memory_at_the_size_of_a_language_model():
    peak, beside = measured(fused_kl, torch.float32, "fused", 128, 151_936)
    assert peak <= 0.05 * 128 * 151_936 * 4
    assert beside <= 32 * 128
