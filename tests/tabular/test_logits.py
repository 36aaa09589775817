"""Exact moments on raw logits against every draw, enumerated by hand; and what they cost in memory."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.divergences import get_divergence
from kl_companion.estimators import Estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.tabular import logits as module
from kl_companion.tabular.logits import LogitMoments, logit_moments
from tests.oracles import logit_moments as oracle
from tests.support.allocations import Allocations

INF = math.inf
# name: (what the oracle calls it, the divergence that bias is measured against, size of the head)
CASES = {
    **{name: (("sampled", name), "reverse_kl", 0) for name in ("k1", "k2", "k3", "k3_plus_plus", "k4")},
    "k5": (("sampled", "k5"), "forward_kl", 0),
    "exact_kl": (("exact", "reverse_kl"), "reverse_kl", 0),
    "exact_forward_kl": (("exact", "forward_kl"), "forward_kl", 0),
    "f_divergence(jensen_shannon)": (("exact", "jensen_shannon"), "jensen_shannon", 0),
    "kf_plus_plus(pearson)": (("top_k", "pearson"), "pearson", 0),
    "top_k_reverse_kl(2)": (("top_k", "reverse_kl"), "reverse_kl", 2),
    "top_k_f_divergence(jensen_shannon, 1)": (("top_k", "jensen_shannon"), "jensen_shannon", 1),
    "truncated_kl(2)": (("head", "reverse_kl"), "reverse_kl", 2),
}
OFF_POLICY = {"weighted": {}, "unweighted": {"weighted": False}, "clipped": {"clip": (0.7, 1.4)}}


def rows(seed, vocab=4, lead=(), dtype=torch.float64, masked=()):
    """Raw logits of policy, reference and sampler, offset by any number; masked tokens in all of them."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.randn(*lead, vocab, generator=generator, dtype=torch.float64) for _ in range(3)]
    parts = [x + 10.0 * torch.randn(*lead, 1, generator=generator, dtype=torch.float64) for x in parts]
    for x in parts:
        x[..., list(masked)] = -INF
    return [x.to(dtype) for x in parts]


def by_hand(name, parts, n=1, **options):
    case, against, k = CASES[name]
    policy, reference, sampler = (x.double() for x in parts)
    head = oracle.likeliest(policy, k)
    return oracle.moments(
        case, (policy, reference, sampler), n, **{"against": against, "head": head, **options}
    )


def agree(found, wanted, rel=1e-9, abs=1e-13):
    for name, x in wanted.items():
        assert getattr(found, name).item() == pytest.approx(x, rel=rel, abs=abs), name


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["loss", "reward"])
@pytest.mark.parametrize("name", CASES)
def test_moments_against_every_draw(name, placement):
    for seed, temperature in ((0, 1.0), (1, 2.0)):
        parts = rows(seed)
        choices = {"placement": placement, "temperature": temperature}
        for n in (1, 3):
            found = logit_moments(name, *parts[:2], n, **choices)
            agree(found, by_hand(name, (*parts[:2], parts[0]), n, **choices))
        for options in OFF_POLICY.values():
            found = logit_moments(name, *parts[:2], behavior_logits=parts[2], **choices, **options)
            agree(found, by_hand(name, parts, **choices, **options))
        found = logit_moments(name, *parts[:2], clip=(0.2, 0.6), **choices)
        agree(found, by_hand(name, (*parts[:2], parts[0]), clip=(0.2, 0.6), **choices))


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(CASES)),
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 8),
    lead=st.sampled_from([(1,), (3,), (2, 2)]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    placement=st.sampled_from(["loss", "reward"]),
    temperature=st.sampled_from([1.0, 0.5, 3.0]),
    elsewhere=st.booleans(),
    data=st.data(),
)
def test_any_shape_mask_and_dtype(name, seed, vocab, lead, dtype, placement, temperature, elsewhere, data):
    masked = data.draw(st.sets(st.integers(0, vocab - 1), max_size=vocab - 2))
    parts = rows(seed, vocab, lead, dtype, masked)
    # a head is cut from the likeliest: equal logits would leave open which
    x = parts[0].double()
    vocab_left = x[..., [j for j in range(vocab) if j not in masked]].sort(-1).values
    k = CASES[name][2]
    if k and (k > vocab - len(masked) or (vocab_left.diff(dim=-1) == 0).any()):
        return
    options = {"placement": placement, "temperature": temperature}
    sampler = {"behavior_logits": parts[2]} if elsewhere else {}
    found = logit_moments(name, *parts[:2], **options, **sampler)
    assert found.value.shape == lead
    assert {y.dtype for y in found} == {torch.float64}
    flat = [y.reshape(-1, vocab) for y in (*parts[:2], parts[2] if elsewhere else parts[0])]
    for i, each in enumerate(zip(*flat, strict=True)):
        one = LogitMoments(*(y.reshape(-1)[i] for y in found))
        agree(one, by_hand(name, each, **options), rel=1e-8, abs=1e-11)


def test_the_ratios_are_those_of_the_fields():
    found = logit_moments("k3", *rows(3, lead=(2,))[:2], torch.tensor([1, 5]), target="reverse_kl")
    bias, variance = found.gradient_bias, found.gradient_variance
    assert torch.allclose(found.gradient_rmse, (bias.square() + variance).sqrt(), rtol=1e-14)
    assert torch.allclose(found.value_rmse, (found.value_bias.square() + found.value_variance).sqrt())
    assert torch.allclose(found.relative_gradient_bias, bias / found.divergence_gradient_norm, rtol=1e-14)
    assert torch.allclose(found.signal_to_noise, found.gradient_norm / variance.sqrt(), rtol=1e-14)
    assert logit_moments("exact_kl", *rows(3)[:2]).signal_to_noise == INF
    assert found.value.shape == (2, 2)
    assert torch.allclose(variance[:, 0], 5 * variance[:, 1], rtol=1e-14)


@pytest.mark.parametrize("name", ["k3", "exact_kl", "top_k_reverse_kl(2)", "truncated_kl(2)"])
def test_several_sizes_are_those_one_by_one(name):
    x, y, _ = rows(12, 5, (2, 3))
    sizes = torch.tensor([1, 4, 30])
    many = logit_moments(name, x, y, sizes, target="forward_kl")
    for i, n in enumerate(sizes.tolist()):
        one = logit_moments(name, x, y, n, target="forward_kl")
        for a, b in zip(many, one, strict=True):
            torch.testing.assert_close(a[..., i], b, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_read_and_nothing_is_rounded_again(dtype):
    x, y, z = rows(5, 500, (2, 3), dtype)
    for name in ("k3", "exact_kl", "top_k_reverse_kl(8)"):
        found = logit_moments(name, x, y, behavior_logits=z, temperature=0.8)
        wanted = logit_moments(name, x.double(), y.double(), behavior_logits=z.double(), temperature=0.8)
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("name", ["k3", "exact_kl", "top_k_reverse_kl(2)"])
def test_rows_in_any_layout_and_in_blocks_of_any_size(name, monkeypatch):
    x, y, z = rows(6, 7, (3, 5))
    index = torch.stack(
        [torch.randperm(7, generator=torch.Generator().manual_seed(i))[:2] for i in range(15)]
    )
    fn = TopK(get_divergence("pearson"), None, index.reshape(3, 5, 2))
    given = Estimator("given", fn, "pearson", "top_k", "")
    for entry in (name, given):
        whole = logit_moments(entry, x, y, behavior_logits=z)
        for entries in (7, 16, 10**6):
            monkeypatch.setattr(module, "_ENTRIES", {"cpu": entries})
            found = logit_moments(entry, x, y, behavior_logits=z)
            for a, b in zip(found, whole, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
    own = given._replace(fn=TopK(get_divergence("pearson"), None, index[1], "policy", "generic"))
    given = given._replace(
        fn=TopK(get_divergence("pearson"), None, index.reshape(3, 5, 2), "policy", "generic")
    )
    whole = logit_moments(given, x, y)
    for a, b in zip(whole, logit_moments(own, x[0, 1], y[0, 1]), strict=True):
        torch.testing.assert_close(a[0, 1], b, rtol=1e-12, atol=1e-15)
    shifted = logit_moments(name, x[:, :-1], y[:, 1:], behavior_logits=z.mT.contiguous().mT[:, 1:])
    wanted = logit_moments(name, x[:, :-1].clone(), y[:, 1:].clone(), behavior_logits=z[:, 1:].clone())
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-15) for a, b in zip(shifted, wanted, strict=True))


@pytest.mark.parametrize("lead", [(0,), (2, 0), ()])
@pytest.mark.parametrize("n", [2, torch.tensor([1, 2, 3])])
def test_no_token_and_one_token(lead, n):
    x, y, _ = rows(7, 5, lead)
    for name in ("k1", "exact_kl", "top_k_reverse_kl(2)", "truncated_kl(2)"):
        for placement in ("loss", "reward"):
            found = logit_moments(name, x, y, n, placement=placement)
            sizes = () if isinstance(n, int) else (3,)
            assert {t.shape for t in found} == {torch.Size((*lead, *sizes))}


def test_nothing_carries_a_gradient_and_nothing_is_changed():
    parts = [x.requires_grad_() for x in rows(8, 5, (2,))]
    kept = [x.detach().clone() for x in parts]
    found = logit_moments("top_k_reverse_kl(2)", *parts[:2], behavior_logits=parts[2])
    assert not any(x.requires_grad for x in found)
    assert all(torch.equal(a.detach(), b) for a, b in zip(parts, kept, strict=True))


# rows that a language model really has


@pytest.mark.parametrize("gap", [5.0, 30.0, 60.0])
def test_a_row_that_is_nearly_certain_keeps_its_digits(gap):
    """Against sixty digits: 1 - p is far below the rounding of p, and everything is made of it."""
    logits, ref_logits = [7.0, 7.0 - gap, 6.0 - gap], [-3.0, -2.5 - gap, -5.0 - gap]
    with mpmath.workdps(60):
        p, q = ([mpmath.exp(x) / sum(map(mpmath.exp, row)) for x in row] for row in (logits, ref_logits))
        u = [mpmath.log(a / b) for a, b in zip(p, q, strict=True)]
        kl = sum(a * x for a, x in zip(p, u, strict=True))
        exact = [a * (x - kl) for a, x in zip(p, u, strict=True)]
        for name, c in (("k1", [1, 1, 1]), ("k2", u), ("k3", [1 - mpmath.exp(-x) for x in u])):
            mean = sum(a * x for a, x in zip(p, c, strict=True))
            slope = [a * (x - mean) for a, x in zip(p, c, strict=True)]
            pulls = [[c[y] * ((y == j) - p[j]) for j in range(3)] for y in range(3)]
            spread = sum(p[y] * (pulls[y][j] - slope[j]) ** 2 for y in range(3) for j in range(3))
            bias = mpmath.sqrt(sum((a - b) ** 2 for a, b in zip(slope, exact, strict=True)))
            found = logit_moments(name, *(torch.tensor(x, dtype=torch.float64) for x in (logits, ref_logits)))
            assert found.divergence.item() == pytest.approx(float(kl), rel=1e-11)
            size = float(mpmath.sqrt(sum(x**2 for x in exact)))
            assert found.divergence_gradient_norm.item() == pytest.approx(size, rel=1e-11)
            assert found.gradient_variance.item() == pytest.approx(float(spread), rel=1e-11)
            assert found.gradient_bias.item() == pytest.approx(float(bias), rel=1e-11, abs=size * 1e-13)


@pytest.mark.parametrize("name", ["k1", "k3", "exact_kl", "top_k_reverse_kl(1)", "f_divergence(pearson)"])
def test_policies_that_are_far_apart(name):
    """Beyond the log-ratios where the generators are taken as they stand."""
    policy = torch.tensor([1.0, -24.0, 3.0], dtype=torch.float64)
    reference = torch.tensor([-1.0, 2.0, 0.0], dtype=torch.float64)
    case = {**CASES, "top_k_reverse_kl(1)": (("top_k", "reverse_kl"), "reverse_kl", 1)}
    case["f_divergence(pearson)"] = (("exact", "pearson"), "pearson", 0)
    what, against, k = case[name]
    wanted = oracle.moments(
        what, (policy, reference, policy), 1, against=against, head=oracle.likeliest(policy, k)
    )
    agree(logit_moments(name, policy, reference), wanted)


@pytest.mark.parametrize("name", ["f_divergence(jensen_shannon)", "f_divergence(total_variation)"])
def test_a_token_that_one_of_them_hardly_says(name):
    """At e^-800, which float64 takes for 0, everything is as if the token were masked there."""
    policy, reference = (torch.tensor(x, dtype=torch.float64) for x in ([0.3, 1.0, 0.5], [0.1, 0.9, 0.4]))
    for parts in ((policy, reference), (reference, policy)):
        hardly, never = (parts[0], parts[1].clone()), (parts[0], parts[1].clone())
        hardly[1][2], never[1][2] = -800.0, -INF
        for a, b in ((hardly, never), (hardly[::-1], never[::-1])):
            found, wanted = logit_moments(name, *a), logit_moments(name, *b)
            assert wanted.divergence.item() > 0.1
            for x, y in zip(found, wanted, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-15)


def test_a_head_that_is_not_centered_among_masked_tokens():
    """A generic tail has a weight even where policy and reference agree: none of it may fall on the head."""
    x, y, z = rows(11, 5)
    entry = "top_k_reverse_kl(2, generic)"
    wide = [torch.cat([t[:2], torch.tensor([-INF], dtype=t.dtype), t[2:]]) for t in (x, y, z)]
    found = logit_moments(entry, *wide[:2], behavior_logits=wide[2])
    wanted = logit_moments(entry, x, y, behavior_logits=z)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


def test_a_token_that_only_one_of_them_says():
    """Finite where the divergence is: Jensen-Shannon, or a token that is never drawn."""
    policy = torch.tensor([0.3, -INF, 1.0, 0.5], dtype=torch.float64)
    reference = torch.tensor([0.1, 0.2, 0.9, -INF], dtype=torch.float64)
    found = logit_moments("f_divergence(jensen_shannon)", policy, reference)
    p, q = policy.softmax(-1), reference.softmax(-1)
    m = (p + q) / 2
    wanted = (torch.xlogy(p, p / m) + torch.xlogy(q, q / m)).sum().item() / 2
    assert found.value.item() == pytest.approx(wanted, rel=1e-12)
    assert found.value_bias.item() == pytest.approx(0, abs=1e-15)
    assert found.gradient_bias.item() == pytest.approx(0, abs=1e-15)
    never = logit_moments("k3", policy, torch.tensor([0.1, 0.2, 0.9, 0.0], dtype=torch.float64))
    silent = torch.tensor([0.1, 0.2, 0.9, 0.0], dtype=torch.float64).softmax(-1)[1].item()
    assert never.value_bias.item() == pytest.approx(-silent, rel=1e-12)


# memory


@pytest.mark.slow
@pytest.mark.parametrize("name", ["k3", "exact_kl", "top_k_reverse_kl(16)", "kf_plus_plus(jensen_shannon)"])
def test_memory_is_that_of_some_rows_whatever_the_batch(name, monkeypatch):
    vocab = 2000
    monkeypatch.setattr(module, "_ENTRIES", {"cpu": vocab})
    peaks = {}
    for tokens in (4, 64):
        x, y, z = rows(10, vocab, (tokens, 2), torch.bfloat16)
        logit_moments(name, x[:1], y[:1], behavior_logits=z[:1])
        with Allocations() as counted:
            found = logit_moments(name, x[:, 1:], y[:, 1:], behavior_logits=z[:, 1:])
        peaks[tokens] = counted.peak - sum(t.nbytes for t in found)
        assert counted.largest <= 16 * vocab * 8
    row = vocab * 8
    assert peaks[64] <= 40 * row  # the inputs are 96 rows of float64, were they copied
    assert peaks[64] - peaks[4] <= 64 * 8 * 8


# refusals

X = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.0, 0.4]], dtype=torch.float64)


def test_the_place_of_a_row_has_all_axes_and_none_for_a_single_row(as_installed):
    x = X.expand(3, 2, 3).clone()
    x[2, 1, 0] = math.nan
    with pytest.raises(ValueError, match=r"^row \[2, 1\]: logits is NaN at \[0\]"):
        logit_moments("k1", x, x)
    with pytest.raises(ValueError, match=r"^logits is NaN at \[0\]"):
        logit_moments("k1", x[2, 1], X[0])
