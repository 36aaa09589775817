"""Exact moments of a next-token estimate against every token that can be drawn, each gradient by autograd."""

import pytest
import torch

from kl_companion.divergences import get_divergence
from kl_companion.estimators import ESTIMATORS, Estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.losses import kl_terms
from kl_companion.tabular import (
    bandit,
    draw_statistics,
    exact_moments,
    stack,
    token_moments,
    token_statistics,
    truncate,
)
from tests.oracles import sampling
from tests.oracles import top_k as oracle
from tests.oracles.numeric import gradient
from tests.support.moments import agree

INF = float("inf")
FIELDS = ["value", "value_bias", "value_variance", "gradient_bias", "gradient_variance"]


def logits(seed, vocab=5, rows=3):
    """Logits of policy, reference and sampler, [rows, vocab]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator, dtype=torch.float64)


def moments(estimator, theta, ref, mu=None, n=1, **options):
    sampler = None if mu is None else mu.log_softmax(-1)
    parts = (theta.log_softmax(-1), ref.log_softmax(-1))
    return token_moments(estimator, *parts, n, behavior_logp_all=sampler, **options)


# each estimate by hand: name to (target, function of p, q, the token, its weight and the sampler)


def by_weight(name):
    value, factor = sampling.BY_HAND[name]

    def one(p, q, y, rho, _):
        x = torch.log(p[y].detach() / q[y])
        return rho * (value(x) + factor(x) * (torch.log(p[y]) - torch.log(p[y].detach())))

    return one


def exact(name):
    return lambda p, q, y, rho, _: oracle.divergence(name, p, q)


def split(name, form, k, head_from="policy", tail=True):
    def one(p, q, y, rho, mu):
        scores = {"policy": [x.item() for x in p], "reference": q, "sampler": mu}[head_from]
        head = oracle.likeliest(scores, k)
        return oracle.estimate(name, form, p, q, y if tail else head[0], head, rho)  # a head draws nothing

    return one


CASES = {
    **{name: ("reverse_kl", by_weight(name)) for name in ("k1", "k2", "k3", "k3_plus_plus", "k4")},
    "k5": ("forward_kl", by_weight("k5")),
    "kf_plus_plus(pearson)": ("pearson", split("pearson", "bregman", 0)),
    "kf_plus_plus(reverse_kl, generic)": ("reverse_kl", split("reverse_kl", "generic", 0)),
    "exact_kl": ("reverse_kl", exact("reverse_kl")),
    "exact_forward_kl": ("forward_kl", exact("forward_kl")),
    "top_k_reverse_kl(0)": ("reverse_kl", split("reverse_kl", "bregman", 0)),
    "top_k_reverse_kl(2)": ("reverse_kl", split("reverse_kl", "bregman", 2)),
    "top_k_reverse_kl(5)": ("reverse_kl", split("reverse_kl", "bregman", 5)),
    "top_k_reverse_kl(1, published)": ("reverse_kl", split("reverse_kl", "published", 1)),
    "top_k_forward_kl(2)": ("forward_kl", split("forward_kl", "bregman", 2, "reference")),
    "top_k_forward_kl(3, generic)": ("forward_kl", split("forward_kl", "generic", 3, "reference")),
    "top_k_forward_kl(2, published)": ("forward_kl", split("forward_kl", "published", 2, "reference")),
    "top_k_f_divergence(neyman, 1)": ("neyman", split("neyman", "bregman", 1)),
    "truncated_kl(2)": ("reverse_kl", split("reverse_kl", "bregman", 2, tail=False)),
    "truncated_kl(3, generic)": ("reverse_kl", split("reverse_kl", "generic", 3, tail=False)),
}


def every(one, theta, ref, mu=None, n=1, weighted=True, clip=None):
    """Every estimate that n draws can give, by enumeration of tokens; what is never drawn is left out."""
    q = [float(x) for x in oracle.probabilities(ref)]
    chances = [float(x) for x in oracle.probabilities(theta if mu is None else mu)]
    values, gradients = [], []
    for token, chance in enumerate(chances):
        leaf = theta.clone().requires_grad_()
        p = oracle.probabilities(leaf)
        rho = p[token].item() / chance if weighted and chance > 0 else 1.0
        rho = rho if clip is None else min(max(rho, clip[0]), clip[1])
        value = one(p, q, token, rho, chances) if chance > 0 else 0.0 * sum(p)
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, leaf, allow_unused=True)[0])
    return sampling.estimates(chances, values, gradients, n)


def against(name, theta, ref):
    q = [float(x) for x in oracle.probabilities(ref)]

    def of(x):
        return oracle.divergence(name, oracle.probabilities(x), q)

    return of(theta).item(), gradient(of, theta)


def as_numbers(found):
    return found._replace(**{name: getattr(found, name).item() for name in FIELDS})


OFF_POLICY = {
    "weighted": {},
    "unweighted": {"weighted": False},
    "clipped": {"clip": (0.8, 1.2)},
    "clipped above": {"clip": (0.0, 0.6)},
}


@pytest.mark.parametrize("name", CASES)
def test_moments_of_every_kind_of_estimator(name):
    target, one = CASES[name]
    for seed in (0, 1):
        theta, ref, mu = logits(seed)
        for n in (1, 2):
            found = as_numbers(moments(name, theta, ref, n=n))
            agree(found, every(one, theta, ref, n=n), against(target, theta, ref))
        for options in OFF_POLICY.values():
            found = as_numbers(moments(name, theta, ref, mu, **options))
            agree(found, every(one, theta, ref, mu, **options), against(target, theta, ref))


@pytest.mark.parametrize("form", ["bregman", "generic", "published"])
@pytest.mark.parametrize("head_from", ["policy", "reference", "sampler"])
def test_the_head_is_that_of_the_one_who_is_named(head_from, form):
    heads = set()
    for seed in range(4):
        theta, ref, mu = logits(seed)
        entry = Estimator(
            "any", TopK(get_divergence("pearson"), 2, None, head_from, form), "pearson", "top_k", ""
        )
        one = split("pearson", form, 2, head_from)
        found = as_numbers(moments(entry, theta, ref, mu, clip=(0.5, 2.0)))
        agree(found, every(one, theta, ref, mu, clip=(0.5, 2.0)), against("pearson", theta, ref))
        heads |= {tuple(oracle.likeliest(x, 2)) for x in (theta, ref, mu)}
    assert len(heads) > 4  # the three disagree: another head would be noticed


def test_a_given_head_may_be_any_set():
    theta, ref, _ = logits(5)
    for head in ([], [4], [1, 3], [0, 2, 4]):
        index = torch.tensor(head, dtype=torch.int64)
        fn = TopK(get_divergence("forward_kl"), None, index, "policy", "generic")

        def one(p, q, y, rho, _, head=head):
            return oracle.estimate("forward_kl", "generic", p, q, y, head, rho)

        found = as_numbers(moments(Estimator("any", fn, "forward_kl", "top_k", ""), theta, ref))
        agree(found, every(one, theta, ref), against("forward_kl", theta, ref))


@pytest.mark.parametrize("name", ["k4", "top_k_reverse_kl(2)", "top_k_forward_kl(2, published)"])
def test_a_sampler_that_leaves_tokens_out(name):
    target, one = CASES[name]
    theta, ref, _ = logits(6)
    mu = theta.masked_fill(theta < theta.sort().values[2], -INF)  # the policy, cut to three tokens
    for options in ({}, {"weighted": False}, {"clip": (0.0, 0.7)}):
        found = as_numbers(moments(name, theta, ref, mu, **options))
        agree(found, every(one, theta, ref, mu, **options), against(target, theta, ref))
    assert moments(name, theta, ref, mu).gradient_bias > 0.01  # what is never drawn is missed


@pytest.mark.parametrize("name", ["k1", "k5", "exact_kl", "top_k_reverse_kl(2)", "truncated_kl(2)"])
def test_a_token_that_nobody_says_is_not_there(name):
    theta, ref, mu = logits(7, 4)
    wide = [torch.cat([x[:2], torch.tensor([-INF], dtype=x.dtype), x[2:]]) for x in (theta, ref, mu)]
    for small, large in (((theta, ref), wide[:2]), ((theta, ref, mu), wide)):
        wanted, found = moments(name, *small), moments(name, *large)
        assert found.gradient[0, 2] == 0
        kept = found._replace(gradient=found.gradient[:, [0, 1, 3, 4]])
        torch.testing.assert_close(tuple(kept), tuple(wanted), rtol=1e-12, atol=1e-15)


SILENT = {
    "k1": False,
    "k3": True,
    "top_k_reverse_kl(2)": True,
    "top_k_reverse_kl(2, generic)": False,
    "top_k_reverse_kl(5)": False,
    "truncated_kl(5)": False,
}


@pytest.mark.parametrize("name", SILENT)
def test_a_token_that_only_the_reference_says(name):
    """No draw shows it: a sampled tail with f(0) > 0 lacks its f(0) Q, which for t log t - t + 1 is Q."""
    theta, ref, _ = logits(8)
    never, hardly = theta.clone(), theta.clone()
    never[1], hardly[1] = -INF, -80.0
    found, limit = moments(name, never, ref), moments(name, hardly, ref)
    lost = ref.softmax(-1)[1] if SILENT[name] else torch.zeros_like(ref[1])
    torch.testing.assert_close(found.value, limit.value - lost, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(found.value_bias, limit.value_bias - lost, rtol=1e-11, atol=1e-14)
    if name != "k3":  # whose own gradient is the weight 1 - w, without a limit here
        torch.testing.assert_close(found.gradient, limit.gradient, rtol=1e-11, atol=1e-14)
        torch.testing.assert_close(found.gradient_variance, limit.gradient_variance, rtol=1e-11, atol=1e-14)


# many rows, many sizes


@pytest.mark.parametrize("name", ["k3", "exact_kl", "top_k_reverse_kl(2, published)", "truncated_kl(2)"])
def test_rows_and_sizes_at_once(name):
    theta, ref, mu = (torch.stack([logits(s, 5, 6)[i : i + 3] for s in range(2)]) for i in (0, 1, 3))
    sizes = torch.tensor([1, 3, 40])
    parts = (theta.log_softmax(-1), ref.log_softmax(-1))
    sampler, clip = mu.log_softmax(-1), (0.3, 1.5)
    many = token_statistics(name, *parts, behavior_logp_all=sampler, clip=clip).at(sizes)
    at_three = token_moments(name, *parts, 3, behavior_logp_all=sampler, clip=clip)
    assert many.gradient.shape == (2, 3, 3, 1, 5)
    assert at_three.gradient.shape == (2, 3, 1, 5)
    assert many.gradient_rmse.shape == (2, 3, 3)
    for i, j, m in [(a, b, c) for a in range(2) for b in range(3) for c in range(3)]:
        one = moments(name, theta[i, j], ref[i, j], mu[i, j], sizes[m].item(), clip=clip)
        for field in ("gradient", *FIELDS, "gradient_mse", "value_mse"):
            wanted = getattr(one, field)
            torch.testing.assert_close(getattr(many, field)[i, j, m], wanted, rtol=1e-11, atol=1e-14)
            if m == 1:
                torch.testing.assert_close(getattr(at_three, field)[i, j], wanted, rtol=1e-11, atol=1e-14)


def test_nothing_carries_a_gradient():
    theta, ref, mu = logits(9)
    for x in (theta, ref, mu):
        x.requires_grad_()
    with torch.no_grad():
        inside = moments("top_k_reverse_kl(2)", theta, ref, mu)
    outside = moments("top_k_reverse_kl(2)", theta, ref, mu)
    assert not any(x.requires_grad for x in (*inside, *outside))
    assert theta.grad is None
    torch.testing.assert_close(tuple(inside), tuple(outside), rtol=0, atol=0)


@pytest.mark.parametrize("target", ["forward_kl", "pearson"])
def test_the_target_decides_the_bias_and_nothing_else(target):
    theta, ref, _ = logits(10)
    value, slope = against(target, theta, ref)
    own = moments("top_k_reverse_kl(2)", theta, ref)
    for given in (target, get_divergence(target)):
        found = moments("top_k_reverse_kl(2)", theta, ref, target=given)
        assert found.value_bias.item() == pytest.approx(own.value.item() - value, rel=1e-11)
        bias = (own.gradient[0] - slope).norm().item()
        assert found.gradient_bias.item() == pytest.approx(bias, rel=1e-11)
        assert torch.equal(found.gradient_variance, own.gradient_variance)


# the worlds of one token, enumerated by other code

SAMPLED = [name for name, entry in ESTIMATORS.items() if entry.inputs == "sampled"] + [
    "k_lambda(0.5)",
    "kf_plus_plus(forward_kl, generic)",
    "kf_plus_plus(reverse_kl, published)",
]


def assert_the_same(found, wanted):
    """`Draws` or `Moments`; gradients of a single row of logits."""
    for name, x in wanted._asdict().items():
        if isinstance(x, torch.Tensor | float):
            other = torch.as_tensor(x, dtype=torch.float64)
            torch.testing.assert_close(getattr(found, name), other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_bandit_has_the_moments_of_a_token(name):
    worlds = [bandit(6, seed=s) for s in range(3)]
    many = stack(worlds)
    parts = [x.squeeze(1).log_softmax(-1) for x in (many.logits, many.ref_logits)]
    assert_the_same(token_statistics(name, *parts), draw_statistics(name, many))
    one = [x[0] for x in parts]
    assert_the_same(token_moments(name, *one, 7), exact_moments(name, worlds[0], 7))


@pytest.mark.parametrize("name", SAMPLED)
def test_a_bandit_off_policy(name):
    problem = bandit(6, seed=4, off_policy=True)
    parts = [x[0].log_softmax(-1) for x in (problem.logits, problem.ref_logits, problem.behavior_logits)]
    theta, ref, mu = parts
    plain = token_moments(name, theta, ref, 3, behavior_logp_all=mu, weighted=False)
    assert_the_same(plain, exact_moments(name, problem, 3))
    target = ESTIMATORS[name].target if name in ESTIMATORS else None
    for clip in (None, (0.7, 1.3)):
        found = token_moments(
            name, theta, ref, behavior_logp_all=mu, clip=clip, target=target or "reverse_kl"
        )

        def terms(rollout, clip=clip):
            return kl_terms(rollout, name, importance="token", clip=clip)

        assert_the_same(found, exact_moments(terms, problem, target=target or "reverse_kl"))


def test_a_bandit_that_is_cut():
    problem = truncate(bandit(6, seed=5), top_p=0.8)
    parts = [x[0].log_softmax(-1) for x in (problem.logits, problem.ref_logits, problem.behavior_logits)]
    found = token_moments("k3", *parts[:2], 2, behavior_logp_all=parts[2], weighted=False)
    assert_the_same(found, exact_moments("k3", problem, 2))
