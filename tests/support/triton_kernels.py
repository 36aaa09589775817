"""The kernels of a GPU in Triton's interpreter, where there is none; run as a program by test_gpu.

`TRITON_INTERPRET=1 python -m tests.support.triton_kernels` calls the public functions and compares them with
float64; `python -m tests.support.triton_kernels cuda modes` does so on a GPU, one check of `CHECKS`. What the
interpreter cannot see is looked at by `tests.support.triton_machine_code`.
"""

import itertools
import os
import sys
from functools import partial
from unittest import mock

import sympy
import torch

from kl_companion.divergences import DIVERGENCES, T, get_divergence, make_divergence
from kl_companion.frameworks.installed import AUDIT
from kl_companion.kernels import (
    autograd,
    compiling,
    fused_f_divergence,
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
    gpu,
    linear_f_divergence,
    linear_logp_and_entropy,
)
from kl_companion.kernels.logit_transform import LogitTransform
from kl_companion.kernels.walks import room_for_kept, walk_divergence
from tests.oracles import fused as oracle
from tests.support.fused_cases import INF, gradient_error, logits_pair, noise, run, value_error

HALF, SINGLE = (torch.bfloat16, torch.float16), torch.float32
ATTEMPT = gpu.attempt
KLS = {"reverse_kl": fused_kl, "forward_kl": fused_forward_kl}


def done_or_raised(kind, walk):
    """What `gpu.attempt` does where nothing may fall back on other kernels."""
    walk()
    return True


def on_gpu():
    """Let tensors of this processor count as those of a GPU, which is not waited for."""
    for where, name, stand_in in (
        (gpu, "takes", lambda *xs: all(x.dtype in gpu._NARROW for x in xs)),
        (gpu, "attempt", done_or_raised),
        (autograd, "may_look", lambda x: False),
        (compiling, "compiler_found", lambda device: True),
    ):
        mock.patch.object(where, name, stand_in).start()


def compare(name, x, y, *, mode="safe", temperature=1.0, function=None):
    """Value and gradient of a divergence against float64, with weights of the rows."""
    weights = torch.linspace(-1, 2.5, x.shape[:-1].numel()).view(x.shape[:-1])
    exact, kernel = oracle.leaf(x), function or partial(fused_f_divergence, name)
    want = oracle.divergence(name, exact, y, temperature=temperature)
    (slope,) = oracle.gradients(want, [exact], weights)
    options = {"temperature": temperature, "backend": "compiled"}
    value, gradient = run(kernel, x, y, mode=mode, weights=weights, **options)
    terms = (weights * want.detach().clamp(max=1.0)).abs()
    got = value_error(value, want, x.dtype), gradient_error(gradient, slope, x.dtype, want, terms)
    assert max(got) <= 2, (name, x.dtype, tuple(x.shape), mode, got)
    return value, gradient


def sizes_and_dtypes():
    """Rows of one piece and of several, near the reference and far from it."""
    for name in KLS:
        for dtype, sizes in (
            (SINGLE, (1, 2, 3, 127, 129, 300)),
            (torch.bfloat16, (3, 300)),
            (torch.float16, (300,)),
        ):
            for vocab in sizes:
                for gap in (1e-3, None):
                    x, y = logits_pair(vocab, 2, vocab, gap=gap, offset=30.0, mask="both", dtype=dtype)
                    compare(name, x, y, function=KLS[name])
    for name, dtype, gap in zip(DIVERGENCES, (SINGLE, *HALF) * 4, (None, 1e-3) * 5, strict=False):
        x, y = logits_pair(7, 2, 300, gap=gap, offset=30.0, mask="both", dtype=dtype)
        compare(name, x, y, temperature=0.7)
    compare("jensen_shannon", *logits_pair(8, 200, gap=1e-3))


def families():
    """Members of families, whose text is printed like that of the registered divergences."""
    x, y = logits_pair(9, 2, 150, gap=0.7)
    for name in ("generalized_jensen_shannon(0.1)", "skewed_kl(0.1)", "skewed_reverse_kl(0.2)"):
        values = [fused_f_divergence(name, a, b, backend="compiled") for a, b in ((x, y), (y, x))]
        plain = [
            fused_f_divergence(name, a.double(), b.double(), backend="eager") for a, b in ((x, y), (y, x))
        ]
        torch.testing.assert_close(torch.stack(values).double(), torch.stack(plain), rtol=2e-6, atol=0)


def tails():
    """Logits far from each other: no further from float64 than log_softmax in float32 is."""
    x, y = logits_pair(10, 6, 300, scale=2.0)
    x[0], y[0] = 0.0, 0.0
    x[0, 3], y[0, 140] = 1e4, 1e4  # one-hot rows, at different tokens and at the same one
    x[1, 140], y[1, 140] = 60.0, 80.0
    x[2], y[2] = x[2] + 1e4, y[2] - 1e4
    x[3, 100:], y[3, 100:] = -INF, -INF
    x[4, :250] = -200.0
    y[5, 7] = -3e4
    for name in (*KLS, "jensen_shannon"):
        leaf, exact, single = x.clone().requires_grad_(), oracle.leaf(x), x.clone().requires_grad_()
        value = fused_f_divergence(name, leaf, y, backend="compiled")
        want = oracle.divergence(name, exact, y)
        both = ~(x.isneginf() & y.isneginf())
        p, q = (t.log_softmax(-1).where(both, 0.0) for t in (single, y))
        plain = (oracle.ENTRY[name](p, q) * both).sum(-1)
        assert value.isfinite().all(), name
        error, usual = ((v.double() - want).abs().detach() for v in (value, plain))
        assert (error <= 1e-6 * want.abs().detach() + usual).all(), (name, error, usual)
        (got,), (slope,) = (torch.autograd.grad(v.sum(), t) for v, t in ((value, leaf), (want, exact)))
        assert ((got - slope).abs().amax(-1) <= 2e-6 * (1 + want.detach())).all(), name


def no_numbers():
    """NaN, +inf, and an infinite divergence come out for their row; masks on one side cost what they cost."""
    x, y = logits_pair(11, 5, 200)
    x[0, 3], y[1, 150], x[2, 5], y[3, 7] = float("nan"), INF, INF, -INF
    leaf = x.clone().requires_grad_()
    value = fused_kl(leaf, y, backend="compiled")
    (gradient,) = torch.autograd.grad(value.sum(), leaf)
    assert value.isnan().tolist() == [True, True, True, False, False]
    assert value[3] == INF
    assert gradient[3].isnan().all()
    assert gradient.isfinite().all(-1).tolist() == [False, False, False, False, True]
    x, y = logits_pair(12, 2, 200, gap=0.5)
    x[0, 3] = y[1, 150] = -INF
    for name in ("jensen_shannon", "squared_hellinger", "total_variation", "amari_alpha(0.5)"):
        compare(name, x, y)
    compare("reverse_kl", x[:1], y[:1])
    compare("forward_kl", x[1:], y[1:])
    assert fused_forward_kl(x[:1], y[:1], backend="compiled").item() == INF
    leaf, jeffreys = (
        x.clone().requires_grad_(),
        make_divergence("own", (T - 1) * sympy.log(T), source="a test"),
    )
    value = fused_f_divergence(jeffreys, leaf, y, backend="compiled")
    assert value.tolist() == [INF, INF]
    assert torch.autograd.grad(value.sum(), leaf)[0].isnan().all()


def modes():
    """In place, masked, strided, by the reference, under torch.compile; second derivatives are refused."""
    x, y = logits_pair(13, 2, 2, 150, gap=0.7)
    mask, weights = torch.tensor([[0, 1], [1, 0]]).bool(), torch.linspace(-1, 2.5, 4).view(2, 2)
    spoiled, ref = (t.masked_fill(~mask.unsqueeze(-1), float("nan")) for t in (x, y))
    wide = [torch.cat([t, t[:, :1]], 1) for t in (x, y)]  # rows at several distances
    apart = [t.permute(2, 0, 1).contiguous().permute(1, 2, 0) for t in (x, y)]  # no entries side by side
    for name in (*KLS, "jensen_shannon"):
        kernel = partial(fused_f_divergence, name, backend="compiled")
        value, gradient = compare(name, x, y)
        for mode in ("safe", "inplace"):
            got = run(partial(kernel, mask=mask), spoiled, ref, mode=mode, weights=weights)
            assert torch.equal(got[0], value.where(mask, 0.0)), name
            assert torch.equal(got[1], gradient.where(mask.unsqueeze(-1), 0.0)), name
        for logits, mode in itertools.product(([t[:, :-1] for t in wide], apart), ("safe", "inplace")):
            assert not logits[0].is_contiguous()
            got = run(kernel, *logits, mode=mode, weights=weights)
            assert torch.equal(got[0], value)
            assert torch.equal(got[1], gradient)
        both, exact = [t.clone().requires_grad_() for t in (x, y)], [oracle.leaf(t) for t in (x, y)]
        got = torch.autograd.grad(kernel(*both).sum(), both, create_graph=True)
        want = torch.autograd.grad(oracle.divergence(name, *exact).sum(), exact)
        torch.testing.assert_close([g.detach().double() for g in got], list(want), rtol=2e-6, atol=1e-7)
        try:
            got[0].sum().backward()
        except RuntimeError as error:
            assert "no second derivatives" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a second derivative")
    assert torch.equal(torch.compile(kernel, backend="eager", fullgraph=True)(x, y), value)
    leaf, exact = x.clone().requires_grad_(), oracle.leaf(x)
    value = fused_kl(leaf, y, weights=mask.float(), backend="compiled")
    assert torch.equal(value == 0, ~mask)
    (got,) = torch.autograd.grad(value.sum(), leaf)  # another loss than was announced
    (want,) = torch.autograd.grad(oracle.divergence("reverse_kl", exact, y).sum(), exact)
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-7)


def log_probs():
    """Of one token and of several, one of them twice, in all modes; entropies; ids outside."""
    for dtype in (SINGLE, *HALF):
        for vocab, count in ((1, ()), (129, ()), (300, (3,))):
            x, _ = logits_pair(14, 4, vocab, mask="both", dtype=dtype, offset=30.0)
            ids = x.float().argmax(-1).unsqueeze(-1).expand(4, *(count or (1,))).reshape(4, *count).clone()
            if count:
                ids[:, 1] = 0
            weights = torch.linspace(0.5, 2, ids.numel()).view(ids.shape)
            exact = oracle.leaf(x)
            want = oracle.logp(exact, ids)
            (slope,) = oracle.gradients(want, [exact], weights)
            for mode in ("safe", "inplace", "weights"):
                value, gradient = run(fused_logp, x, ids, mode=mode, weights=weights, backend="compiled")
                assert value_error(value, want, dtype) <= 2, (dtype, vocab)
                assert (
                    gradient_error(gradient, slope, dtype, terms=weights.abs().sum(-1) if count else 0.0) <= 2
                )
        leaf, exact = x.clone().requires_grad_(), oracle.leaf(x)
        logp, entropy = fused_logp_and_entropy(leaf, ids[:, 0], temperature=0.7, backend="compiled")
        want = oracle.entropy(exact, temperature=0.7)
        assert value_error(entropy, want, dtype) <= 2
        (got,) = torch.autograd.grad(entropy.sum() + 2 * logp.sum(), leaf)
        want = want + 2 * oracle.logp(exact, ids[:, 0], temperature=0.7)
        assert gradient_error(got, oracle.gradients(want, [exact])[0], dtype, terms=3.0) <= 2
    x[0] = float("nan")
    mask, ids = torch.tensor([0, 1, 1, 1]), torch.tensor([-100, 300, 2, -1])
    x[2, 2] = -INF
    leaf = x.clone().requires_grad_()
    value = fused_logp(leaf, ids, mask=mask, backend="compiled")
    assert value[[0, 2]].tolist() == [0.0, -INF]
    assert value.isnan().tolist() == [False, True, False, True]
    assert not torch.autograd.grad(value[2], leaf)[0][0].any()


def hidden_states():
    """From hidden states, with factors, soft caps and temperatures of both sides."""
    h, w, rh, rw = (
        noise(15, 4, 8).float(),
        noise(16, 200, 8).float(),
        noise(17, 4, 6).float(),
        noise(18, 200, 6).float(),
    )
    factors = {"logit_scale": 0.5, "ref_logit_scale": 0.7, "soft_cap": 3.0, "ref_soft_cap": 2.0}
    options = {**factors, "temperature": 0.8, "ref_temperature": 1.3, "memory": 4000, "backend": "compiled"}
    exact = [oracle.leaf(t) for t in (h, w)]
    logits = 3.0 * torch.tanh(0.5 * (exact[0] @ exact[1].T) / 3.0) / 0.8
    ref_logits = 2.0 * torch.tanh(0.7 * (rh.double() @ rw.double().T) / 2.0) / 1.3
    for name in (*KLS, "jensen_shannon"):
        leaves = [t.clone().requires_grad_() for t in (h, w)]
        value = linear_f_divergence(name, *leaves, ref_hidden=rh, ref_weight=rw, **options)
        want = oracle.divergence(name, logits, ref_logits)
        assert_near(value, want, leaves, exact)
    leaves, ids = (
        [t.clone().requires_grad_() for t in (h, w)],
        torch.tensor([[0, 3], [199, 199], [5, 2], [7, 1]]),
    )
    mine = {k: v for k, v in options.items() if not k.startswith("ref_")}
    logp, entropy = linear_logp_and_entropy(*leaves, ids, **mine)
    assert_near(
        logp.sum(-1) + entropy, oracle.logp(logits, ids).sum(-1) + oracle.entropy(logits), leaves, exact
    )
    assert linear_logp_and_entropy(h, w, ids - 200, **mine)[0].isnan().all()


def assert_near(value, want, leaves, exact):
    torch.testing.assert_close(value.double(), want, rtol=2e-5, atol=1e-6)
    got = torch.autograd.grad(value.sum(), leaves)
    for g, slope in zip(got, torch.autograd.grad(want.sum(), exact, retain_graph=True), strict=True):
        assert (g - slope).norm() <= 2e-5 * slope.norm()


def failures():
    """Where Triton fails in backward, other kernels make the gradient from its numbers, and the reverse."""
    x, y = logits_pair(20, 3, 140, gap=0.5)
    h, w, ids = noise(15, 3, 8).float(), noise(16, 140, 8).float().requires_grad_(), torch.arange(3)
    works = {name: partial(fused_f_divergence, name, ref_logits=y) for name in (*KLS, "jensen_shannon")}
    works["logp"] = lambda x, **o: fused_logp(x, ids, **o)
    works["linear"] = lambda h, **o: linear_f_divergence("forward_kl", h, w, ref_logits=y, **o)
    works["linear logp"] = lambda h, **o: linear_logp_and_entropy(h, w, ids, **o)[0]

    def fail(*_):
        raise RuntimeError("no machine code")

    for name in (*KLS, "jensen_shannon"):
        d, ways, weights = (
            get_divergence(name),
            [LogitTransform(compiled=compiled) for compiled in (False, True)],
            torch.ones(3),
        )
        slopes = []
        for first, second in itertools.product(ways, ways):
            value, out = torch.zeros(3), torch.empty_like(x)
            kept = room_for_kept(d, value)
            walk_divergence(d, x, y, kept, value=value, how=first)
            walk_divergence(d, x, y, kept, loss_weight=weights, gradient=out, how=second)
            slopes.append(out)
        torch.testing.assert_close(torch.stack(slopes), slopes[0].expand(4, 3, -1), rtol=1e-5, atol=1e-7)
    # what runs instead is not compiled here
    with mock.patch.object(compiling, "_compile", fail), mock.patch.object(gpu, "attempt", ATTEMPT):
        for name, work in works.items():
            leaves = [(h if "linear" in name else x).clone().requires_grad_() for _ in range(2)]
            values = [work(leaf, backend=b) for leaf, b in zip(leaves, ("compiled", "eager"), strict=True)]
            assert not gpu._FAILED, name
            broken = {"write": fail}
            with mock.patch.multiple(gpu._Divergence, **broken), mock.patch.multiple(gpu._Tokens, **broken):
                slopes = [
                    torch.autograd.grad(v.sum(), leaf)[0] for v, leaf in zip(values, leaves, strict=True)
                ]
            assert len(gpu._FAILED) == 1, name
            gpu._FAILED.clear()
            torch.testing.assert_close(*values, rtol=2e-6, atol=1e-9)
            torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-7)


CHECKS = {
    check.__name__: check
    for check in (
        *(sizes_and_dtypes, families, tails, no_numbers, modes),
        *(log_probs, hidden_states, failures),
    )
}


def main(device="", *names):
    """Run checks, all of them unless some are named; raises where something is wrong."""
    sys.path.append(str(AUDIT))  # at the end: what .venv has comes from there
    if device:
        mock.patch.object(gpu, "attempt", done_or_raised).start()
        torch.set_default_device(device)
    else:
        on_gpu()
        assert os.environ["TRITON_INTERPRET"] == "1"
    with mock.patch.object(gpu, "_BLOCK", 128):
        for name in names or CHECKS:
            CHECKS[name]()
            print(name, flush=True)
    compare("reverse_kl", *logits_pair(19, 2, 4097, gap=0.5))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
