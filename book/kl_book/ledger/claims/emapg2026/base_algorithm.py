"""Appendices A and B: the base algorithm, its advantages and its PPO mask (emapg2026).

Losses are written out with detached ratios and differentiated over all sequences or all groups; PPO's
objective is differentiated as it stands.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Form, Found, corrected, differs, inside, numbers, printed, same
from kl_book.ledger.claims.ground import errors, estimates
from kl_book.ledger.claims.ground.positions import importance_weighted, moments
from kl_book.ledger.claims.ground.rollouts import SIZES, group, rollouts, two_answers
from kl_book.ledger.claims.ground.sequences import loss_gradient, ratios, surrogate_gradient
from kl_book.ledger.claims.ground.sums import exact, field, terms
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import few_sampled_elsewhere, trees
from kl_companion.tabular import Problem, prefix_tree

LOW, HIGH = 0.2, 0.28  # bounds of the source
BETA = 0.1
Weights = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def one_token_elsewhere() -> list[Problem]:
    """Decisions about one token that another policy samples."""
    return [problem for problem in few_sampled_elsewhere() if problem.rows.shape[1] == 1]


def advantages(problem: Problem) -> torch.Tensor:
    """R minus a number, [count, 1]; one reward is set to that number, for A = 0."""
    return (problem.rewards - problem.rewards[0])[:, None]


def mask(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """M of the source, from the ratio of each token."""
    blocked = ((a > 0) & (s > 1 + HIGH)) | ((a < 0) & (s < 1 - LOW))
    return (~blocked).to(s)


def surrogate(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """PPO's clipped objective of one token."""
    return torch.minimum(s * a, s.clamp(1 - LOW, 1 + HIGH) * a)


def by_scores(weight: torch.Tensor, w: Enumeration) -> torch.Tensor:
    """E[sum_n weight_n A grad log pi_n], [rows, vocab]; ``weight`` is [count, length]."""
    return w.E(w.tokens(weight * advantages(w.problem)))


def by_ppo(problem: Problem) -> torch.Tensor:
    """Gradient of the expected clipped objective, as it stands."""
    return surrogate_gradient(problem, lambda s: surrogate(s, advantages(problem)))


@claim("EMA-appA-ysample", over=each(rollouts))
def samples_of_the_old_policy(w: Enumeration) -> Iterator[Found]:
    """log pi is no distribution; under pi the gradient of J is that of E[R]."""
    logp = w.t.logp.sum(-1)
    yield same(logp.sum(), 1.0)
    yield printed(-float(logp.min()))
    yield same(logp.exp().sum(), 1.0, "corrected")
    yield same(w.Es(w.R), w.d_reward, "corrected")


@words("EMA-appA-ysample")
def log_probs_of_two_answers() -> dict[str, Any]:
    """Of the policy (0.9, 0.1)."""
    first, second = terms(two_answers()).logp.sum(-1)
    return {"first": first, "second": second}


@claim("EMA-appA-mask")
def index_of_the_ratio() -> Iterator[Found]:
    """With the ratio of any fixed token l in the mask of token n it is not PPO's; with s_n it is."""
    off = []
    for w in each(few_sampled_elsewhere)():
        s, a, ppo = ratios(w.problem), advantages(w.problem), by_ppo(w.problem)
        yield same(by_scores(s * mask(s, a), w), ppo, "corrected")
        fixed = s.split(1, dim=-1) if s.shape[1] > 1 else ()
        off += [errors.relative(by_scores(s * mask(x, a), w), ppo) for x in fixed]
    yield printed(min(off))
    s = torch.tensor([1.4, 1.0], dtype=torch.float64)
    own, by_first, by_second = (mask(x, torch.ones(2)) for x in (s, s[[0, 0]], s[[1, 1]]))
    yield numbers(least=min(off), own=own, by_first=by_first, by_second=by_second)


@claim("EMA-appA-mask+equivalent")
def masks_and_ppo() -> Iterator[Found]:
    """s M A s_n has PPO's gradient, one-sided at a bound; the values of the two differ."""
    for w in each(few_sampled_elsewhere)():
        s, a = ratios(w.problem), advantages(w.problem)
        yield same(by_scores(s * mask(s, a), w), by_ppo(w.problem), "inside")
        yield same(w.E((s * mask(s, a) * w.t.logp * a).sum(-1)), w.E(surrogate(s, a).sum(-1)))
    yield differs(by_scores(s, w), by_ppo(w.problem), "inside")
    for sign, at in itertools.product((-1.5, 0.0, 1.5), (0.5, 1 - LOW, 1.0, 1 + HIGH, 1.6)):
        s, a = (torch.tensor([x], dtype=torch.float64) for x in (at, sign))
        sides = [float(surrogate(s + h, a) - surrogate(s, a)) / h for h in (-(2.0**-10), 2.0**-10)]
        yield inside(min(errors.apart(mask(s, a) * sign, side) for side in sides))
    one = torch.ones(1, dtype=torch.float64)  # ratio and advantage
    yield numbers(clipped=surrogate(one, one), masked=math.log(0.5) * mask(one, one))


def _summed(problem: Problem, beta: float, weight: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Expected gradient of -sum_n weight A log pi_n + beta sum_n KL_n; ``weight`` is per answer, [count]."""
    return beta * Enumeration(problem).partial() - field(problem.rewards * weight, problem)


def _misfit(problem: Problem, strength: float) -> float:
    """Relative difference of -J + BETA KL, J over L tokens, from a multiple of -grad E[R] + strength KL.

    The multiple is the one that fits best: a common factor is a step size.
    """
    averaged = _summed(problem, BETA, 1 / problem.completion_mask.sum(-1))
    summed = _summed(problem, strength)
    return errors.relative(averaged, float((averaged * summed).sum() / summed.square().sum()) * summed)


@claim("EMA-appA-norm", over=each(rollouts, trees))
def one_is_averaged_the_other_summed(w: Enumeration) -> Iterator[Found]:
    """With J averaged over L tokens and KL summed, the coefficient is beta L; both summed it is beta."""
    lengths, kl = w.problem.completion_mask.sum(-1), BETA * w.partial()
    form: Form = "printed" if lengths.max() > 1 else "inside"
    yield same(_misfit(w.problem, BETA), 0.0, form)
    yield same(_summed(w.problem, BETA), kl - w.d_reward, "corrected")
    if lengths.min() == lengths.max():  # a fixed length L: beta L is what it is
        yield corrected(_misfit(w.problem, BETA * float(lengths[0])))
        yield same(kl - w.Es(w.R / lengths) * lengths[0], kl - w.d_reward, "corrected")


@words("EMA-appA-norm")
def answers_of_two_tokens() -> dict[str, Any]:
    """How far the gradient is from those of two coefficients; what beta = 0.001 is at 1,000 tokens."""
    problem = prefix_tree(2, 2, seed=1)
    misfits = {"misfit": _misfit(problem, BETA), "misfit_of_twice": _misfit(problem, 2 * BETA)}
    return {"beta": BETA, "twice": 2 * BETA, "long": 0.001 * 1000, **misfits}


@claim("EMA-appA-groupmean", over=each(rollouts))
def moments_of_the_group(w: Enumeration) -> Iterator[Found]:
    """E[V] = E[R], E[std^2] = Var R, and the gradient with A = R - V is 1 - 1/N of that of E[R]."""
    for size in SIZES:
        g = group(w.problem, size)
        yield same(g.expect(g.value), w.E(w.R))
        square = (g.reward - g.value).square().sum(-1) / (size - 1)
        yield same(g.expect(square), w.E(w.R**2) - w.E(w.R) ** 2)
        yield same(g.sum(g.reward - g.value) / size, (1 - 1 / size) * w.d_reward)


@claim("EMA-alg3+group", over=each(rollouts))
def advantages_of_a_prompt(w: Enumeration) -> Iterator[Found]:
    """From N = 2 on the gradient with A = R - V is that of E[R], up to the factor 1 - 1/N."""
    for size in SIZES:
        g = group(w.problem, size)
        yield same(g.sum(g.reward - g.value) / (size - 1), w.d_reward)


@words("EMA-alg3+group")
def advantage_of_a_single_answer() -> dict[str, Any]:
    """With N = 1."""
    alone = group(two_answers(), 1)
    return {"advantage": (alone.reward - alone.value).abs().max()}


@claim("EMA-appA-groupmean+std", over=each(rollouts))
def division_by_the_spread(w: Enumeration) -> Iterator[Found]:
    """At N = 2 the gradient is that of the win rate against itself; only groups of equal rewards have 0/0."""
    beats = (w.R[:, None] - w.R).sign()

    def wins(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.exp()[:, None] * a.exp().detach() * beats).sum()

    for size in SIZES:
        g = group(w.problem, size)
        scaled = (g.reward - g.value) / g.reward.std(-1, keepdim=True)
        flat = (g.reward == g.reward[:, :1]).all(-1)
        yield same(scaled[~flat].std(-1), 1.0)
        if size == 2:
            gradient = g.sum(scaled.where(~flat[:, None], 0.0)) / 2
            yield same(gradient, exact(wins, w.problem)[1] / math.sqrt(2))


@words("EMA-appA-groupmean+std")
def pairs_of_equal_rewards() -> dict[str, Any]:
    """Their share for two answers."""
    g = group(two_answers(), 2)
    return {"equal": g.chance[g.reward[:, 0] == g.reward[:, 1]].sum()}


J: dict[str, Weights] = {
    "PPO": lambda s, a: s * mask(s, a),
    "CISPO": lambda s, a: s.clamp(max=1 + HIGH),
    "GSPO": lambda s, a: s.prod(-1, keepdim=True).expand_as(s) * mask(s.prod(-1, keepdim=True), a),
}


@claim("EMA-appA-mask+orthogonal", over=each(rollouts, one_token_elsewhere))
def any_base_algorithm(w: Enumeration) -> Iterator[Found]:
    """Whatever J is, the KL term adds beta grad KL to the expected gradient of -J."""
    beta, one_token = 0.3, w.problem.rows.shape[1] == 1
    kl = w.d_kl if one_token else w.partial()
    for weight in J.values():
        s = weight(ratios(w.problem), advantages(w.problem))
        both, alone = (loss_gradient(w.problem, s * advantages(w.problem), b) for b in (beta, 0.0))
        yield same(both - alone, beta * kl)
        yield same(alone, -by_scores(s, w))


@claim("EMA-appB-global")
def normalization_over_the_batch() -> Iterator[Found]:
    """Mean 0 and spread 1 over B x N numbers; every prompt keeps its share, as one number divides all."""
    prompts = [(problem, group(problem, 2)) for problem in rollouts()[1:3]]
    drawn = torch.cartesian_prod(*(torch.arange(len(g.chance)) for _, g in prompts)).T
    of_each = [(g.reward - g.value)[i] for (_, g), i in zip(prompts, drawn, strict=True)]
    chance = torch.stack([g.chance[i] for (_, g), i in zip(prompts, drawn, strict=True)]).prod(0)
    a = torch.cat(of_each, -1)
    centered, spread = a - a.mean(-1, keepdim=True), a.std(-1, keepdim=True)
    flat = spread[:, 0] == 0
    z = (centered / spread)[~flat]
    yield same(z.mean(-1), 0.0)
    yield same(z.std(-1), 1.0)
    yield same(a.mean(-1), 0.0)
    for (problem, g), which, x in zip(prompts, drawn, centered.split(2, dim=-1), strict=True):
        weight = torch.where(flat[:, None], 0.0, x) / 2
        update = torch.einsum("g,gi,girv->rv", chance, weight, terms(problem).score[g.drawn[which]])
        yield same(update, Enumeration(problem).d_reward / 2)


@claim("EMA-appB-global+clip", over=each(one_token_elsewhere))
def a_clip_to_one(w: Enumeration) -> Iterator[Found]:
    """clip(s, 1, 1) = 1: the sampled KL with it is the sampled KL without a weight, and biased alike."""
    for estimate in (estimates.k4, estimates.k5):
        value, gradient = moments(importance_weighted(estimate, w.problem, (1.0, 1.0)), w.problem)
        value_without, gradient_without = moments(estimate, w.problem)
        yield same(value, value_without)
        yield same(gradient, gradient_without)
        yield same(gradient, w.grad(estimate))
    yield differs(w.grad(estimates.k4), w.d_kl)
