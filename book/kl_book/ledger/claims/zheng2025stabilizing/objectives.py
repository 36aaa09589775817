"""Section 2: the objectives of answers and of tokens, and how far they agree (zheng2025stabilizing)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import hedged
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import mean
from kl_book.ledger.claims.ground.surrogates import (
    Engines,
    exponent,
    not_of_order,
    of_answers,
    of_tokens,
    sampled_by_the_reference,
    sampled_trees,
)
from kl_book.ledger.claims.ground.updates import every_token
from kl_book.ledger.claims.ground.worlds import trees
from kl_companion.tabular import prefix_tree


@claim("QW-2.1-policy", over=sampled_trees)
def the_expected_reward_from_another_sampler(w: Engines) -> Iterator[Found]:
    """Answers of the sampler, weighted by the ratio of the whole answer, have the policy's mean reward."""
    value, by_token = w.expected_reward, w.t.logp.exp().prod(-1)
    yield same(by_token.sum(), 1.0)
    yield same(by_token @ w.R, value)
    yield same(w.at(of_answers), value)


@claim("QW-eq2", over=sampled_trees)
def the_gradient_from_another_sampler(w: Engines) -> Iterator[Found]:
    """Both lines: the weighted score of the answer, and the sum of the scores of its tokens."""
    weight = w.ratio.prod(-1) * w.R
    yield same(w.Es(weight), w.d_reward)
    yield same(w.E(w.tokens(every_token(w.problem, weight))), w.d_reward)
    yield same(w.gradient(of_answers), w.d_reward)


def _answers_exceed_tokens(w: Engines) -> tuple[bool, bool, bool]:
    """Whether answers exceed tokens, by position: range of log-ratios, their variance, that of gradients."""
    token = w.ratio
    answer, spread = token.prod(-1), token.log().amax(0) - token.log().amin(0)
    gradient = (answer * w.R)[:, None, None] * w.s
    return (
        float(answer.log().max() - answer.log().min()) > float(spread.max()),
        w.var(answer) > max(w.var(token[:, i]) for i in range(token.shape[1])),
        w.var(gradient) > w.var(w.token_terms),
    )


def _chain(length: int) -> Engines:
    """All answers of this length; every token has one distribution under policy and sampler."""
    problem = prefix_tree(2, length)
    policy, sampler = (torch.tensor([[x, 1 - x]], dtype=torch.float64).log() for x in (0.6, 0.5))
    rows = len(problem.logits)
    return Engines(problem._replace(logits=policy.expand(rows, 2), behavior_logits=sampler.expand(rows, 2)))


@claim("QW-2.2-variance")
def ratios_of_answers_spread() -> Iterator[Found]:
    """Range and variance of an answer's ratio exceed those of its tokens, and grow with the length."""
    exceed = [_answers_exceed_tokens(w) for w in sampled_by_the_reference()]
    for cases in zip(*exceed, strict=True):
        yield printed(hedged(cases))
    ranges, ratios, gradients = (sum(cases) for cases in zip(*exceed, strict=True))
    chi = 0.04  # of (0.6, 0.4) from (0.5, 0.5)
    for length in (1, 2, 4, 7):
        w = _chain(length)
        yield same(w.var(w.rho), (1 + chi) ** length - 1)
        yield same(w.rho.log().max() - w.rho.log().min(), length * math.log(1.5))
    yield numbers(trees=len(exceed), ratios=ratios, ranges=ranges, gradients=gradients)
    yield numbers(at_100=1.01**100 - 1, at_1000=1.01**1000 - 1)


@claim("QW-eq3", over=sampled_trees)
def gradient_of_the_token_objective(w: Engines) -> Iterator[Found]:
    """The derivative of eq (3) is eq (4)."""
    sampled = w.problem.token_logp(w.problem.sampled_from).sum(-1).exp()
    yield same(w.gradient(of_tokens), mean(sampled, w.token_terms))


@claim("QW-2.3-reinforce", over=sampled_trees)
def reinforce_with_weights(w: Engines) -> Iterator[Found]:
    """Each token's term is its ratio times that of REINFORCE, which is the exact gradient on-policy."""
    reward = every_token(w.problem, w.R)
    yield same(w.tokens(w.ratio * reward), w.token_terms)
    own = w.replace(behavior_logits=None)
    yield same(own.E(own.tokens(reward)), own.d_reward)
    yield same(own.gradient(of_tokens), own.d_reward)


STEP = 1e-3


def _products(delta: torch.Tensor, degree: int) -> torch.Tensor:
    """Sum of the products of ``degree`` different entries along the last axis: elementary symmetric."""
    every = torch.combinations(torch.arange(delta.shape[-1]), degree)
    return delta[:, every].prod(-1).sum(-1)


def _left_over(w: Engines) -> torch.Tensor:
    """prod(1 + delta) - 1 - sum delta of every answer, [count]."""
    delta = w.ratio - 1
    return (1 + delta).prod(-1) - 1 - delta.sum(-1)


@claim("QW-2.3-product")
def the_product_to_first_order() -> Iterator[Found]:
    """The rest is the sum of products of two and more deltas; it shrinks with the square of the step."""
    powers = []
    for w in sampled_trees():
        delta = w.ratio - 1
        yield same(_left_over(w), sum(_products(delta, k) for k in range(2, delta.shape[-1] + 1)))
        yield same(w.E((1 + delta).prod(-1)), 1.0)
        powers.append(exponent(lambda h, w=w: float(_left_over(w.towards(h)).norm())))  # type: ignore[misc]
        yield same(powers[-1], 2, by=not_of_order)
    yield numbers(least=min(powers), most=max(powers), product=1.01**1000, linear=1 + 1000 * 0.01)


@claim("QW-2.3-objective")
def the_token_objective_to_first_order() -> Iterator[Found]:
    """At the sampler the two values differ by E[(|y| - 1) R]; beyond this constant the order is two."""
    shares, powers = [], []
    for w in sampled_trees():
        start = w.towards(0.0)
        constant = start.at(of_tokens) - start.expected_reward
        yield same(start.E((w.lengths - 1) * w.R), constant, "inside")
        powers.append(w.order_of_value(of_tokens))
        yield same(powers[-1], 2, "inside", by=not_of_order)
        shares.append(abs(constant / start.expected_reward))
    yield printed(max(shares))
    yield numbers(trees=len(shares), least=min(shares), most=max(shares))
    yield numbers(least_power=min(powers), most_power=max(powers))


def _first_order(w: Engines, theta: torch.Tensor) -> torch.Tensor:
    """E_mu[R (1 + sum of delta)], differentiable."""
    return of_tokens(w, theta) - w.E((w.lengths - 1) * w.R)


@claim("QW-first-order")
def the_gradient_to_first_order() -> Iterator[Found]:
    """The gradient of E[R (1 + sum delta)] is eq (4); it is exact at the sampler and off by order one."""
    powers = []
    for w in sampled_trees():
        yield same(w.gradient(_first_order), w.E(w.token_terms))
        yield same(w.gradient(of_answers), w.d_reward)
        yield same(w.towards(0.0).gap(of_tokens), 0.0)
        powers.append(w.order_of_gradient(of_tokens))
        yield same(powers[-1], 1, by=not_of_order)
    yield numbers(least=min(powers), most=max(powers))


def _cosine(w: Engines) -> float:
    """Cosine of the token gradient with that of the expected reward."""
    update, target = w.gradient(of_tokens), w.d_reward
    return float((update * target).sum() / (update.norm() * target.norm()))


@claim("QW-2.3-improve")
def a_step_along_the_token_gradient_helps() -> Iterator[Found]:
    """Near the sampler a small step raises the expected reward, as much as one along its own gradient."""
    for w in sampled_trees():
        near = w.towards(2.0**-6)
        moved = near.replace(logits=near.problem.logits + STEP * near.gradient(of_tokens))
        gain = moved.expected_reward - near.expected_reward
        yield less(0.0, gain, by=1e-12)
        yield less(abs(gain / (STEP * float(near.d_reward.square().sum())) - 1), 0.05, by=0.0)
        yield less(0.99, _cosine(near), by=0.0)
    far = [_cosine(w.towards(1.0)) for w in sampled_by_the_reference()[::2]]
    yield numbers(trees=len(far), least=min(far))


def _parts(w: Engines) -> tuple[torch.Tensor, torch.Tensor]:
    """Discrepancy of the engines and staleness of every token, as log-ratios, [count, length]."""
    older = w.problem.token_logp(w.problem.ref_logits)
    return w.t.ref_logp - w.problem.token_logp(w.problem.sampled_from), w.t.logp - older


@claim("QW-abs-conditions")
def only_their_product_counts() -> Iterator[Found]:
    """Both small is enough; needed is that the product of both is near 1, and they may cancel."""
    exact_anyway, sizes = [], []
    for w in (*sampled_trees(), *map(Engines, trees())):
        w = w.replace(behavior_logits=w.problem.logits)  # the older policy is elsewhere
        sizes.append(min(float(part.abs().max().exp()) for part in _parts(w)))
        exact_anyway.append(sizes[-1] > 1.1 and w.gap(of_tokens) < 1e-12)
        yield same(w.E(w.token_terms), w.d_reward, "corrected")
    for w in sampled_trees():  # both shrink together, or one of them alone
        yield same(w.order_of_gradient(of_tokens), 1, "inside", by=not_of_order)
        fresh = w.replace(ref_logits=w.problem.logits)  # no staleness, a discrepancy that stays
        stale = w.replace(ref_logits=w.problem.sampled_from)  # no discrepancy
        for one_alone in (fresh, stale):
            yield differs(one_alone.gap(of_tokens), 0.0, "inside")
    yield printed(share_of_cases(exact_anyway))
    near = sampled_trees()[2].towards(0.1)
    yield numbers(trees=len(exact_anyway), least=min(sizes), error=near.relative_gap(of_tokens))
    yield numbers(ratio=float(near.ratio.log().abs().max().exp()))


@claim("QW-eq5", over=sampled_trees)
def discrepancy_times_staleness(w: Engines) -> Iterator[Found]:
    """Policy over sampler is old policy over sampler times policy over old policy, for every token."""
    discrepancy, staleness = (part.exp() for part in _parts(w))
    yield same(w.ratio, discrepancy * staleness)
    yield differs(discrepancy, 1.0)
    yield differs(staleness, 1.0)
