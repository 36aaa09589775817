"""Exact divergences over a vocabulary: by hand, against explicit sums, and at the edges of the simplex."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion import audit
from kl_companion.divergences import DIVERGENCES, T, get_divergence, make_divergence
from kl_companion.estimators import get_estimator
from kl_companion.estimators.vocabulary import exact_forward_kl, exact_kl, f_divergence, far_entries
from tests.oracles import worlds
from tests.oracles.numeric import finite_difference, gradient

QUICK = settings(max_examples=40)
NAMES = list(DIVERGENCES)
INF = float("inf")
L2 = math.log(2)
ROOT = math.sqrt(0.5)


def log_of(*p):
    return torch.tensor(p, dtype=torch.float64).log()


# By hand: P = (3/4, 1/4) against Q = (1/2, 1/2); then P = (1, 0) against Q = (1/2, 1/2), where the reference
# has mass and the policy none; then P = (1/2, 1/2) against Q = (1, 0). None where the sum is infinite.
BY_HAND = {
    "reverse_kl": (0.75 * math.log(1.5) - 0.25 * L2, L2, None),
    "forward_kl": (0.5 * math.log(4 / 3), None, L2),
    "jensen_shannon": (
        (0.75 * math.log(6 / 5) + 0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 5) + 0.5 * math.log(4 / 3)) / 2,
        (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * L2) / 2,
        (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * L2) / 2,
    ),
    "squared_hellinger": (1 - math.sqrt(3 / 8) - math.sqrt(1 / 8), 1 - ROOT, 1 - ROOT),
    "pearson": (2 * (1 / 16) / 0.5, 2 * 0.25 / 0.5, None),
    "neyman": ((1 / 16) / 0.75 + (1 / 16) / 0.25, None, 2 * 0.25 / 0.5),
    "total_variation": (0.25, 0.5, 0.5),
    "amari_alpha(0.5)": (
        16 / 3 * (1 - 0.75**0.75 * 0.5**0.25 - 0.25**0.75 * 0.5**0.25),
        16 / 3 * (1 - 0.5**0.25),
        16 / 3 * (1 - 0.5**0.75),
    ),
    "power_divergence(1.5)": (
        4 / 3 * (0.75**1.5 * 2**0.5 + 0.25**1.5 * 2**0.5 - 1),
        4 / 3 * (2**0.5 - 1),
        None,
    ),
}


def softmax_pair(seed, *shape, scale=2.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, *shape, generator=generator, dtype=torch.float64) * scale
    return a.to(dtype), b.to(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_explicit_sum(name):
    logits, ref_logits = softmax_pair(1, 5)

    def ours(x):
        return f_divergence(name, x.log_softmax(-1), ref_logits.log_softmax(-1))

    def explicit(x):
        p, q = torch.exp(worlds.log_probs(x)), torch.exp(worlds.log_probs(ref_logits))
        return worlds.divergence(name, list(p), list(q))

    torch.testing.assert_close(ours(logits), explicit(logits), rtol=1e-11, atol=0)
    got = gradient(ours, logits)
    torch.testing.assert_close(got, gradient(explicit, logits), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(got, finite_difference(explicit, logits), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_gradient_with_respect_to_the_reference(name):
    logits, ref_logits = softmax_pair(2, 4)

    def explicit(x):
        p, q = torch.exp(worlds.log_probs(logits)), torch.exp(worlds.log_probs(x))
        return worlds.divergence(name, list(p), list(q))

    got = gradient(lambda x: f_divergence(name, logits.log_softmax(-1), x.log_softmax(-1)), ref_logits)
    torch.testing.assert_close(got, gradient(explicit, ref_logits), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_token_masked_on_both_sides_is_a_token_deleted(name):
    logits, ref_logits = softmax_pair(3, 2, 4)
    wide, wide_ref = (
        torch.cat([x[:, :2], torch.full((2, 1), -INF).double(), x[:, 2:]], dim=-1)
        for x in (logits, ref_logits)
    )

    def ours(x, ref):
        return f_divergence(name, x.log_softmax(-1), ref.log_softmax(-1))

    torch.testing.assert_close(ours(wide, wide_ref), ours(logits, ref_logits), rtol=1e-12, atol=0)
    got = gradient(lambda x: ours(x, wide_ref).sum(), wide)
    assert got.isfinite().all()
    assert got[:, 2].tolist() == [0.0, 0.0]
    wanted = gradient(lambda x: ours(x, ref_logits).sum(), logits)
    torch.testing.assert_close(got[:, [0, 1, 3, 4]], wanted, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("lost", ["policy", "reference"])
@pytest.mark.parametrize("name", list(BY_HAND))
def test_a_token_that_one_side_has_lost(name, lost):
    sure, fair = log_of(1.0, 0.0), log_of(0.5, 0.5)
    p, q = (sure, fair) if lost == "policy" else (fair, sure)
    wanted = BY_HAND[name][1 if lost == "policy" else 2]
    if wanted is None:
        other = (
            "reference has probability where the policy"
            if lost == "policy"
            else ("policy has probability where the reference")
        )
        with pytest.raises(ValueError, match=re.escape(f"{name} is infinite at [1]: the {other} has none")):
            f_divergence(name, p, q, validate=True)
        x = p.clone().requires_grad_()
        value = f_divergence(name, x, q)
        assert value.item() == INF
        assert torch.autograd.grad(value, x)[0].isfinite().all()
        return
    for dtype in (torch.float64, torch.float32):
        x, y = p.to(dtype).requires_grad_(), q.to(dtype).requires_grad_()
        value = f_divergence(name, x, y)
        assert value.item() == pytest.approx(wanted, rel=1e-12 if dtype == torch.float64 else 1e-5)
        for grad in torch.autograd.grad(value, (x, y)):
            assert grad.isfinite().all()


@pytest.mark.parametrize("name", [n for n, numbers in BY_HAND.items() if numbers[1] is not None])
def test_gradient_through_logits_where_the_policy_has_lost_a_token(name):
    logits = torch.tensor([0.3, -INF, 1.0], dtype=torch.float64)
    ref_logits = torch.tensor([0.1, 0.2, -0.4], dtype=torch.float64)

    def explicit(x):  # the two tokens that are left, and a constant for the third
        p, q = torch.exp(worlds.log_probs(x)), torch.exp(worlds.log_probs(ref_logits))
        return worlds.divergence(name, [p[0], p[1]], [q[0], q[2]])

    got = gradient(lambda x: f_divergence(name, x.log_softmax(-1), ref_logits.log_softmax(-1)), logits)
    wanted = gradient(explicit, logits[[0, 2]])
    assert got[1].item() == 0.0
    torch.testing.assert_close(got[[0, 2]], wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_the_last_axis_is_summed(shape):
    logits, ref_logits = softmax_pair(6, *shape, 4)
    p, q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    out = f_divergence("pearson", p, q)
    assert out.shape == shape
    flat = [f_divergence("pearson", a, b) for a, b in zip(p.reshape(-1, 4), q.reshape(-1, 4), strict=True)]
    torch.testing.assert_close(out.reshape(-1), torch.stack(flat), rtol=1e-12, atol=0)


def test_the_two_registered_kls():
    p, q = log_of(0.75, 0.25), log_of(0.5, 0.5)
    assert exact_kl(p, q).item() == pytest.approx(BY_HAND["reverse_kl"][0], rel=1e-12)
    assert exact_forward_kl(p, q).item() == pytest.approx(BY_HAND["forward_kl"][0], rel=1e-12)
    assert exact_kl(q, p).item() == pytest.approx(BY_HAND["forward_kl"][0], rel=1e-12)
    for function, target in ((exact_kl, "reverse_kl"), (exact_forward_kl, "forward_kl")):
        entry = get_estimator(function.__name__)
        assert (entry.fn, entry.target, entry.inputs) == (function, target, "vocab")


@pytest.mark.parametrize("name", list(BY_HAND))
def test_every_divergence_is_an_exact_estimator_by_name(name):
    entry = get_estimator(f"f_divergence({name})")
    assert (entry.name, entry.target, entry.inputs) == (f"f_divergence({name})", name, "vocab")
    found = entry.fn(log_of(0.75, 0.25), log_of(0.5, 0.5))
    assert found.item() == pytest.approx(BY_HAND[name][0], rel=1e-12)


def test_an_exact_estimator_descends_its_divergence():
    assert audit("f_divergence(pearson)", scale=1.0, off_policy=False).matches == {"token_pearson": 1.0}


def test_divergence_objects_are_welcome():
    cubic = make_divergence("cubic", (T - 1) ** 2 * (T + 2), source="test")  # t^3 - 3t + 2
    got = f_divergence(cubic, log_of(0.75, 0.25), log_of(0.5, 0.5)).item()
    assert got == pytest.approx(0.5 * (1.5**3 - 4.5 + 2) + 0.5 * (0.5**3 - 1.5 + 2), rel=1e-12)


rows = st.lists(st.floats(-6, 6), min_size=4, max_size=4)


@QUICK
@given(st.sampled_from([("reverse_kl", "forward_kl"), ("pearson", "neyman")]), rows, rows)
def test_exchanging_the_arguments_is_the_dual(pair, a, b):
    p, q = (torch.tensor(x, dtype=torch.float64).log_softmax(-1) for x in (a, b))
    one, other = f_divergence(pair[0], p, q).item(), f_divergence(pair[1], q, p).item()
    assert one == pytest.approx(other, rel=1e-10, abs=1e-15)


@pytest.mark.parametrize(
    ("divergence", "entry"),
    [
        ("reverse_kl", lambda p, q, u: p * u - p + q),
        ("forward_kl", lambda p, q, u: -q * u + p - q),
        ("pearson", lambda p, q, u: (p - q) ** 2 / q),
    ],
)
def test_entries_far_apart_by_hand(divergence, entry):
    d = get_divergence(divergence)
    for log_p, log_q in ((-30.0, -1.0), (-1.0, -30.0), (-2.0, -9.0)):
        got = far_entries(d, torch.tensor([log_p]).double(), torch.tensor([log_q]).double()).item()
        wanted = entry(math.exp(log_p), math.exp(log_q), log_p - log_q)
        assert got == pytest.approx(wanted, rel=1e-12)
