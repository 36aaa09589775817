"""Scales of logits, soft caps and a teacher's own temperature, against float64 formulas in plain torch."""

from __future__ import annotations

import pytest
import torch

from kl_companion.kernels import (
    fused_f_divergence,
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
    fused_top_k_f_divergence,
    linear_f_divergence,
    linear_forward_kl,
    linear_kl,
    linear_logp,
    linear_logp_and_entropy,
    linear_top_k_f_divergence,
)
from tests.support.fused_cases import INF, noise

ROWS, WIDTH, VOCAB = 5, 6, 700
H, W, B = noise(1, ROWS, WIDTH), noise(2, VOCAB, WIDTH), noise(3, VOCAB)
RH, RW = noise(4, ROWS, WIDTH), noise(5, VOCAB, WIDTH)
TOKENS, HEAD = torch.arange(ROWS) * 100, torch.tensor([0, 100, 5]).expand(ROWS, 3)
OPTIONS = [
    {"logit_scale": 0.0625},
    {"logit_scale": 3.0, "temperature": 0.7},
    {"ref_temperature": 2.0},
    {"temperature": 2.0, "ref_temperature": 0.5, "logit_scale": 1.5, "ref_logit_scale": 0.25},
    {"temperature": 2.0, "logit_scale": 2.0, "ref_logit_scale": 2.0},
]
CAPS = [{}, {"soft_cap": 4.0}, {"soft_cap": 4.0, "ref_soft_cap": 2.5}]
CLOSE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def logp_of(x, scale=1.0, cap=None, temperature=1.0):
    x = scale * x
    return ((x if cap is None else cap * torch.tanh(x / cap)) / temperature).log_softmax(-1)


def both(x, y, o):
    """Log-probs of policy and reference."""
    policy = logp_of(x, o.get("logit_scale", 1.0), o.get("soft_cap"), o.get("temperature", 1.0))
    own = o.get("ref_temperature", o.get("temperature", 1.0))
    return policy, logp_of(y, o.get("ref_logit_scale", 1.0), o.get("ref_soft_cap"), own)


def kl(p, q):
    return (p.exp() * (p - q)).sum(-1)


def js(p, q):
    middle = ((p.exp() + q.exp()) / 2).log()
    return (kl(p, middle) + kl(q, middle)) / 2


def compared(got, leaves, want, exact, dtype):
    weights = noise(9, ROWS, 1).squeeze(-1)
    pairs = [(got, want)]
    ours = torch.autograd.grad((weights * got).sum(), leaves)
    theirs = torch.autograd.grad((weights * want).sum(), exact)
    for one, other in (*pairs, *zip(ours, theirs, strict=True)):
        assert (one.double() - other).norm() <= CLOSE[dtype] * other.norm()


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("function", "formula"),
    [(fused_kl, kl), (fused_forward_kl, lambda p, q: kl(q, p)), ("jensen_shannon", js)],
)
def test_divergences_of_logits(function, formula, options, dtype):
    """With the gradient by the reference."""
    x, y = ((t / 2).to(dtype) for t in (H @ W.T, RH @ RW.T))
    exact, leaves = ([t.detach().to(d).requires_grad_() for t in (x, y)] for d in (torch.float64, dtype))
    if isinstance(function, str):
        got = fused_f_divergence(function, *leaves, **options)
    else:
        got = function(*leaves, **options)
    compared(got, leaves, formula(*both(*exact, options)), exact, dtype)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_modes(inplace, known):
    options = OPTIONS[3]
    weights = noise(9, ROWS, 1).squeeze(-1).float()
    leaf, y = (H @ W.T).float().requires_grad_(), (RH @ RW.T).float()
    value = fused_kl(leaf * 1, y, inplace=inplace, **options, **({"weights": weights} if known else {}))
    exact = leaf.detach().double().requires_grad_()
    want = kl(*both(exact, y.double(), options))
    torch.testing.assert_close(value.detach().double(), want.detach(), rtol=1e-5, atol=1e-6)
    (weights * value).sum().backward()
    (weights * want).sum().backward()
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("caps", CAPS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("teacher", ["hidden", "logits"])
@pytest.mark.parametrize("name", ["kl", "forward_kl", "jensen_shannon"])
def test_divergences_of_hidden_states(name, teacher, options, caps):
    options = options | caps
    leaves, exact = ([t.clone().requires_grad_() for t in (H, W, B)] for _ in range(2))
    given = {"ref_hidden": RH, "ref_weight": RW} if teacher == "hidden" else {"ref_logits": RH @ RW.T}
    h, w, b = leaves
    if name == "jensen_shannon":
        got = linear_f_divergence(name, h, w, bias=b, memory=40_000, **given, **options)
    else:
        function = linear_kl if name == "kl" else linear_forward_kl
        got = function(h, w, bias=b, memory=40_000, **given, **options)
    p, q = both(exact[0] @ exact[1].T + exact[2], RH @ RW.T, options)
    want = {"kl": lambda: kl(p, q), "forward_kl": lambda: kl(q, p), "jensen_shannon": lambda: js(p, q)}[
        name
    ]()
    compared(got, leaves, want, exact, torch.float64)


@pytest.mark.parametrize("caps", CAPS[:2], ids=str)
@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
@pytest.mark.parametrize("name", ["logp", "logp_and_entropy", "top_k"])
def test_log_probs_entropies_and_heads(name, options, caps):
    y = (RH @ RW.T).log_softmax(-1)
    shipped = y.gather(-1, HEAD), y.gather(-1, TOKENS[:, None]).squeeze(-1)
    h, w, *exact = (t.clone().requires_grad_() for t in (H, W, H, W))
    scale, temperature = options["logit_scale"], options.get("temperature", 1.0)
    p = logp_of(exact[0] @ exact[1].T, scale, caps.get("soft_cap"), temperature)
    logp = p.gather(-1, TOKENS[:, None]).squeeze(-1)
    x, arguments = h @ w.T, (TOKENS,)
    fused, linear = {
        "logp": (fused_logp, linear_logp),
        "logp_and_entropy": (fused_logp_and_entropy, linear_logp_and_entropy),
        "top_k": (fused_top_k_f_divergence, linear_top_k_f_divergence),
    }[name]
    if (
        name == "top_k"
    ):  # of forward KL: Q log Q/P on the head, and of the token outside it K3 with P and Q swapped
        head, u = p.gather(-1, HEAD), shipped[1] - logp
        exactly = (shipped[0].exp() * (shipped[0] - head) + head.exp() - shipped[0].exp()).sum(-1)
        sampled = u.exp() * u - u.exp() + 1  # f(t) of the sampled token, t = P/Q, times Q/P
        value = exactly + sampled.where((TOKENS[:, None] != HEAD).all(-1), 0.0)
        got = linear("forward_kl", h, w, TOKENS, HEAD, *shipped, **options, **caps)
        torch.testing.assert_close(got.detach(), value.detach())
        if not caps:
            got = fused("forward_kl", x, TOKENS, HEAD, *shipped, **options)
            torch.testing.assert_close(got.detach(), value.detach())
        return
    want = logp if name == "logp" else logp - (p.exp() * p).sum(-1)
    got = linear(h, w, *arguments, **options, **caps)
    compared(got if name == "logp" else sum(got), [h, w], want, exact, torch.float64)
    if not caps:
        got = fused(x, *arguments, **options)
        torch.testing.assert_close(got if name == "logp" else sum(got), want)


def test_masked_tokens_are_scaled_too():
    x, y = (H @ W.T)[:, :9].clone(), (RH @ RW.T)[:, :9].clone()
    x[:, 4] = y[:, 4] = -INF
    got = fused_kl(x, y, **OPTIONS[3])
    columns = [0, 1, 2, 3, 5, 6, 7, 8]
    torch.testing.assert_close(got, kl(*both(x[:, columns], y[:, columns], OPTIONS[3])))
