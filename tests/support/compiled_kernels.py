"""Compiled kernels against float64 references; run as a program, by test_compiling.

In a process of its own, because a compiler that traces a function would trace pytest's checker of types.
`python -m tests.support.compiled_kernels few` takes half a minute where nothing is cached, `all` many. Names
of divergences after it are the only ones then, and a last word `cuda` has all of it done by a GPU.
"""

import re
import sys
from functools import partial

import mpmath
import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES
from kl_companion.divergences.registry import T
from kl_companion.kernels.fused import fused_f_divergence, fused_logp, fused_logp_and_entropy
from kl_companion.kernels.linear import linear_f_divergence, linear_logp_and_entropy
from tests.oracles import fused as oracle
from tests.support.fused_cases import INF, MODES, gradient_error, logits_pair, run, value_error

ALL = tuple((name, dtype) for name in DIVERGENCES for dtype in (torch.float64, torch.float32, torch.bfloat16))
# rows and vocabulary: pieces of even and odd length, a prime vocabulary, fewer entries than a register holds
SIZES = ((4, 8192), (3, 5 * 1733), (2, 701), (5, 7), (2, 1), (1, 600), (0, 40))
DEVICE = "cpu"
FEW = "reverse_kl", torch.float32, ((4, 8192), (3, 9600))  # sizes that share a compilation


def there(*tensors):
    """Tensors as the device under test has them."""
    return tuple(t.to(DEVICE) for t in tensors)


def back(*tensors):
    """What it made, where it is compared."""
    return tuple(t.detach().cpu() for t in tensors)


def divergences(name, dtype, sizes, temperature=0.7):
    """One divergence at all sizes, near and far, in every mode, with a mask and a temperature."""
    for rows, vocab in sizes:
        for gap, mask, cooled in ((1e-3, "none", 1.0), (0.5, "both", 1.0), (None, "none", temperature)):
            x, y = logits_pair(1, rows, vocab, gap=gap, mask=mask, dtype=dtype, offset=30.0)
            weights = torch.linspace(-1, 2.5, rows)
            exact = oracle.leaf(x)
            options = {"temperature": cooled, "backend": "compiled"}
            want = oracle.divergence(name, exact, y, temperature=cooled)
            (slope,) = oracle.gradients(want, [exact], weights)
            for mode in MODES if vocab == 8192 else ("safe", "fused"):
                on, ref, scale = there(x, y, weights)
                kernel = partial(fused_f_divergence, name)
                value, gradient = back(*run(kernel, on, ref, mode=mode, weights=scale, **options))
                terms = (weights * want.detach().clamp(max=1.0)).abs()
                got = value_error(value, want, dtype), gradient_error(gradient, slope, dtype, want, terms)
                assert max(got) <= 2, (name, dtype, rows, vocab, gap, mode, got)


def tokens(dtype, sizes, entropies=True):
    """Log-probs and entropies."""
    for rows, vocab in sizes:
        x, _ = logits_pair(2, rows, vocab, mask="both", dtype=dtype)
        for count in ((), (3,)):
            ids = torch.zeros(rows, *count, dtype=torch.int64)
            if vocab > 1:
                ids = (
                    x.topk(min(2, vocab), -1).indices[:, :1].expand(rows, *(count or (1,))).reshape(ids.shape)
                )
            weights = torch.linspace(0.5, 2, ids.numel()).view(ids.shape)
            exact = oracle.leaf(x)
            want = oracle.logp(exact, ids)
            (slope,) = oracle.gradients(want, [exact], weights)
            terms = weights.abs().sum(-1) if count else 0.0
            for mode in ("safe", "fused"):
                on, at, scale = there(x, ids, weights)
                value, gradient = back(*run(fused_logp, on, at, mode=mode, weights=scale, backend="compiled"))
                assert value_error(value, want, dtype) <= 2, (rows, vocab)
                assert gradient_error(gradient, slope, dtype, terms=terms) <= 2, (rows, vocab)
        if not entropies:
            continue
        (on,), exact = there(x.clone()), oracle.leaf(x)
        _, entropy = fused_logp_and_entropy(on.requires_grad_(), on.argmax(-1), backend="compiled")
        want = oracle.entropy(exact)
        value, gradient = back(entropy, *torch.autograd.grad(entropy.sum(), on))
        assert value_error(value, want, dtype) <= 2
        assert gradient_error(gradient, oracle.gradients(want, [exact])[0], dtype) <= 2


def definition(name, x, y):
    """D_f of rows of logits from the definition of f, with 60 digits."""
    with mpmath.workdps(60):
        f, values = sympy.lambdify(T, DIVERGENCES[name].f, modules="mpmath"), []
        for row, ref_row in zip(x.double().tolist(), y.double().tolist(), strict=True):
            p, q = ([mpmath.exp(logit) for logit in logits] for logits in (row, ref_row))
            masses = sum(p), sum(q)
            terms = (b / masses[1] * f(a / masses[0] * masses[1] / b) for a, b in zip(p, q, strict=True))
            values.append(float(sum(terms)))
    return torch.tensor(values, dtype=torch.float64)


def confident(name, dtype):
    """Rows whose likeliest token leads by 1 to 60: D_f down to 1e-30; 17 pieces fill registers of numbers."""
    lead, at, draw = torch.arange(1.0, 61.0).double(), [0, 300, 2000, 4368], torch.Generator().manual_seed(6)
    for gap in (1e-2, 0.7):
        x, y = torch.randn(2, len(lead), len(at), generator=draw, dtype=torch.float64)
        x[:, 0] = x[:, 1:].amax(-1) + lead
        y = x + gap * y * (torch.arange(len(at)) > 0)
        x, y = x.to(dtype), y.to(dtype)
        full = [
            torch.full((len(lead), 17 * 257), -INF, dtype=dtype).index_copy(1, torch.tensor(at), a)
            for a in (x, y)
        ]
        eager, compiled = (
            back(fused_f_divergence(name, *there(*full), backend=backend))[0]
            for backend in ("eager", "compiled")
        )
        assert (compiled > 0).all(), name
        near, exact = (1e-12, 5e-12) if dtype == torch.float64 else (2e-6 if DEVICE == "cpu" else 2e-5, 2e-5)
        torch.testing.assert_close(compiled, eager, rtol=near, atol=0)
        torch.testing.assert_close(compiled.double(), definition(name, x, y), rtol=exact, atol=0)


def refusals():
    """Bad input comes out in its row's value; validated it is refused by name, and not overwritten."""
    x, y = logits_pair(3, 4, 8192, gap=0.5)
    for where, value, says in (
        (x, float("nan"), "logits is NaN at [2]"),
        (y, -INF, "reverse_kl is infinite at [2, 7]"),
    ):
        spoiled = where.clone()
        spoiled[2, 7] = value
        given = (spoiled, y) if where is x else (x.clone(), spoiled)
        on = there(*given)
        value = fused_f_divergence("reverse_kl", *on, backend="compiled").cpu()
        assert value.isfinite().tolist() == [True, True, False, True], says
        before = on[0].clone()
        options = {"weights": there(torch.ones(4))[0], "inplace": True, "validate": True}
        with pytest.raises(ValueError, match=re.escape(says)):
            fused_f_divergence("reverse_kl", *on, backend="compiled", **options)
        assert torch.equal(on[0].nan_to_num(), before.nan_to_num())


def unwaited():
    """The second call of a kernel, and its backward pass, never wait for the GPU."""
    (x, y, ids) = there(*logits_pair(5, 4, 8192, gap=0.5), torch.arange(4))
    (h, w) = there(torch.randn(4, 32), torch.randn(8192, 32))
    leaves = [t.requires_grad_() for t in (x, h)]
    works = (
        lambda: fused_f_divergence("reverse_kl", x, y, backend="compiled"),
        lambda: fused_f_divergence("forward_kl", x, y, backend="compiled", weights=y[:, 0]),
        lambda: fused_logp(x, ids, backend="compiled"),
        lambda: linear_f_divergence("reverse_kl", h, w, ref_logits=y, backend="compiled"),
    )
    for work in works:
        for mode in ("default", "error"):
            torch.cuda.set_sync_debug_mode(mode)
            torch.autograd.grad(work().sum(), leaves, allow_unused=True)
        torch.cuda.set_sync_debug_mode("default")


def hidden(*names):
    """From hidden states: divergences, and log-probs with entropies, whose tiles are overwritten."""
    draw = torch.Generator().manual_seed(4)
    h, w, rh, rw = (
        torch.randn(*shape, generator=draw) / 4 for shape in ((6, 32), (8192, 32), (6, 32), (8192, 32))
    )
    exact = [oracle.leaf(a) for a in (h, w)]
    logits, ref_logits = oracle.linear(*exact), oracle.linear(rh, rw)
    h, w, rh, rw, ids = there(h, w, rh, rw, torch.arange(6) * 1000)
    h, w = h.requires_grad_(), w.requires_grad_()
    options = {"memory": 200_000, "backend": "compiled"}
    for name in names:
        if name == "log-probs":
            logp, entropy = linear_logp_and_entropy(h, w, ids, **options)
            found, want = logp + entropy, oracle.logp(logits, ids.cpu()) + oracle.entropy(logits)
        else:
            found = linear_f_divergence(name, h, w, ref_hidden=rh, ref_weight=rw, **options)
            want = oracle.divergence(name, logits, ref_logits)
        value, *gradients = back(found, *torch.autograd.grad(found.sum(), (h, w)))
        slopes = torch.autograd.grad(want.sum(), exact, retain_graph=True)
        torch.testing.assert_close(value.double(), want.detach(), rtol=1e-4, atol=1e-9)
        for got, slope in zip(gradients, slopes, strict=True):
            assert (got - slope).norm() <= 1e-4 * slope.norm(), name


def main(which, *names):
    """Compare; raises where something differs."""
    if which == "few":
        divergences(*FEW, temperature=1.0)
        confident(*FEW[:2])
        tokens(*FEW[1:], entropies=False)
    else:
        for name, dtype in ALL:
            if not names or name in names:
                divergences(name, dtype, SIZES)
                if dtype != torch.bfloat16:
                    confident(name, dtype)
                print(name, dtype, flush=True)
        if not names:
            for dtype in (torch.float32, torch.bfloat16):
                tokens(dtype, SIZES[:-1])
        hidden(*(names or (*DIVERGENCES, "log-probs")))
    if DEVICE == "cuda":
        unwaited()
    refusals()
    print("done", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    DEVICE = "cuda" if arguments[-1] == "cuda" else "cpu"
    main(*arguments[: -1 if DEVICE == "cuda" else None])
