"""`weights=` announces the loss: its gradient is right or refused, on every device and in every dtype."""

from __future__ import annotations

import pytest
import torch

from kl_companion.kernels import (
    autograd,
    fused_f_divergence,
    fused_kl,
    fused_logp,
    linear_f_divergence,
    linear_kl,
    linear_logp,
)
from tests.support.fused_cases import noise

ROWS, WIDTH, VOCAB = 6, 4, 9
HIDDEN, WEIGHT, REF = noise(1, ROWS, WIDTH), noise(2, VOCAB, WIDTH), noise(3, ROWS, VOCAB)
TOKENS = torch.arange(ROWS)


def logits(h, w):
    return h @ w.T


FUNCTIONS = {
    "fused_kl": lambda h, w, **o: fused_kl(logits(h, w), REF.to(h.dtype), **o),
    "fused_js": lambda h, w, **o: fused_f_divergence("jensen_shannon", logits(h, w), REF.to(h.dtype), **o),
    "fused_logp": lambda h, w, **o: fused_logp(logits(h, w), TOKENS, **o),
    "linear_kl": lambda h, w, **o: linear_kl(h, w, ref_logits=REF.to(h.dtype), **o),
    "linear_hellinger": lambda h, w, **o: linear_f_divergence(
        "squared_hellinger", h, w, ref_logits=REF.to(h.dtype), **o
    ),
    "linear_logp": lambda h, w, **o: linear_logp(h, w, TOKENS, **o),
}
# value of every row in plain torch, differentiated by autograd
PLAIN = {
    "kl": lambda p, q: (p.exp() * (p - q)).sum(-1),
    "js": lambda p, q: (
        (p.exp() * (p - (p.exp() + q.exp()).log()) + q.exp() * (q - (p.exp() + q.exp()).log())).sum(-1) / 2
    ),
    "hellinger": lambda p, q: 1 - ((p + q) / 2).exp().sum(-1),
    "logp": lambda p, q: p[torch.arange(ROWS), TOKENS],
}
LOSSES = {
    "announced": lambda v, w: (w * v).sum(),
    "its multiple": lambda v, w: -3 * (w * v).sum(),
    "one row": lambda v, w: v[0],
    "all rows": lambda v, w: v.sum(),
    "another": lambda v, w: (w.flip(0) * v).sum() + v[1],
}


def slopes(function, loss, weights, trained, dtype=torch.float64):
    leaves = [x.to(dtype).requires_grad_(name in trained) for name, x in (("h", HIDDEN), ("w", WEIGHT))]
    total = loss(function(*leaves), weights)
    return torch.autograd.grad(total, [x for x in leaves if x.requires_grad])


@pytest.mark.parametrize("waited_for", [True, False])
@pytest.mark.parametrize("trained", ["h", "hw"])
@pytest.mark.parametrize("loss", list(LOSSES))
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_the_gradient_is_that_of_the_loss_or_refused(name, loss, trained, waited_for, monkeypatch):
    """A device that is not waited for is emulated: nothing there may be read while the loss is computed."""
    monkeypatch.setattr(autograd, "may_look", lambda x: waited_for)
    plain = PLAIN[name.split("_")[1]]
    for weights in (torch.full((ROWS,), 1 / 6).double(), torch.tensor([0.5, 0, 2, -1, 1e-3, 1]).double()):

        def of_rows(h, w, plain=plain):
            return plain(logits(h, w).log_softmax(-1), REF.log_softmax(-1))

        want = slopes(of_rows, LOSSES[loss], weights, trained)

        def ours(h, w, weights=weights):
            return FUNCTIONS[name](h, w, weights=weights)

        try:
            got = slopes(ours, LOSSES[loss], weights, trained)
        except ValueError:
            assert loss in ("one row", "all rows", "another")
            continue
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [2.0**16, 2.0**13 / 3])
@pytest.mark.parametrize("name", ["fused", "linear", "linear, frozen", "reference"])
def test_small_weights_and_a_large_scale_of_the_loss(name, scale, dtype):
    """As a scaler of half precision multiplies the loss: float16 has no numbers below 6e-8 between them."""
    rows, vocab, width = 16, 600, 24
    h, w = (noise(4, rows, width) / 2).to(dtype), (noise(5, vocab, width) / 2).to(dtype)
    y = noise(6, rows, vocab).to(dtype)
    x = (h.double() @ w.double().T).to(dtype)
    weights = torch.full((rows,), 2.0**-17 / rows)
    exact = [t.double().requires_grad_() for t in (x, y)]
    ours = [t.clone().requires_grad_() for t in (x, y)]
    if name in ("fused", "reference"):
        value = fused_kl(ours[0], ours[1], weights=weights)
        at = 0 if name == "fused" else 1
        p, q = (t.log_softmax(-1) for t in exact)
    else:
        states, layer = h.clone().requires_grad_(), w.clone().requires_grad_(name == "linear")
        value = linear_kl(states, layer, ref_logits=y, weights=weights)
        wide = [t.double().requires_grad_() for t in (h, w)]
        p, q = (wide[0] @ wide[1].T).log_softmax(-1), y.double().log_softmax(-1)
        ours, exact, at = [states], wide, 0
    (scale * (weights * value).sum()).backward()
    (scale * (weights.double() * (p.exp() * (p - q)).sum(-1)).sum()).backward()
    got, want = ours[at].grad.double(), exact[at].grad
    rounding = {torch.float16: 2.0**-9, torch.bfloat16: 2.0**-7}[dtype]
    small = 2.0**-24 if dtype == torch.float16 else 0.0
    largest = want.abs().amax(-1, keepdim=True)
    assert ((got - want).abs() <= rounding * want.abs() + 1e-2 * rounding * largest + small).all()
    assert want.abs().max() > 2.0**-20


def test_gradients_in_place_may_not_overwrite_a_parameter():
    parameter = torch.nn.Parameter(REF.float())
    before = parameter.detach().clone()
    views = {"a leaf": parameter, "a view of a leaf": parameter[1:4], "a view of": parameter.view(-1, 3)}
    for says, x in views.items():
        options = {"weights": torch.ones(x.shape[:-1])}
        for more in ({}, options):
            with pytest.raises(ValueError, match=f"inplace=True got logits that are {says}"):
                fused_kl(x, torch.zeros_like(x.detach()), inplace=True, **more)
        with pytest.raises(ValueError, match=f"inplace=True got logits that are {says}"):
            fused_logp(x, torch.zeros(len(x), dtype=torch.int64), inplace=True)
        with torch.no_grad():  # no gradient, nothing is written
            fused_kl(x, torch.zeros_like(x), inplace=True)
    assert torch.equal(parameter.detach(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autograd_notices_that_logits_are_gone(dtype):
    """Whatever saved them for its own backward pass, before or after the kernel in the graph."""
    leaf = noise(7, 4, 12).to(dtype).requires_grad_()
    x = leaf * 1.0
    square, version = x.square(), x._version
    value = fused_kl(x, torch.zeros(4, 12), inplace=True)
    value.sum().backward(retain_graph=True)
    assert x._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
