"""Top-k divergences: sample by sample and in expectation, against loops over tokens; every set, every f."""

import itertools

import pytest
import torch

from kl_companion.divergences import DIVERGENCES, T, make_divergence
from kl_companion.estimators.sampled import FORMS, kf_plus_plus
from kl_companion.estimators.top_k import (
    top_k_f_divergence,
    top_k_forward_kl,
    top_k_reverse_kl,
    truncated_f_divergence,
)
from kl_companion.estimators.vocabulary import f_divergence
from tests.oracles import top_k as oracle
from tests.oracles.numeric import gradient
from tests.support.heads import every_sample, world

NAMES = list(DIVERGENCES)
HEADS = ["policy", "reference", "sampler"]
WORLDS = [(0, 3), (2, 5), (4, 7)]


def expectation(name, form, theta, ref, *, mu=None, weight=None, **choice):
    """Expected value and gradient: a sum over tokens, weighted by fixed probabilities."""
    x = theta.clone().requires_grad_()
    chances = (theta if mu is None else mu).softmax(-1)
    total = (chances * every_sample(name, form, x, ref, mu=mu, weight=weight, **choice)).sum()
    return total.detach(), torch.autograd.grad(total, x)[0]


def truth(name, theta, ref, head, coefficient=0.0):
    """D + coefficient * P(head), and its gradient, with loops."""
    q = oracle.probabilities(ref)

    def scalar(x):
        p = oracle.probabilities(x)
        return oracle.divergence(name, p, q) + coefficient * oracle.mass(p, head)

    return oracle.divergence(name, oracle.probabilities(theta), q), gradient(scalar, theta)


def close(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def jacobian(fn, theta):
    """Values of a vector function of the logits, and the gradient of each."""
    x = theta.clone().requires_grad_()
    out = fn(x)
    rows = [torch.autograd.grad(y, x, retain_graph=True)[0] for y in out]
    return out.detach(), torch.stack(rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_that_of_the_loops(name, form):
    """Value and gradient of each sample, for every k, with sets that nobody's likeliest tokens make."""
    theta, ref, mu = world(2, 5)
    q, weight = oracle.probabilities(ref), torch.linspace(0.2, 1.5, 5, dtype=torch.float64)
    for k, head in enumerate(([], [3], [4, 0], [2, 1, 3], [4, 3, 0, 1], [1, 0, 3, 2, 4])):
        indices = torch.tensor(head, dtype=torch.int64)
        assert len(head) == k

        def explicit(x, head=head):
            p = oracle.probabilities(x)
            return [oracle.estimate(name, form, p, q, y, head, weight[y].item()) for y in range(5)]

        def ours(x, indices=indices):
            return every_sample(name, form, x, ref, mu=mu, weight=weight, indices=indices)

        for token, wanted in enumerate(explicit(theta)):
            torch.testing.assert_close(ours(theta)[token], wanted, rtol=1e-12, atol=1e-13)
        x = theta.clone().requires_grad_()
        wanted = torch.stack(
            [torch.autograd.grad(y + 0 * x.sum(), x, retain_graph=True)[0] for y in explicit(x)]
        )
        torch.testing.assert_close(jacobian(ours, theta)[1], wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("head_from", HEADS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_expected_value_and_gradient(name, form, head_from):
    """Unbiased in value; in gradient up to f'(1) grad P(S), which only the published form leaves."""
    left = oracle.SLOPE.get(name, 0.0) if form == "published" else 0.0
    for seed, vocab in WORLDS:
        theta, ref, mu = world(seed, vocab)
        chosen = {"policy": theta, "reference": ref, "sampler": mu}[head_from]
        for k in range(vocab + 1):
            head = oracle.likeliest(chosen, k)
            wanted = truth(name, theta, ref, head, left)
            choice = {"k": k, "head_from": head_from}
            rho = (theta.log_softmax(-1) - mu.log_softmax(-1)).exp()
            close(expectation(name, form, theta, ref, mu=mu, weight=rho, **choice), wanted)
            if head_from != "sampler":
                close(expectation(name, form, theta, ref, **choice), wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_expected_value_and_gradient_of_any_set(name, form):
    """The same for every subset of five tokens."""
    theta, ref, mu = world(7, 5)
    left = oracle.SLOPE.get(name, 0.0) if form == "published" else 0.0
    rho = (theta.log_softmax(-1) - mu.log_softmax(-1)).exp()
    for k in range(6):
        for head in itertools.combinations(range(5), k):
            indices = torch.tensor(head, dtype=torch.int64)
            wanted = truth(name, theta, ref, head, left)
            close(expectation(name, form, theta, ref, indices=indices), wanted)
            close(expectation(name, form, theta, ref, mu=mu, weight=rho, indices=indices), wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_both_ends(name, form):
    """k = 0 is the sampled estimator, k = vocab the exact divergence: sample by sample, with gradients."""
    theta, ref, _ = world(8, 6)
    q = ref.log_softmax(-1)
    sampled = kf_plus_plus(name, form)
    alone = jacobian(lambda x: sampled(x.log_softmax(-1), q), theta)
    empty = jacobian(lambda x: every_sample(name, form, x, ref, k=0), theta)
    assert all(torch.equal(*pair) for pair in zip(empty, alone, strict=True))
    exact = jacobian(lambda x: f_divergence(name, x.log_softmax(-1), q).expand(6), theta)
    close(jacobian(lambda x: every_sample(name, form, x, ref, k=6), theta), exact)


def test_every_divergence_is_in_the_oracle():
    assert set(oracle.NORMALIZED) == set(NAMES)
    given = {n: float(d.slope) for n, d in DIVERGENCES.items() if d.slope != 0}
    assert given == oracle.SLOPE


def test_the_named_functions_are_the_family_with_their_own_heads():
    theta, ref, mu = world(3, 6)
    p, q, m = (x.log_softmax(-1).expand(6, -1) for x in (theta, ref, mu))
    tokens, weight = torch.arange(6), torch.linspace(0, 2, 6, dtype=torch.float64)
    for form in FORMS:
        for fn, name, head_from in (
            (top_k_reverse_kl, "reverse_kl", "policy"),
            (top_k_forward_kl, "forward_kl", "reference"),
        ):
            got = fn(p, q, tokens, k=2, form=form, tail_weight=weight)
            wanted = every_sample(name, form, theta, ref, weight=weight, k=2, head_from=head_from)
            assert torch.equal(got, wanted)
            other = fn(p, q, tokens, k=2, head_from="sampler", form=form, behavior_logp_all=m)
            assert torch.equal(other, every_sample(name, form, theta, ref, mu=mu, k=2, head_from="sampler"))
            indices = torch.tensor([5, 1])
            assert torch.equal(
                fn(p, q, tokens, indices=indices, form=form),
                every_sample(name, form, theta, ref, indices=indices),
            )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_truncated_divergence_is_the_head_alone(name, form):
    """A truncated divergence is the head alone, whoever chooses it."""
    theta, ref, mu = world(5, 6)
    q, f = oracle.probabilities(ref), oracle.written(name, form)[0]
    for head_from, chosen in (("policy", theta), ("reference", ref), ("sampler", mu)):
        head = oracle.likeliest(chosen, 3)

        def explicit(x, head=head):
            p = oracle.probabilities(x)
            return sum(q[j] * f(p[j] / q[j]) for j in head)

        def ours(x, head_from=head_from):
            p, r, m = (y.log_softmax(-1) for y in (x, ref, mu))
            return truncated_f_divergence(
                name, p, r, k=3, head_from=head_from, form=form, behavior_logp_all=m
            )

        close((ours(theta), gradient(ours, theta)), (explicit(theta), gradient(explicit, theta)))
        given = truncated_f_divergence(
            name, theta.log_softmax(-1), ref.log_softmax(-1), indices=torch.tensor(head), form=form
        )
        torch.testing.assert_close(given, explicit(theta), rtol=1e-12, atol=1e-14)


def test_the_set_carries_no_gradient_and_rows_have_their_own():
    theta, ref, _ = world(4, 7)
    both = torch.stack([theta, ref]).requires_grad_()
    q = torch.stack([ref, theta]).log_softmax(-1)
    out = top_k_reverse_kl(both.log_softmax(-1), q, torch.tensor([0, 6]), k=3)
    (slope,) = torch.autograd.grad(out[0], both)
    assert slope[1].abs().max() == 0
    for row, (a, b, token) in enumerate([(theta, ref, 0), (ref, theta, 6)]):
        alone = top_k_reverse_kl(a.log_softmax(-1), b.log_softmax(-1), torch.tensor(token), k=3)
        torch.testing.assert_close(out[row].detach(), alone, rtol=1e-13, atol=0)
    sets = torch.tensor([[0, 1, 2], [6, 5, 4]])
    mixed = top_k_reverse_kl(both.log_softmax(-1), q, torch.tensor([0, 6]), indices=sets)
    shared = top_k_reverse_kl(both.log_softmax(-1), q, torch.tensor([0, 6]), indices=sets[0])
    assert mixed[0].item() == shared[0].item()
    assert mixed[1].item() != shared[1].item()


def test_leading_axes():
    """Any number of leading axes, with one set for all rows or a set of each; rows do not see each other."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((), (1,), (2, 3)):
        p, q = torch.randn(2, *shape, 5, generator=generator, dtype=torch.float64).log_softmax(-1)
        tokens = torch.randint(5, shape, generator=generator)
        own = torch.rand(*shape, 5, generator=generator).argsort(-1)[..., :2]
        for choice in ({"k": 2}, {"indices": torch.tensor([3, 0])}, {"indices": own}):
            out = top_k_f_divergence("pearson", p, q, tokens, **choice)
            assert out.shape == shape
            each = (
                choice.get("indices", torch.zeros(1)).expand(*shape, -1).reshape(max(1, tokens.numel()), -1)
            )
            rows = zip(p.reshape(-1, 5), q.reshape(-1, 5), tokens.reshape(-1), each, strict=True)
            flat = [
                top_k_f_divergence("pearson", *row, **(choice if "k" in choice else {"indices": ids}))
                for *row, ids in rows
            ]
            torch.testing.assert_close(out.reshape(-1), torch.stack(flat), rtol=1e-13, atol=0)


def test_the_weight_multiplies_the_tail_only_and_is_detached():
    """The weight multiplies the tail only, and no gradient reaches it."""
    theta, ref, _ = world(2, 4)
    x = theta.clone().requires_grad_()
    weight = (3 * x.softmax(-1)).requires_grad_()
    heavy = every_sample("reverse_kl", "bregman", x, ref, weight=weight, k=2)
    light = every_sample("reverse_kl", "bregman", x, ref, weight=torch.zeros(4).double(), k=2)
    plain = every_sample("reverse_kl", "bregman", x, ref, k=2)
    torch.testing.assert_close(heavy - light, weight.detach() * (plain - light), rtol=1e-12, atol=1e-15)
    head = oracle.likeliest(theta, 2)
    assert torch.equal(heavy[head], plain[head])
    assert torch.autograd.grad(heavy.sum(), weight, allow_unused=True) == (None,)


def test_divergence_objects_are_welcome():
    cubic = make_divergence("cubic", (T - 1) ** 2 * (T + 2), source="test")  # t^3 - 3t + 2
    theta, ref, _ = world(0, 3)
    p, q = theta.softmax(-1), ref.softmax(-1)
    exact = (q * ((p / q) ** 3 - 3 * p / q + 2)).sum()
    mean = (p * every_sample(cubic, "bregman", theta, ref, k=1)).sum()
    torch.testing.assert_close(mean, exact, rtol=1e-12, atol=0)
