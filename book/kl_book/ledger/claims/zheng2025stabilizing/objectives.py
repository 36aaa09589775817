"""Sections 2.1 to 2.3: the objectives of answers and tokens, and their gradients (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.errors import apart, hedged, worst
from kl_book.ledger.claims.ground.sums import mean, terms, variance
from kl_book.ledger.claims.ground.surrogates import (
    expected_reward,
    gradient_of,
    of_answers,
    of_tokens,
    sampled_by_the_reference,
    sampled_trees,
    token_terms,
)
from kl_book.ledger.claims.ground.updates import every_token
from kl_book.ledger.claims.ground.worlds import hedge_trees
from kl_companion.tabular import Problem, prefix_tree


@claim("QW-2.1-policy")
def the_expected_reward_from_another_sampler() -> Iterator[Found]:
    """Answers of the sampler, weighted by the ratio of the whole answer, have the policy's mean reward."""
    errors = []
    for problem in sampled_trees():
        value = expected_reward(problem)[0]
        by_token = terms(problem).logp.exp().prod(-1)
        errors.append(apart(by_token.sum(), 1.0))
        errors += [
            apart(by_token @ problem.rewards, value),
            apart(of_answers(problem, problem.logits), value),
        ]
    yield from each_form(worst(errors))


@claim("QW-eq2")
def the_gradient_from_another_sampler() -> Iterator[Found]:
    """Both lines: the weighted score of the answer, and the sum of the scores of its tokens."""
    errors = []
    for problem in sampled_trees():
        t, wanted = terms(problem), expected_reward(problem)[1]
        weight = t.p * token_ratios(problem).prod(-1) * problem.rewards
        errors += [apart(mean(weight, t.score), wanted), apart(mean(weight, t.scores.sum(1)), wanted)]
        errors.append(apart(gradient_of(of_answers, problem), wanted))
    yield from each_form(worst(errors))


class Spreads(NamedTuple):
    """Whether answers exceed tokens: the range of log-ratios, their variance, that of gradient terms."""

    ranges: bool
    ratios: bool
    gradients: bool


def _answers_exceed_tokens(problem: Problem) -> Spreads:
    """Of each kind, the answers' number against the largest of the tokens', by position."""
    p, token, answer = terms(problem).p, token_ratios(problem), token_ratios(problem).prod(-1)
    whole = (answer * problem.rewards)[:, None, None] * terms(problem).score
    by_position = token.log().amax(0) - token.log().amin(0)
    return Spreads(
        float(answer.log().max() - answer.log().min()) > float(by_position.max()),
        variance(p, answer) > max(variance(p, token[:, i]) for i in range(token.shape[1])),
        variance(p, whole) > variance(p, token_terms(problem)),
    )


def _chain(length: int) -> Problem:
    """All answers of this length; every token has one distribution under policy and sampler."""
    problem = prefix_tree(2, length)
    policy, sampler = (torch.tensor([[x, 1 - x]], dtype=torch.float64).log() for x in (0.6, 0.5))
    rows = len(problem.logits)
    return problem._replace(logits=policy.expand(rows, 2), behavior_logits=sampler.expand(rows, 2))


@claim("QW-2.2-variance")
def ratios_of_answers_spread() -> Iterator[Found]:
    """Range and variance of an answer's ratio exceed those of its tokens, and grow with the length."""
    found = [_answers_exceed_tokens(sampled_by_the_reference(p)) for p in hedge_trees()]
    ranges, ratios, gradients = ([s[i] for s in found] for i in range(3))
    errors, chi = [hedged(x) for x in (ranges, ratios, gradients)], 0.04  # of (0.6, 0.4) from (0.5, 0.5)
    for length in (1, 2, 4, 7):
        problem = _chain(length)
        t = terms(problem)
        ratio = t.logp.sum(-1).exp() / t.p
        errors.append(apart(variance(t.p, ratio), (1 + chi) ** length - 1))
        errors.append(apart(ratio.log().max() - ratio.log().min(), length * torch.tensor(1.5).double().log()))
    yield from each_form(
        worst(errors),
        number_of_found=len(found),
        sum_of_ratios=sum(ratios),
        sum_of_ranges=sum(ranges),
        sum_of_gradients=sum(gradients),
        number=1.01**100 - 1,
        number_2=1.01**1000 - 1,
    )


@claim("QW-eq3")
def gradient_of_the_token_objective() -> Iterator[Found]:
    """The derivative of eq (3) is eq (4)."""
    errors = []
    for problem in sampled_trees():
        sampled = problem.token_logp(problem.sampled_from).sum(-1).exp()
        errors.append(apart(gradient_of(of_tokens, problem), mean(sampled, token_terms(problem))))
    yield from each_form(worst(errors))


@claim("QW-2.3-reinforce")
def reinforce_with_weights() -> Iterator[Found]:
    """Each token's term is its ratio times that of REINFORCE, which is the exact gradient on-policy."""
    errors = []
    for problem in sampled_trees():
        plain = every_token(problem, problem.rewards)[..., None, None] * terms(problem).scores
        weighted = (token_ratios(problem)[..., None, None] * plain).sum(1)
        errors.append(apart(weighted, token_terms(problem)))
        own = problem._replace(behavior_logits=None)
        errors.append(apart(mean(terms(own).p, plain.sum(1)), expected_reward(own)[1]))
        errors.append(apart(gradient_of(of_tokens, own), expected_reward(own)[1]))
    yield from each_form(worst(errors))
