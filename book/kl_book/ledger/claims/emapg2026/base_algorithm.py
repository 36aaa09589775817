"""Appendices A and B: the base algorithm, its advantages and its PPO mask (emapg2026).

Losses are written out with detached ratios and differentiated over all sequences or all groups; PPO's
objective is differentiated as it stands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, worst
from kl_book.ledger.claims.ground.estimates import k4, k5
from kl_book.ledger.claims.ground.off_policy import mean_gradient
from kl_book.ledger.claims.ground.positions import importance_weighted, moments
from kl_book.ledger.claims.ground.rollouts import (
    SIZES,
    expected_sum,
    group,
    reward_gradient,
    rollouts,
    two_answers,
)
from kl_book.ledger.claims.ground.sequences import partial_gradient
from kl_book.ledger.claims.ground.sums import exact, field, kl_gradient, mean, terms
from kl_book.ledger.claims.ground.worlds import few_sampled_elsewhere, trees
from kl_companion.tabular import Problem, prefix_tree

LOW, HIGH = 0.2, 0.28  # bounds of the source
Weights = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def ratios(problem: Problem) -> torch.Tensor:
    """pi/mu of every token, 1 outside the mask, [count, length]."""
    return (terms(problem).logp - problem.token_logp(problem.sampled_from)).exp()


def advantages(problem: Problem) -> torch.Tensor:
    """R minus a number, [count, 1]; one reward is set to that number, for A = 0."""
    a = problem.rewards - problem.rewards[0]
    return a[:, None]


def mask(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """M of the source, from the ratio of each token."""
    blocked = ((a > 0) & (s > 1 + HIGH)) | ((a < 0) & (s < 1 - LOW))
    return (~blocked).to(s)


def surrogate(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """PPO's clipped objective of one token."""
    return torch.minimum(s * a, s.clamp(1 - LOW, 1 + HIGH) * a)


def by_scores(weight: torch.Tensor, problem: Problem) -> torch.Tensor:
    """E[sum_n weight_n A grad log pi_n], [rows, vocab]; ``weight`` is [count, length]."""
    t = terms(problem)
    kept = weight * advantages(problem) * problem.completion_mask
    return mean(t.p, torch.einsum("in,inrv->irv", kept, t.scores))


def by_ppo(problem: Problem) -> torch.Tensor:
    """Gradient of the expected clipped objective, as it stands."""
    theta = problem.logits.detach().clone().requires_grad_()
    behavior = problem.token_logp(problem.sampled_from).detach()
    s = (problem.token_logp(theta) - behavior).exp()
    each = surrogate(s, advantages(problem).expand_as(s)) * problem.completion_mask
    (gradient,) = torch.autograd.grad((behavior.sum(-1).exp() @ each).sum(), theta)
    return gradient


@claim("EMA-appA-ysample")
def samples_of_the_old_policy() -> Iterator[Found]:
    """log pi is no distribution; under pi the gradient of J is that of E[R]."""
    printed, corrected = [], []
    for problem in rollouts():
        logp = terms(problem).logp.sum(-1)
        printed += [apart(logp.sum(), 1.0), max(0.0, float(-logp.min()))]
        corrected += [apart(logp.exp().sum(), 1.0)]
        corrected.append(apart(field(problem.rewards, problem), reward_gradient(problem)))
    logp = terms(two_answers()).logp.sum(-1)
    yield from each_form(worst(printed), worst(corrected), float=float(logp[0]), float_2=float(logp[1]))


@claim("EMA-appA-mask")
def index_of_the_ratio() -> Iterator[Found]:
    """With the ratio of any fixed token l in the mask of token n it is not PPO's; with s_n it is."""
    printed, corrected = [], []
    for problem in few_sampled_elsewhere():
        s, wanted = ratios(problem), by_ppo(problem)
        corrected.append(apart(by_scores(s * mask(s, advantages(problem)), problem), wanted))
        if s.shape[1] > 1:
            fixed = [s[:, n : n + 1].expand_as(s) for n in range(s.shape[1])]
            readings = [by_scores(s * mask(x, advantages(problem)), problem) for x in fixed]
            printed.append(min(relative(x, wanted) for x in readings))
    s = torch.tensor([1.4, 1.0], dtype=torch.float64)
    own, by_first, by_second = (_row(mask(x, torch.ones(2))) for x in (s, s[[0, 0]], s[[1, 1]]))
    yield from each_form(
        min(printed),
        worst(corrected),
        min_printed=min(printed),
        own=own,
        by_first=by_first,
        by_second=by_second,
    )


def _row(x: torch.Tensor) -> str:
    return "(" + ", ".join(f"{float(v):g}" for v in x) + ")"


@claim("EMA-appA-mask+equivalent")
def masks_and_ppo() -> Iterator[Found]:
    """s M A s_n has PPO's gradient, one-sided at a bound; the values of the two differ."""
    printed, inside = [], []
    for problem in few_sampled_elsewhere():
        s, a = ratios(problem), advantages(problem)
        m = mask(s, a)
        inside.append(apart(by_scores(s * m, problem), by_ppo(problem)))
        masked, clipped = (s * m * terms(problem).logp * a).sum(-1), surrogate(s, a).sum(-1)
        printed.append(apart(mean(terms(problem).p, masked), mean(terms(problem).p, clipped)))
    inside.append(
        differs(
            by_scores(ratios(few_sampled_elsewhere()[-1]), few_sampled_elsewhere()[-1]),
            by_ppo(few_sampled_elsewhere()[-1]),
        )
    )
    for sign in (-1.5, 0.0, 1.5):
        for at in (0.5, 1 - LOW, 1.0, 1 + HIGH, 1.6):
            s, advantage = (torch.tensor([x], dtype=torch.float64) for x in (at, sign))
            h = 2.0**-10
            sides = [float(surrogate(s + x, advantage) - surrogate(s, advantage)) / x for x in (-h, h)]
            inside.append(min(apart(mask(s, advantage) * sign, side) for side in sides))
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        value_surrogate=_value(surrogate),
        number=math.log(0.5) * _value(lambda s, a: mask(s, a) * s * a),
    )


def _value(f: Weights) -> float:
    """Of one token with A = 1, sampled on-policy."""
    one = torch.ones(1, dtype=torch.float64)
    return float(f(one, one))


def _summed(problem: Problem, beta: float, weight: torch.Tensor) -> torch.Tensor:
    """Expected gradient of -sum_n weight A log pi_n + beta sum_n KL_n; ``weight`` is per answer, [count]."""
    return beta * partial_gradient(problem) - field(problem.rewards * weight, problem)


def _misfit(problem: Problem, beta: float, strength: float) -> float:
    """Relative difference of -J + beta KL, J over L tokens, from a multiple of -grad E[R] + strength KL.

    The multiple is the one that fits best: a common factor is a step size.
    """
    found = _summed(problem, beta, 1 / problem.completion_mask.sum(-1))
    right = _summed(problem, strength, torch.ones_like(problem.rewards))
    return relative(found, float((found * right).sum() / right.square().sum()) * right)


@claim("EMA-appA-norm")
def one_is_averaged_the_other_summed() -> Iterator[Found]:
    """With J averaged over L tokens and KL summed, the coefficient is beta L; both summed it is beta."""
    printed: list[float] = []
    inside: list[float] = []
    corrected: list[float] = []
    beta = 0.1
    for problem in (*rollouts(), *trees()):
        lengths = problem.completion_mask.sum(-1)
        (printed if lengths.max() > 1 else inside).append(_misfit(problem, beta, beta))
        if lengths.min() == lengths.max():  # a fixed length L: beta L is what it is
            corrected.append(_misfit(problem, beta, beta * float(lengths[0])))
            averaged = beta * partial_gradient(problem) / lengths[0] - field(
                problem.rewards / lengths, problem
            )
            corrected.append(
                apart(averaged * lengths[0], beta * partial_gradient(problem) - reward_gradient(problem))
            )
        both = _summed(problem, beta, torch.ones_like(problem.rewards))
        corrected.append(apart(both, beta * partial_gradient(problem) - reward_gradient(problem)))
    problem = prefix_tree(2, 2, seed=1)
    yield from each_form(
        worst([*printed, *inside]),
        worst(corrected),
        inside=worst(inside),
        beta=beta,
        misfit_problem=_misfit(problem, beta, beta),
        misfit_problem_2=_misfit(problem, beta, 2 * beta),
        number=2 * beta,
        number_2=0.001 * 1000,
    )


@claim("EMA-appA-groupmean")
def moments_of_the_group() -> Iterator[Found]:
    """E[V] = E[R], E[std^2] = Var R, and the gradient with A = R - V is 1 - 1/N of that of E[R]."""
    errors = []
    for problem in rollouts():
        p, gradient = terms(problem).p, reward_gradient(problem)
        value = float(mean(p, problem.rewards))
        spread = float(mean(p, problem.rewards**2)) - value**2
        for size in SIZES:
            g = group(problem, size)
            square = (g.reward - g.value).square().sum(-1) / (size - 1)
            errors += [apart(g.expect(g.value), value), apart(g.expect(square), spread)]
            found = expected_sum(g.reward - g.value, problem, g) / size
            errors.append(apart(found, (1 - 1 / size) * gradient))
    yield from each_form(worst(errors))


@claim("EMA-alg3+group")
def advantages_of_a_prompt() -> Iterator[Found]:
    """From N = 2 on the gradient with A = R - V is that of E[R], up to the factor 1 - 1/N."""
    errors = []
    for problem in rollouts():
        for size in SIZES:
            g = group(problem, size)
            found = expected_sum(g.reward - g.value, problem, g) / (size - 1)
            errors.append(apart(found, reward_gradient(problem)))
    alone = group(two_answers(), 1)
    yield from each_form(worst(errors), float=float((alone.reward - alone.value).abs().max()))


@claim("EMA-appA-groupmean+std")
def division_by_the_spread() -> Iterator[Found]:
    """At N = 2 the gradient is that of the win rate against itself; only groups of equal rewards have 0/0."""
    errors = []
    for problem in rollouts():
        beats = (problem.rewards[:, None] - problem.rewards).sign()

        def wins(a: torch.Tensor, b: torch.Tensor, beats: torch.Tensor = beats) -> torch.Tensor:
            return (a.exp()[:, None] * a.exp().detach() * beats).sum()

        for size in SIZES:
            g = group(problem, size)
            scaled = (g.reward - g.value) / g.reward.std(-1, keepdim=True)
            flat = (g.reward == g.reward[:, :1]).all(-1)
            errors.append(apart(scaled[~flat].isnan().double(), 0.0))
            errors.append(apart(scaled[~flat].std(-1), 1.0))
            if size == 2:
                found = expected_sum(scaled.where(~flat[:, None], 0.0), problem, g) / 2
                errors.append(apart(found, exact(wins, problem)[1] / math.sqrt(2)))
    g = group(two_answers(), 2)
    equal = float(g.chance[(g.reward == g.reward[:, :1]).all(-1)].sum())
    yield from each_form(worst(errors), equal=equal)


@claim("EMA-appA-mask+orthogonal")
def any_base_algorithm() -> Iterator[Found]:
    """Whatever J is, the KL term adds beta grad KL to the expected gradient of -J."""
    errors, beta = [], 0.3
    kinds: dict[str, Weights] = {
        "PPO": lambda s, a: s * mask(s, a),
        "CISPO": lambda s, a: s.clamp(max=1 + HIGH),
        "GSPO": lambda s, a: s.prod(-1, keepdim=True).expand_as(s) * mask(s.prod(-1, keepdim=True), a),
    }
    for problem in (*rollouts(), *(p for p in few_sampled_elsewhere() if p.rows.shape[1] == 1)):
        for weight in kinds.values():
            s = weight(ratios(problem), advantages(problem)).detach()
            both, alone = _loss_gradient(problem, s, beta), _loss_gradient(problem, s, 0.0)
            kl = kl_gradient(problem) if problem.rows.shape[1] == 1 else partial_gradient(problem)
            errors += [apart(both - alone, beta * kl), apart(alone, -by_scores(s, problem))]
    yield from each_form(worst(errors))


def _loss_gradient(problem: Problem, weight: torch.Tensor, beta: float) -> torch.Tensor:
    """Gradient of E[-J + beta KL], J with detached weights, KL exact at every visited prefix."""
    theta = problem.logits.detach().clone().requires_grad_()
    p = terms(problem).p
    logp, ref = theta.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    per_row = (logp.exp() * (logp - ref)).sum(-1)
    j = (weight * advantages(problem) * problem.token_logp(theta)).sum(-1)
    kl = (per_row[problem.rows] * problem.completion_mask).sum(-1)
    (gradient,) = torch.autograd.grad(p @ (-j + beta * kl), theta)
    return gradient


@claim("EMA-appB-global")
def normalization_over_the_batch() -> Iterator[Found]:
    """Mean 0 and spread 1 over B x N numbers; every prompt keeps its share, as one number divides all."""
    errors = []
    one, two = rollouts()[1:3]
    g, h = group(one, 2), group(two, 2)
    first, second = (
        i.flatten() for i in torch.meshgrid(*map(torch.arange, (len(g.chance), len(h.chance))), indexing="ij")
    )
    chance = g.chance[first] * h.chance[second]
    a = torch.cat([(g.reward - g.value)[first], (h.reward - h.value)[second]], -1)
    spread = a.std(-1, keepdim=True)
    flat = spread[:, 0] == 0
    z = ((a - a.mean(-1, keepdim=True)) / spread)[~flat]
    errors += [apart(z.mean(-1), 0.0), apart(z.std(-1), 1.0), apart(a.mean(-1), 0.0)]
    for problem, x, columns, which in ((one, g, [0, 1], first), (two, h, [2, 3], second)):
        undone = torch.where(flat[:, None], 0.0, (a - a.mean(-1, keepdim=True)))[:, columns]
        found = torch.einsum("g,gi,girv->rv", chance, undone / 2, terms(problem).score[x.drawn[which]])
        errors.append(apart(found, reward_gradient(problem) / 2))
    yield from each_form(worst(errors))


@claim("EMA-appB-global+clip")
def a_clip_to_one() -> Iterator[Found]:
    """clip(s, 1, 1) = 1: the sampled KL with it is the sampled KL without a weight, and biased alike."""
    errors = []
    for problem in (p for p in few_sampled_elsewhere() if p.rows.shape[1] == 1):
        for estimate in (k4, k5):
            value, gradient = moments(importance_weighted(estimate, problem, (1.0, 1.0)), problem)
            without = moments(estimate, problem)
            errors += [apart(value, without[0]), apart(gradient, without[1])]
            errors.append(apart(gradient, mean_gradient(estimate, problem)))
        errors.append(differs(mean_gradient(k4, problem), kl_gradient(problem)))
    yield from each_form(worst(errors))
