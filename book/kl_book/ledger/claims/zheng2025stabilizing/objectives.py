"""Sections 2.1 to 2.3: the objectives of answers and tokens, and their gradients (zheng2025stabilizing)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, numbers, printed, same
from kl_book.ledger.claims.ground.errors import hedged
from kl_book.ledger.claims.ground.sums import mean
from kl_book.ledger.claims.ground.surrogates import (
    Engines,
    of_answers,
    of_tokens,
    sampled_by_the_reference,
    sampled_trees,
)
from kl_book.ledger.claims.ground.updates import every_token
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
