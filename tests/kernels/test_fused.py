"""Exact divergences from raw logits, block by block, against float64 sums that autograd differentiates."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.divergences import get_divergence
from kl_companion.kernels import blocks
from kl_companion.kernels.fused import fused_f_divergence, fused_forward_kl, fused_kl
from tests.oracles import fused as oracle
from tests.oracles.numeric import finite_difference
from tests.support.fused_cases import (
    INF,
    MODES,
    NAMES,
    WITHOUT_POLICY,
    WITHOUT_REFERENCE,
    cases,
    gradient_error,
    logits_pair,
    noise,
    run,
    value_error,
)

SEARCH = settings(max_examples=40)
KLS = ("reverse_kl", "forward_kl")


def expected(name, x, y, weights=None, **options):
    """(value, gradient by the logits, gradient by the reference's) of the oracle."""
    a, b = oracle.leaf(x), oracle.leaf(y)
    value = oracle.divergence(name, a, b, **options)
    return value, *oracle.gradients(value, (a, b), weights)


def errors(name, x, y, *, mode="safe", weights=None, scale=1.0, **options):
    """Value's and gradient's errors as multiples of what is allowed."""
    value, gradient = run(
        fused_f_divergence_of(name), x, y, mode=mode, weights=weights, scale=scale, **options
    )
    want, want_gradient, _ = expected(name, x, y, weights, **options)
    # where all tokens have nearly the same f'(t), what tells them apart is lost in its rounding
    terms = 0.0 if weights is None else (scale * weights * want.detach().clamp(max=1.0)).abs()
    return (
        value_error(value, want, x.dtype),
        gradient_error(gradient, scale * want_gradient, x.dtype, want, terms),
    )


def fused_f_divergence_of(name):
    return lambda x, y, **options: fused_f_divergence(name, x, y, **options)


@SEARCH
@given(cases(names=NAMES), st.sampled_from(MODES), st.sampled_from([1.0, -0.25, 3.0]))
def test_every_divergence_in_every_mode(named, mode, scale):
    name, case = named
    got = errors(
        name,
        case.logits,
        case.ref_logits,
        mode=mode,
        weights=case.weights,
        scale=scale,
        temperature=case.temperature,
    )
    assert max(got) <= 1, got


@SEARCH
@given(cases(masks=("policy",), names=WITHOUT_POLICY), st.sampled_from(MODES))
def test_tokens_that_only_the_reference_can_draw(named, mode):
    name, case = named
    options = {"mode": mode, "weights": case.weights, "temperature": case.temperature}
    got = errors(name, case.logits, case.ref_logits, **options)
    assert max(got) <= 1, got


@SEARCH
@given(cases(masks=("reference",), names=WITHOUT_REFERENCE), st.sampled_from(MODES))
def test_tokens_that_only_the_policy_can_draw(named, mode):
    name, case = named
    options = {"mode": mode, "weights": case.weights, "temperature": case.temperature}
    got = errors(name, case.logits, case.ref_logits, **options)
    assert max(got) <= 1, got


@settings(SEARCH, max_examples=30)
@given(cases(masks=("none", "both", "policy"), names=WITHOUT_POLICY), st.sampled_from(MODES))
def test_the_reference_has_a_gradient_too(named, mode):
    name, case = named
    y = case.ref_logits.clone().requires_grad_()
    before = y.detach().clone()
    given_weights = {"weights": case.weights} if mode in ("weights", "fused") else {}
    inplace = mode in ("inplace", "fused")
    made = (case.logits.clone().requires_grad_() * 1) if inplace else case.logits.clone().requires_grad_()
    value = fused_f_divergence(name, made, y, inplace=inplace, **given_weights)
    (gradient,) = torch.autograd.grad((case.weights * value).sum(), y)
    _, _, want = expected(name, case.logits, case.ref_logits, case.weights)
    assert gradient_error(gradient, want, y.dtype) <= 1
    assert torch.equal(y.detach(), before)  # never in place of the reference


@pytest.mark.parametrize("gap", [1e-3, 1e-2])
@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_policies_next_to_each_other(name, gap, offset):
    """float32: the error is relative to the value itself, which is of the order of gap squared."""
    for vocab in (7, 3000):
        x, y = logits_pair(1, 5, vocab, gap=gap, offset=offset)
        got = errors(name, x, y)
        assert max(got) <= 1, (vocab, got)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_equal_policies_have_no_divergence_and_no_gradient(name, mode):
    for mask in ("none", "both"):
        x, _ = logits_pair(2, 4, 501, scale=5.0, offset=1e4, mask=mask)
        value, gradient = run(fused_f_divergence_of(name), x, x.clone(), mode=mode, weights=torch.ones(4))
        assert torch.equal(value, torch.zeros(4))
        assert torch.equal(gradient, torch.zeros_like(x))


@pytest.mark.parametrize("name", NAMES)
def test_an_offset_of_whole_rows_changes_nothing(name):
    x, y = logits_pair(3, 4, 50)
    x, y = x.mul(256).round() / 256, y.mul(256).round() / 256  # so that adding 1024 is exact
    value, gradient = run(fused_f_divergence_of(name), x, y)
    shifted = run(fused_f_divergence_of(name), x + 1024, y - 512)
    assert value_error(shifted[0], value.double(), x.dtype) <= 2
    assert gradient_error(shifted[1], gradient.double(), x.dtype) <= 2


def one_hot(token, height, vocab=40, seed=4):
    x = noise(seed, vocab)
    x[token] = x.max() + height
    return x.float()


@pytest.mark.parametrize("height", [5.0, 12.0, 17.0, 30.0, 80.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
def test_rows_in_which_one_token_has_nearly_everything(name, height):
    same = one_hot(3, height), one_hot(3, height / 2 + 1, seed=5)
    other = one_hot(3, height), one_hot(8, height, seed=5)
    plain = one_hot(3, height), noise(6, 40).float()
    if (name, height) == ("neyman", 1e4):
        same = other  # Q^2/P with both beyond the smallest number of float64, and yet finite
    for x, y in (same, other, plain, plain[::-1]):
        want, *gradients = expected(name, x, y)
        if not (want.float().isfinite().all() and all(g.float().isfinite().all() for g in gradients)):
            continue  # beyond float32 as a number
        for mode in MODES:
            got = errors(name, x, y, mode=mode, weights=torch.tensor(1.0))
            # e^w is known to w times the rounding of w
            assert max(got) <= 1.2 + math.log1p(want.detach()) / 12, (mode, x[3], y[3], got)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_rows_of_one_token(name, mode):
    x, y = logits_pair(5, 3, 1, offset=100.0)
    value, gradient = run(fused_f_divergence_of(name), x, y, mode=mode, weights=torch.ones(3))
    assert torch.equal(value, torch.zeros(3))
    assert torch.equal(gradient, torch.zeros(3, 1))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (0, 2, 5)])
@pytest.mark.parametrize("mode", MODES)
def test_no_rows_at_all(shape, mode):
    x = torch.zeros(shape)
    weights = torch.ones(shape[:-1])
    value, gradient = run(fused_kl, x, x.clone(), mode=mode, weights=weights)
    assert value.shape == shape[:-1]
    assert gradient.shape == shape


STRIDED = {
    "without the last position": lambda a: a[:, :-1],
    "leading axes exchanged": lambda a: a.transpose(0, 1),
    "every other position": lambda a: a[:, ::2],
    "part of the vocabulary": lambda a: a[..., 3:20],
    "a row repeated": lambda a: a[:1].expand(4, -1, -1),
    "no leading axis": lambda a: a[1, 2],
    "three leading axes": lambda a: a.view(2, 2, 6, 33).transpose(0, 2),
    "vocabulary not last in memory": lambda a: a.transpose(1, 2),
}


@pytest.mark.parametrize("view", list(STRIDED))
@pytest.mark.parametrize("mode", MODES)
def test_any_strides(view, mode, monkeypatch):
    monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", 270)  # two rows of 33: several blocks
    x, y = (STRIDED[view](a) for a in logits_pair(6, 4, 6, 33))
    weights = noise(7, *x.shape[:-1], 1).squeeze(-1).float()
    if view == "a row repeated":  # the policy's rows are its own: memory to write to
        x = x.contiguous()
    want, want_gradient, _ = expected("reverse_kl", x, y, weights)
    leaf = x.detach().requires_grad_()
    options = {"weights": weights} if mode in ("weights", "fused") else {}
    made = torch.empty_strided(x.size(), x.stride()).copy_(leaf)
    value = fused_kl(made, y, inplace=mode in ("inplace", "fused"), **options)
    (gradient,) = torch.autograd.grad((weights * value).sum(), leaf)
    assert value_error(value, want, x.dtype) <= 1
    assert gradient_error(gradient, want_gradient, x.dtype) <= 1


@pytest.mark.parametrize("name", KLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_vocabulary_of_a_language_model(name, dtype):
    x, y = logits_pair(8, 3, 151_936, gap=0.3, dtype=dtype)
    got = errors(name, x, y, mode="fused", weights=torch.tensor([0.5, -1.0, 0.2]))
    assert max(got) <= 1, got


def test_half_precision_in_and_single_out():
    """The gradient is the float64 gradient of the same inputs, rounded once: the nearest number, mostly."""
    x, y = logits_pair(9, 6, 4000, gap=0.5, dtype=torch.bfloat16)
    value, gradient = run(fused_kl, x, y)
    _, want, _ = expected("reverse_kl", x, y)
    assert value.dtype == torch.float32
    assert gradient.dtype == torch.bfloat16
    assert (gradient == want.bfloat16()).double().mean() > 0.995
    torch.testing.assert_close(gradient.double(), want, rtol=2**-8, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_slopes_by_differences(name, mode):
    x, y = logits_pair(10, 2, 4, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    weights = torch.tensor([0.5, -2.0], dtype=torch.float64)
    inplace, options = mode in ("inplace", "fused"), {}
    if mode in ("weights", "fused"):
        options["weights"] = weights

    def loss(a):
        value = fused_f_divergence(name, a.clone(), y, inplace=inplace, temperature=0.8, **options)
        return (weights * value).sum()

    (slope,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(slope, finite_difference(lambda a: loss(a).detach(), x), rtol=1e-6, atol=1e-8)
    if mode == "safe":  # the others have one gradient per forward pass
        torch.autograd.gradcheck(loss, (leaf,))


def test_the_two_named_ones_and_a_divergence_itself():
    x, y = logits_pair(11, 3, 9)
    for mine, name in ((fused_kl, "reverse_kl"), (fused_forward_kl, "forward_kl")):
        torch.testing.assert_close(mine(x, y), fused_f_divergence(name, x, y), rtol=0, atol=0)
    pearson = get_divergence("pearson")
    torch.testing.assert_close(fused_f_divergence(pearson, x, y), fused_f_divergence("pearson", x, y))
    # by hand: P = (3/4, 1/4), Q = (1/2, 1/2), any offset
    hand = torch.tensor([math.log(3.0) + 5, 5.0]), torch.tensor([-1.0, -1.0])
    assert fused_kl(*hand).item() == pytest.approx(0.75 * math.log(1.5) - 0.25 * math.log(2), rel=1e-6)
    assert fused_forward_kl(*hand).item() == pytest.approx(0.5 * math.log(4 / 3), rel=1e-6)


@pytest.mark.parametrize("name", ["amari_alpha(0.3)", "power_divergence(-0.5)", "amari_alpha(-2)"])
def test_members_of_the_families(name, monkeypatch):
    number = float(name[name.index("(") + 1 : -1])
    family = oracle.amari if name.startswith("amari") else oracle.power
    monkeypatch.setitem(oracle.ENTRY, name, family(number))
    monkeypatch.setitem(oracle.EDGES, name, (oracle.INF, oracle.INF))
    x, y = logits_pair(12, 4, 60, gap=1.0)
    assert max(errors(name, x, y)) <= 1


def test_masked_in_both_is_the_same_as_gone():
    x, y = logits_pair(13, 5, 64)
    gone = noise(14, 64) > 0.3
    kept = ~gone
    value, gradient = run(fused_kl, x.masked_fill(gone, -INF), y.masked_fill(gone, -INF))
    short, short_gradient = run(fused_kl, x[:, kept].contiguous(), y[:, kept].contiguous())
    torch.testing.assert_close(value, short, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient[:, kept], short_gradient, rtol=1e-5, atol=1e-8)
    assert (gradient[:, gone] == 0).all()


def test_a_value_beyond_float32_is_infinite():
    x, y = torch.tensor([0.0, -60.0]), torch.tensor([-95.0, 0.0])  # P^2 / Q is e^95
    assert fused_f_divergence("pearson", x, y) == INF
    with pytest.raises(ValueError, match=r"pearson at \[\] is beyond torch.float32"):
        fused_f_divergence("pearson", x, y, validate=True)
