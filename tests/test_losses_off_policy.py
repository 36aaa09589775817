"""Samples from another policy: fields, variances, clips, heads and optima, each against sums by hand."""

import itertools
import math

import pytest
import torch

from kl_companion.losses import kl_loss, kl_reward, kl_terms
from kl_companion.rollout import importance_ratio
from kl_companion.tabular import (
    bandit,
    exact_covariance,
    exact_field,
    exact_moments,
    expected_gradient,
    prefix_tree,
    truncate,
)
from tests.oracles.numeric import gradient, jacobian
from tests.oracles.sampling import as_world

RATIOS = ("none", "detached", "attached")
SCOPES = ("token", "prefix", "sequence")
# value and gradient weight of one token as functions of x = log(policy / reference)
BY_HAND = {
    "k1": (lambda x: x, lambda x: 1.0),
    "k2": (lambda x: x * x / 2, lambda x: x),
    "k3": (lambda x: math.exp(-x) - 1 + x, lambda x: 1 - math.exp(-x)),
    "k3_plus_plus": (lambda x: math.exp(-x) - 1 + x, lambda x: x),
    "k4": (lambda x: x, lambda x: x),
    "k5": (lambda x: -x * math.exp(-x), lambda x: 1 - math.exp(-x)),
}
TREES = [
    prefix_tree(3, 2, seed=1, off_policy=True),
    prefix_tree(3, 3, seed=2, off_policy=True, eos=True, scale=2.0),
    prefix_tree(2, 3, seed=3, eos=True),
]


def terms(name, ratio, scope="token", **options):
    options |= {"importance": None} if ratio == "none" else {"importance": scope, "ratio": ratio}
    return lambda rollout: kl_terms(rollout, name, **options)


def tables_of(problem):
    """Probabilities of policy, reference and sampler as nested lists of numbers."""
    return [
        torch.softmax(x.detach(), -1).tolist()
        for x in (problem.logits, problem.ref_logits, problem.sampled_from)
    ]


def by_hand(problem, name, ratio, scope):
    """Mean and total variance of the gradient: leaf after leaf, token after token, score after score."""
    value, weight = BY_HAND[name]
    world = as_world(problem)
    pi, ref, mu = tables_of(problem)
    mean, square = torch.zeros_like(problem.logits), 0.0
    for leaf in world["leaves"]:
        visited = [(world["row"][leaf[:t]], y) for t, y in enumerate(leaf)]
        rho = [pi[r][y] / mu[r][y] for r, y in visited]
        chance = math.prod(mu[r][y] for r, y in visited)
        amounts = [0.0] * len(leaf)  # in front of the score of each token
        for t, (row, token) in enumerate(visited):
            x = math.log(pi[row][token] / ref[row][token])
            inside = {"token": [t], "prefix": range(t + 1), "sequence": range(len(leaf))}[scope]
            scale = 1.0 if ratio == "none" else math.prod(rho[u] for u in inside)
            amounts[t] += scale * weight(x)
            if ratio == "attached":
                for u in inside:
                    amounts[u] += scale * value(x)
        for (row, token), amount in zip(visited, amounts, strict=True):
            score = [amount * ((z == token) - p) for z, p in enumerate(pi[row])]
            mean[row] += chance * torch.tensor(score, dtype=mean.dtype)
            square += chance * math.fsum(x * x for x in score)
    return mean, square - mean.square().sum().item()


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("name", BY_HAND)
def test_the_field_of_every_loss_with_a_ratio(name, ratio, scope):
    for problem in TREES:
        got = exact_field(terms(name, ratio, scope), problem)
        wanted, variance = by_hand(problem, name, ratio, scope)
        assert (got - wanted).norm() < 1e-10 * (1 + wanted.norm())
        seen = exact_moments(terms(name, ratio, scope), problem).gradient_variance
        assert seen == pytest.approx(variance, rel=1e-10)


@pytest.mark.parametrize("scope", SCOPES)
def test_the_enumerated_loss_has_the_same_field(scope):
    for name, ratio in itertools.product(("k1", "k3", "k4"), ("detached", "attached")):
        got = expected_gradient(lambda r, n=name, q=ratio: terms(n, q, scope)(r).mean(), TREES[1])
        torch.testing.assert_close(got, by_hand(TREES[1], name, ratio, scope)[0], rtol=1e-10, atol=1e-12)


def sample_gradients(problem, loss):
    """The gradient of each sequence's loss, one call after the other."""
    out = []
    for i in range(len(problem.sequences)):
        theta = problem.logits.clone().requires_grad_()
        out.append(torch.autograd.grad(loss(problem.rollout(theta, torch.tensor([i]))), theta)[0])
    return torch.stack(out)


def test_four_losses_are_one_vector_and_a_clip_takes_them_apart():
    problem = bandit(5, seed=3, off_policy=True)
    pi, ref, mu = (x[0] for x in tables_of(problem))
    rho = [a / b for a, b in zip(pi, mu, strict=True)]
    for clip in (None, 1.0):
        kept = [r if clip is None else min(r, clip) for r in rho]
        for name, ratio in (
            ("k2", "detached"),
            ("k3_plus_plus", "detached"),
            ("k4", "detached"),
            ("k3", "attached"),
        ):
            options = {} if clip is None else {"clip": (0.0, clip)}
            got = sample_gradients(
                problem,
                lambda r, n=name, q=ratio, o=options: kl_loss(r, n, importance="token", ratio=q, **o),
            )
            for y in range(5):
                x = math.log(pi[y] / ref[y])
                force = kept[y] * x
                if ratio == "attached" and clip is not None and rho[y] > clip:
                    force = clip * (1 - math.exp(-x))  # the clamp has no gradient where it acts
                wanted = [force * ((z == y) - pi[z]) for z in range(5)]
                assert got[y, 0].tolist() == pytest.approx(wanted, rel=1e-10, abs=1e-13)
    assert max(rho) > 1.0


def trace_matrix(problem):
    """E_mu[rho^2 (1 - 2 log w) s s'], entry by entry."""
    pi, ref, mu = (x[0] for x in tables_of(problem))
    v = len(pi)
    out = torch.zeros(v, v, dtype=torch.float64)
    for y in range(v):
        s = [(z == y) - pi[z] for z in range(v)]
        a = pi[y] ** 2 / mu[y] * (1 + 2 * math.log(pi[y] / ref[y]))
        for i, j in itertools.product(range(v), repeat=2):
            out[i, j] += a * s[i] * s[j]
    return out


def closed_form(problem):
    """No token with w above root e; or one, and sum mu / (1 - 2 log w) <= 0."""
    pi, ref, mu = (x[0] for x in tables_of(problem))
    part = [1 - 2 * math.log(r / p) for r, p in zip(ref, pi, strict=True)]
    wrong = sum(a < 0 for a in part)
    return wrong == 0 or (wrong == 1 and sum(m / a for m, a in zip(mu, part, strict=True)) <= 0)


def test_the_order_of_two_covariances_in_every_direction():
    seen = []
    for vocab, scale, seed in itertools.product((2, 3, 6), (0.25, 0.5, 1.0, 3.0), range(10)):
        problem = bandit(vocab, seed=seed, scale=scale, off_policy=True)
        more, less = (exact_covariance(terms(n, "attached"), problem) for n in ("k1", "k3"))
        torch.testing.assert_close(more - less, trace_matrix(problem), rtol=1e-9, atol=1e-11)
        nonnegative = torch.linalg.eigvalsh(trace_matrix(problem))[0] > -1e-10 * less.trace()
        assert bool(nonnegative) == closed_form(problem)
        seen.append(bool(nonnegative))
    assert 20 < sum(seen) < 100


def test_a_small_kl_does_not_make_k1_the_noisier_loss():
    rare = 0.01
    probabilities = torch.tensor([[rare, 1 - rare], [2 * rare, 1 - 2 * rare]], dtype=torch.float64)
    problem = bandit(2)._replace(logits=probabilities[:1].log(), ref_logits=probabilities[1:].log())
    noisy, quiet = (exact_moments(terms(n, "attached"), problem) for n in ("k3", "k1"))
    assert quiet.gradient_variance < noisy.gradient_variance / 4
    assert exact_moments("k1", problem).value < 0.004


def test_only_ratios_of_single_tokens_make_a_field_without_curl():
    problem = prefix_tree(2, 2, seed=3, off_policy=True)

    def asymmetry(scope):
        matrix = jacobian(
            lambda x: exact_field(terms("k2", "detached", scope), problem, logits=x), problem.logits
        )
        return (matrix - matrix.T).abs().max().item()

    assert asymmetry("token") < 1e-8
    assert min(asymmetry("prefix"), asymmetry("sequence")) > 1e-2


def test_values_and_gradients_under_a_truncated_policy():
    problem = bandit(8, seed=1)
    head = truncate(problem, top_k=3)
    pi, ref, _ = (x[0] for x in tables_of(problem))
    inside = sorted(range(8), key=lambda y: -pi[y])[:3]
    mass, ref_mass = sum(pi[y] for y in inside), sum(ref[y] for y in inside)
    kl = sum(pi[y] / mass * math.log(pi[y] / mass / ref[y]) for y in inside)
    values = {n: exact_moments(terms(n, "none"), head).value for n in ("k1", "k3")}
    assert values["k1"] == pytest.approx(kl + math.log(mass), abs=1e-13)
    assert values["k3"] == pytest.approx(values["k1"] + ref_mass / mass - 1, abs=1e-13)
    wanted = gradient(lambda x: torch.log(torch.softmax(x, -1)[0, inside].sum()), problem.logits)
    torch.testing.assert_close(exact_field(terms("k1", "none"), head), wanted, rtol=1e-11, atol=1e-14)
    with pytest.raises(ValueError, match="probability of 0"):
        exact_moments(terms("k2", "detached"), head)


def test_squared_log_ratios_under_the_sampler_keep_the_optimum_in_pairs_only():
    beta = 0.5
    for seed in range(3):
        problem = bandit(4, seed=seed, off_policy=True)
        _, ref, mu = (x[0] for x in tables_of(problem))
        tilted = [q * math.exp(r / beta) for q, r in zip(ref, problem.rewards.tolist(), strict=True)]
        optimum = torch.tensor([[math.log(x / sum(tilted)) for x in tilted]], dtype=torch.float64)

        def pairs(rollout):
            x = rollout.rewards - beta * (rollout.logp - rollout.ref_logp)[:, 0]
            return (x[0] - x[1]) ** 2 / 4

        def half_variance(theta, mu=mu, ref=ref, rewards=problem.rewards):
            m = torch.tensor(mu, dtype=torch.float64)
            x = rewards - beta * (
                torch.log_softmax(theta, -1)[0] - torch.tensor(ref, dtype=torch.float64).log()
            )
            return (m * (x - (m * x).sum()) ** 2).sum() / 2

        got = expected_gradient(pairs, problem, group_size=2)
        torch.testing.assert_close(got, gradient(half_variance, problem.logits), rtol=1e-10, atol=1e-13)
        assert expected_gradient(pairs, problem, logits=optimum, group_size=2).norm() < 1e-13

        def penalized(rollout):
            rho = importance_ratio(rollout, scope="sequence")[:, 0]
            return (beta * kl_terms(rollout, "k2", importance=None) - rho * rollout.rewards).mean()

        assert expected_gradient(penalized, problem, logits=optimum).norm() > 1e-2


def test_a_shaped_reward_is_weighted_once():
    problem = bandit(4, seed=2, off_policy=True)
    beta = 0.3

    def shaped(rollout):
        rho = importance_ratio(rollout, scope="sequence")[:, 0]
        return -(rho * (rollout.rewards - kl_reward(rollout, "k1", beta=beta))).mean()

    def objective(theta):
        logp = torch.log_softmax(theta, -1)[0]
        ratio = logp - torch.log_softmax(problem.ref_logits, -1)[0]
        return -(torch.exp(logp) * (problem.rewards - beta * ratio)).sum()

    got = expected_gradient(shaped, problem)
    torch.testing.assert_close(got, gradient(objective, problem.logits), rtol=1e-10, atol=1e-13)
