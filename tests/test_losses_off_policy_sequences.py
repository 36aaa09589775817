"""The sequence gradient from another policy's samples: four unbiased estimates, and their variances.

The oracle walks the leaves of a tree and writes each estimate as it stands in the chapter on less variance:
an amount in front of the score of every token, a product of ratios for every prefix. It shares no code with
the losses.
"""

import itertools
import math

import pytest
import torch

from kl_companion.losses import kl_terms
from kl_companion.rollout import importance_ratio, per_token
from kl_companion.tabular import exact_moments, expected_gradient, prefix_tree
from tests.oracles.numeric import gradient
from tests.oracles.sampling import as_world
from tests.oracles.worlds import sequence_level

TREES = [
    prefix_tree(3, 2, seed=1, off_policy=True),
    prefix_tree(3, 3, seed=2, off_policy=True, eos=True, scale=2.0),
    prefix_tree(2, 4, seed=3, off_policy=True, eos=True),
]


def tables_of(problem):
    """Next-token probabilities of policy, reference and sampler as nested lists."""
    return [
        torch.softmax(x, -1).tolist() for x in (problem.logits, problem.ref_logits, problem.behavior_logits)
    ]


def walk(problem):
    """Each leaf: its chance under the sampler, its rows, tokens, ratios, log-ratios and next-token KLs."""
    world = as_world(problem)
    pi, ref, mu = tables_of(problem)
    row_kl = [
        sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) for p, q in zip(pi, ref, strict=True)
    ]
    for leaf in world["leaves"]:
        at = [(world["row"][leaf[:t]], y) for t, y in enumerate(leaf)]
        rho = [pi[r][y] / mu[r][y] for r, y in at]
        ell = [math.log(pi[r][y] / ref[r][y]) for r, y in at]
        yield math.prod(mu[r][y] for r, y in at), at, rho, ell, [row_kl[r] for r, _ in at]


def k3(x):
    return math.exp(-x) - 1 + x


AMOUNTS = {
    "sequence": lambda rho, ell, t: math.prod(rho) * sum(ell[t:]),
    "log-ratio": lambda rho, ell, t: sum(math.prod(rho[: u + 1]) * ell[u] for u in range(t, len(ell))),
    "K3": lambda rho, ell, t: (
        math.prod(rho[: t + 1]) * (1 - math.exp(-ell[t]))
        + sum(math.prod(rho[: u + 1]) * k3(ell[u]) for u in range(t, len(ell)))
    ),
}


def moments_by_hand(problem, form):
    """Mean and total variance of the gradient of one sequence; "next token" is Rao-Blackwellized."""
    pi, ref, _ = tables_of(problem)
    mean, square = torch.zeros_like(problem.logits), 0.0
    for chance, at, rho, ell, kl in walk(problem):
        for t, (row, token) in enumerate(at):
            score = [(z == token) - p for z, p in enumerate(pi[row])]
            if form == "next token":
                ahead = sum(math.prod(rho[:u]) * kl[u] for u in range(t + 1, len(at)))
                slope = [p * (math.log(p / q) - kl[t]) for p, q in zip(pi[row], ref[row], strict=True)]
                part = [math.prod(rho[:t]) * a + ahead * b for a, b in zip(slope, score, strict=True)]
            else:
                part = [AMOUNTS[form](rho, ell, t) * b for b in score]
            mean[row] += chance * torch.tensor(part, dtype=mean.dtype)
            square += chance * math.fsum(x * x for x in part)
    return mean, square - mean.square().sum().item()


def log_ratio(logp, ref_logp):
    return (logp - ref_logp).detach()


def next_token(rollout):
    """The loss of the chapter: next-token KLs, each times the attached ratio of the tokens before it."""
    rho = importance_ratio(rollout, scope="prefix")
    before = torch.cat([torch.ones_like(rho[:, :1]), rho[:, :-1]], 1)
    return (before * per_token("exact_kl", rollout) * rollout.completion_mask).sum(-1)


ATTACHED = {"importance": "prefix", "ratio": "attached"}
LOSSES = {
    "sequence": lambda rollout: kl_terms(rollout, "k1", credit=1.0, importance="sequence"),
    "log-ratio": lambda rollout: kl_terms(rollout, log_ratio, **ATTACHED),
    "K3": lambda rollout: kl_terms(rollout, "k3", **ATTACHED),
    "next token": next_token,
}


def sequence_gradient(problem):
    world = as_world(problem)
    return gradient(lambda x: sequence_level(world, x, problem.ref_logits, "reverse_kl"), problem.logits)


@pytest.mark.parametrize("form", LOSSES)
def test_each_has_the_gradient_of_the_sequence_kl(form):
    for problem in TREES:
        goal = sequence_gradient(problem)
        by_hand, _ = moments_by_hand(problem, form)
        package = expected_gradient(lambda rollout: LOSSES[form](rollout).mean(), problem)
        torch.testing.assert_close(by_hand, goal, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(package, goal, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("form", AMOUNTS)
def test_the_variance_is_the_sum_over_positions(form):
    for problem in TREES:
        got = exact_moments(LOSSES[form], problem).gradient_variance
        assert got == pytest.approx(moments_by_hand(problem, form)[1], rel=1e-10)


def test_the_variance_of_the_next_token_form():
    for problem in TREES:
        theta = problem.logits.clone().requires_grad_()
        terms = next_token(problem.rollout(theta))
        each = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in terms]
        chances = [chance for chance, *_ in walk(problem)]
        square = math.fsum(c * g.square().sum().item() for c, g in zip(chances, each, strict=True))
        variance = square - sequence_gradient(problem).square().sum().item()
        assert variance == pytest.approx(moments_by_hand(problem, "next token")[1], rel=1e-10)


def test_without_the_ratios_of_earlier_tokens_each_prefix_keeps_the_chance_of_the_sampler():
    for loss in ("k2", "k4"):  # complete per token: what is left is how often the sampler comes by
        problem = prefix_tree(2, 2, seed=4, off_policy=True)
        got = expected_gradient(lambda r, e=loss: kl_terms(r, e, importance="token").mean(), problem)
        goal = sequence_gradient(problem)
        pi, _, mu = tables_of(problem)
        for y in (0, 1):  # rows 1 and 2 follow the first token
            torch.testing.assert_close(got[1 + y] * pi[0][y] / mu[0][y], goal[1 + y], rtol=1e-10, atol=1e-14)
        assert (got[1:] - goal[1:]).norm() > 0.02 * goal[1:].norm()


@pytest.mark.parametrize("scope", ["token", "prefix"])
def test_a_ratio_in_front_of_the_credit_leaves_later_log_ratios_unweighted(scope):
    for problem in TREES:
        got = expected_gradient(
            lambda r: kl_terms(r, "k1", credit=1.0, importance=scope).mean(),
            problem,
        )
        goal = sequence_gradient(problem)
        assert (got - goal).norm() > 0.01 * goal.norm()


def close(seed, length=3, far=1.0, distance=1e-3):
    """A tree whose policy is near its reference and whose sampler is far from both."""
    problem = prefix_tree(2, length, seed=seed, eos=bool(seed % 2), scale=distance)
    noise = torch.randn(problem.logits.shape, generator=torch.Generator().manual_seed(seed)).double()
    return problem._replace(behavior_logits=problem.logits + far * noise)


def test_near_the_reference_the_order_of_the_variances_is_the_same_for_every_tree():
    for seed in range(20):
        one, two, three = (exact_moments(LOSSES[form], close(seed)).gradient_variance for form in AMOUNTS)
        assert moments_by_hand(close(seed), "next token")[1] < three < min(one, two)


def test_ratios_of_earlier_tokens_multiply_the_second_moment_by_a_power_series():
    for seed, length in itertools.product(range(3), (2, 4)):
        problem = close(2 * seed, length)
        problem = problem._replace(
            logits=problem.logits[:1].expand_as(problem.logits),
            ref_logits=problem.ref_logits[:1].expand_as(problem.logits),
            behavior_logits=problem.behavior_logits[:1].expand_as(problem.logits),
        )
        (p, *_), (q, *_), (m, *_) = tables_of(problem)
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        growth = sum(a * a / b for a, b in zip(p, m, strict=True))  # 1 + chi2
        factor = sum(growth**t for t in range(length))
        token = 0.0
        for y, (a, b, c) in enumerate(zip(p, q, m, strict=True)):
            norm = sum(((z == y) - x) ** 2 for z, x in enumerate(p))
            token += c * (a / c * math.log(a / b)) ** 2 * norm
        exact = sum((a * (math.log(a / b) - kl)) ** 2 for a, b in zip(p, q, strict=True))
        sampled = exact_moments(LOSSES["K3"], problem)
        second = sampled.gradient_variance + sampled.gradient.square().sum().item()
        assert second == pytest.approx(factor * token, rel=0.01)
        mean, variance = moments_by_hand(problem, "next token")
        assert variance + mean.square().sum().item() == pytest.approx(factor * exact, rel=0.01)
