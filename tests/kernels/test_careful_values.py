"""What is not finite comes out per row, as in torch; `validate=True` refuses it with its place."""

from __future__ import annotations

import pytest
import torch

from kl_companion.kernels import (
    fused_f_divergence,
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_top_k_f_divergence,
    linear_forward_kl,
    linear_kl,
    linear_logp,
    linear_top_k_f_divergence,
)
from tests.support.fused_cases import INF, noise

NAN = float("nan")
X, Y, TOKENS = noise(1, 6, 8).float(), noise(2, 6, 8).float(), torch.arange(6)
X[1, 3], X[2, 0], X[3], X[4, 7] = NAN, INF, -INF, -INF
Y[5, 2] = -INF
EYE = torch.eye(8)
TOKENS[4] = 7


def through_a_layer(function):
    """The same logits from hidden states: as a bias, because infinities would become NaN in a product."""
    return lambda x, *rest, **o: torch.stack(
        [
            function(torch.zeros(1, 8), EYE, *(t[i : i + 1] for t in rest), bias=row, **o).squeeze(0)
            for i, row in enumerate(x)
        ]
    )


def plain_kl(x, y):
    p, q = x.double().log_softmax(-1), y.double().log_softmax(-1)
    return (p.exp() * (p - q).masked_fill(p.isneginf(), 0.0)).sum(-1)


def plain_logp(x, tokens):
    return x.double().log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


CASES = {
    "fused_kl": (fused_kl, plain_kl, Y),
    "fused_forward_kl": (fused_forward_kl, lambda x, y: plain_kl(y, x), Y),
    "linear_kl": (through_a_layer(lambda h, w, y, **o: linear_kl(h, w, ref_logits=y, **o)), plain_kl, Y),
    "linear_forward_kl": (
        through_a_layer(lambda h, w, y, **o: linear_forward_kl(h, w, ref_logits=y, **o)),
        lambda x, y: plain_kl(y, x),
        Y,
    ),
    "fused_logp": (fused_logp, plain_logp, TOKENS),
    "linear_logp": (through_a_layer(linear_logp), plain_logp, TOKENS),
}


@pytest.mark.parametrize("name", list(CASES))
def test_rows_as_torch_has_them(name):
    """Rows with NaN, +inf or no token are NaN, an infinite divergence inf, a masked token -inf."""
    function, plain, other = CASES[name]
    want = plain(X, other)
    assert not want.isfinite().all()
    torch.testing.assert_close(function(X, other).double(), want, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", list(CASES))
def test_gradients_of_the_other_rows_are_those_of_torch(name):
    function, plain, other = CASES[name]
    leaf, exact = X.clone().requires_grad_(), X.double().requires_grad_()
    good = plain(X, other).isfinite()
    (got,) = torch.autograd.grad(function(leaf, other)[good].sum(), leaf)
    wanted = torch.autograd.grad(plain(exact[good], other[good]).sum(), exact)[0]
    torch.testing.assert_close(got[good].double(), wanted[good].nan_to_num(), rtol=1e-4, atol=1e-6)
    (got,) = torch.autograd.grad(function(leaf, other).sum(), leaf)
    torch.testing.assert_close(got[good].double(), wanted[good].nan_to_num(), rtol=1e-4, atol=1e-6)


PLACES = {
    ("fused_kl", 1): r"^logits is NaN at \[1\]",
    ("fused_kl", 2): r"^logits is \+inf at \[2\]",
    ("fused_kl", 3): r"^logits is -inf for every token at \[3\]",
    ("fused_kl", 5): r"^reverse_kl is infinite at \[5, 2\]",
    ("fused_forward_kl", 4): r"^forward_kl is infinite at \[4, 7\]",
    ("fused_logp", 4): r"the token at \[4\] of tokens is masked",
    ("fused_logp", 1): r"^logits is NaN at \[1\]",
    ("linear_kl", 5): r"^reverse_kl is infinite at \[0, 2\]",
    ("linear_logp", 4): r"the token at \[0\] of tokens is masked",
    ("linear_forward_kl", 2): r"^logits is \+inf at \[0\]",
}


@pytest.mark.parametrize(("name", "row"), list(PLACES))
def test_values_are_refused_by_place_where_they_are_validated(name, row):
    function, plain, other = CASES[name]
    x, y = X.clone(), other.clone()
    bad = ~plain(X, other).isfinite()
    bad[row] = False
    x[bad], y[bad] = x[0].clone(), y[0].clone()
    with pytest.raises(ValueError, match=PLACES[name, row]):
        function(x, y, validate=True)
    mask = torch.arange(6) != row
    if name.startswith("fused"):
        assert function(x, y, validate=True, mask=mask).isfinite().all()


def test_validated_gradients_are_the_same():
    x, y, weights = X[:1].repeat(3, 1), Y[:3], torch.tensor([0.5, -1.0, 2.0])
    results = []
    for options in (
        {},
        {"validate": True},
        {"validate": True, "weights": weights},
        {"validate": True, "inplace": True},
    ):
        leaf = x.clone().requires_grad_()
        (fused_kl(leaf * 1, y, **options) * weights).sum().backward()
        results.append(leaf.grad)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_an_id_that_no_logit_has():
    hidden, layer = noise(4, 2, 3), noise(5, 7, 3)
    value = linear_logp(hidden, layer, torch.tensor([9, 3]))
    assert value.isnan().tolist() == [True, False]


@pytest.mark.parametrize("trained", [False, True])
def test_a_batch_without_numbers_is_not_worked_on_row_by_row(trained, monkeypatch):
    """As when training has diverged: every row would make all of its logits again."""
    from kl_companion.kernels import linear_walks

    monkeypatch.setattr(linear_walks.Chunk, "row", None)
    hidden, layer = torch.full((5, 3), NAN), noise(6, 7, 3).float().requires_grad_(trained)
    value = linear_kl(hidden.requires_grad_(), layer, ref_logits=torch.zeros(5, 7))
    assert value.isnan().all()
    value.sum().backward()
    assert hidden.grad.isnan().all()


# ---- tensors of other kinds --------------------------------------------------------------------------


def functions_of_a_teacher():
    x, y = noise(7, 3, 8), noise(8, 3, 8)
    head = torch.tensor([0, 3]).expand(3, 2)
    logp = y.log_softmax(-1)
    tokens = torch.tensor([1, 3, 5])
    shipped = logp.gather(-1, head), logp.gather(-1, tokens[:, None]).squeeze(-1)
    weights, layer = torch.rand(3), torch.eye(8).double()
    return x, {
        "kl": (lambda x, y: fused_kl(x, y), (y,)),
        "js": (lambda x, y: fused_f_divergence("jensen_shannon", x, y), (y,)),
        "weights": (lambda x, y, w: fused_kl(x, y, weights=w) * w.clone(), (y, weights)),
        "mask": (lambda x, y, w: fused_kl(x, y, mask=w), (y, weights > 0.3)),
        "logp": (lambda x, t: fused_logp(x, t), (tokens,)),
        "top k": (
            lambda x, *rest: fused_top_k_f_divergence("reverse_kl", x, *rest[:4], tail_weight=rest[4]),
            (tokens, head, *shipped, weights),
        ),
        "linear": (lambda x, w, y: linear_kl(x, w, ref_logits=y), (layer, y)),
        "linear, hidden": (lambda x, w, h, v: linear_kl(x, w, ref_hidden=h, ref_weight=v), (layer, y, layer)),
        "linear logp": (lambda x, w, t: linear_logp(x, w, t), (layer, tokens)),
        "linear top k": (
            lambda x, w, *rest: linear_top_k_f_divergence("pearson", x, w, *rest),
            (layer, tokens, head, *shipped),
        ),
    }


@pytest.mark.parametrize("name", list(functions_of_a_teacher()[1]))
def test_tensors_of_inference_mode(name):
    """As teachers under `torch.inference_mode` return them; also the policy's, without a gradient."""
    x, functions = functions_of_a_teacher()
    function, rest = functions[name]
    leaf = x.clone().requires_grad_()
    want = function(leaf, *rest)
    (slope,) = torch.autograd.grad(want.sum(), leaf)
    with torch.inference_mode():
        rest = [t.clone() for t in rest]
        silent = x.clone()
    assert all(t.is_inference() for t in rest)
    got = function(leaf, *rest)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), leaf)[0], slope)
    torch.testing.assert_close(function(silent, *rest), want.detach())
    with torch.inference_mode():
        torch.testing.assert_close(function(silent, *rest), want.detach())


def test_a_layer_is_trained_on_hidden_states_of_inference_mode():
    with torch.inference_mode():
        hidden = noise(9, 4, 5)
    layer = noise(10, 6, 5).requires_grad_()
    linear_kl(hidden, layer, ref_logits=torch.zeros(4, 6).double()).sum().backward()
    exact = layer.detach().clone().requires_grad_()
    p = (hidden.clone() @ exact.T).log_softmax(-1)
    (p.exp() * p).sum().backward()
    torch.testing.assert_close(layer.grad, exact.grad)


def test_errors_are_about_the_function_that_is_called():
    with pytest.raises(TypeError, match=r"linear_kl\(\) got an unexpected keyword argument 'ref_logit'"):
        linear_kl(torch.zeros(3, 4), torch.zeros(5, 4), ref_logit=torch.zeros(3, 5))
    with pytest.raises(TypeError, match=r"linear_forward_kl\(\) .* 'softcap'"):
        linear_forward_kl(torch.zeros(3, 4), torch.zeros(5, 4), softcap=3.0)
