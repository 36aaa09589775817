"""Figure 2 and appendices C, G and H: scales of coefficients and weak rewards (ding2026misfires)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground.calibration import (
    AnswerGroups,
    calibrated,
    every_group,
    mean_drift,
    mixed_groups,
    stale,
)
from kl_book.ledger.claims.ground.errors import excess, relative
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.updates import binary, graded_trees, population_mean, regularized
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem

SIZE = 16  # answers per prompt in the source
EPSILON = 1e-6
BETA, TAU = 0.04, 1e-3
OTHERS = SIZE - 1


def _example() -> Enumeration:
    """Appendix G: 16 answers of one token, policy 0.4 and 0.6/15, reference 0.2 and 0.8/15."""
    return two([0.4, *[0.6 / OTHERS] * OTHERS], [0.2, *[0.8 / OTHERS] * OTHERS])


def _once() -> AnswerGroups:
    """Every answer of the example once."""
    return AnswerGroups(_example().problem, torch.arange(SIZE)[None])


def _rewards(tau: float) -> torch.Tensor:
    """One pair (tau, -tau), then seven pairs (1, -1), [1, 16]; the weak ones stand first."""
    return torch.tensor([[tau, -tau, *[1.0, -1.0] * 7]], dtype=torch.float64)


def _advantage(tau: float) -> torch.Tensor:
    """Centered, over the sample standard deviation and a small number, [1, 16]."""
    x = _rewards(tau)
    return centered(x, "mean") / (x.std(-1, keepdim=True) + EPSILON)


def _steps(tau: float, beta: float) -> torch.Tensor:
    """Coefficients of the scores in a descent step on reward and k3 loss, every answer once, [16]."""
    return -(_once().slopes(_advantage(tau)) + beta * _once().k3)[0, :, 0]


@claim("ZCPO-fig2-zero", over=graded_trees)
def coefficients_that_sum_to_zero_do_not_make_the_update_zero(problem: Problem) -> Iterator[Found]:
    """The scores that they weigh differ."""
    g = every_group(problem, 3)
    yield same(g.joint(4.0).sum(-1), 0.0)
    g = g.where(g.joint(4.0).abs().sum(-1) > 1e-9)
    total = g.contributions(g.slopes(g.joint(4.0))).sum((1, 2)).flatten(1).norm(dim=-1)
    yield less(0.0, float(total.max()))


@claim("ZCPO-fig2-onlynoise", over=each(bandits, trees))
def what_the_exact_kl_takes_away(w: Enumeration) -> Iterator[Found]:
    """Of the value, the noise of the token alone; of the update of a bandit, all that the KL adds."""
    along, drift = token_kls(w.problem, w.problem.logits), mean_drift(w.problem)
    if len(w.problem.logits) == 1:
        lost = relative(w.Es(drift), w.Es(w.l))
        yield same(w.Es(w.l), w.d_kl, "inside")
        yield printed(lost)
        yield observed(lost)
        return
    for row in range(len(w.problem.logits)):
        here = (w.problem.rows == row) & (w.problem.completion_mask > 0)
        reach = w.p[:, None].expand_as(along)[here]
        yield same((reach * w.t.log_ratio[here]).sum() / reach.sum(), along[here][0], "inside")
    yield differs(drift, drift[0], "inside")  # prefixes still vary


@claim("ZCPO-C-open", over=stale)
def at_the_sampler_every_gate_is_open(problem: Problem) -> Iterator[Found]:
    """All ratios are 1, and the slope of the surrogate is minus the coefficient."""
    g = every_group(problem._replace(behavior_logits=None), 2)
    yield same(g.ratio, 1.0)
    yield same(g.gates(g.left), 1.0)
    yield same(g.slopes(g.left), -g.left[..., None] * g.mask)


@claim("ZCPO-C-bounded")
def both_normalizations_are_bounded() -> Iterator[Found]:
    """|A|/std is at most (G - 1)/sqrt G with the sample deviation, and one right answer of G reaches it."""
    within = []
    for size in (2, 4, SIZE):
        number, lone = torch.arange(size, dtype=torch.float64), torch.eye(size, dtype=torch.float64)[:1]
        rewards = torch.cat([lone, lone * 1e6, *[(number**power)[None] for power in range(1, 6)]])
        variance, bound = rewards.var(-1), (size - 1) / math.sqrt(size)
        ratio = centered(rewards, "mean") / rewards.std(-1, keepdim=True)
        within += [bool(x <= bound + 1e-12) for x in ratio.abs().amax(-1)]
        yield same(ratio[0, 0], bound, "corrected")
        # the gap to the bound is a square: this is the proof
        others = centered(rewards[:, 1:], "mean").square().sum(-1)
        gap = variance * bound**2 - centered(rewards, "mean")[:, 0] ** 2
        yield same(gap / variance, (size - 1) / size * others / variance, "corrected")
        by_maximum = calibrated(rewards, torch.zeros_like(rewards), 0.0)
        yield at_most(by_maximum.abs(), 1.0 + 1e-12, "corrected")
    yield printed(share_of_cases(within))
    yield numbers(size=SIZE, bound=bound)


@claim("ZCPO-G-std", over=lambda: (0.5, TAU, 1e-9))
def the_weak_advantage(tau: float) -> Iterator[Found]:
    """sigma = sqrt((14 + 2 tau^2) / 15); the advantage of the weak pair goes to 0 with tau."""
    yield same(_rewards(tau).std(-1), math.sqrt((14 + 2 * tau**2) / 15))
    yield at_most(_advantage(tau)[0, 0], 1.1 * tau)
    yield same(_once().slopes(_advantage(tau))[..., 0], -_advantage(tau))


@claim("ZCPO-eq3")
def coefficients_of_the_weak_pair() -> Iterator[Found]:
    """A - beta(1 - exp(-Delta)) and -A + beta/3, with the printed numbers."""
    steps, advantage, log_ratio = _steps(TAU, BETA), _advantage(TAU)[0], _example().l
    yield same(steps, advantage - BETA * (1 - (-log_ratio).exp()))
    yield same(steps[1], -advantage[0] + BETA / 3)
    yield printed(excess(float(advantage[0]), "0.0010351"))
    yield printed(excess(float(steps[0]), "-0.0189649"))
    yield printed(excess(float(steps[1]), "0.0122982"))
    yield same(log_ratio[:2].exp(), torch.tensor([2.0, 0.75]))


@claim("ZCPO-G-sign", over=lambda: (10.0, BETA, 1e-4))
def a_weak_reward_is_outweighed_by_every_coefficient(beta: float) -> Iterator[Found]:
    """For every beta tried, a small enough tau reverses both answers of the pair."""
    for tau in (min(beta, 1.0) / 10, 1e-12):
        first, second = _steps(tau, beta)[:2]
        yield at_most(first, 0.0)
        yield at_most(0.0, second)
    yield same(first, -beta / 2)
    yield same(second, beta / 3)


@claim("ZCPO-eq4")
def the_largest_coefficient_without_reversal() -> Iterator[Found]:
    """beta up to 1 / max lambda reverses no conflicting answer, a larger one does; ratios are beta lambda."""
    advantage, log_ratio = _advantage(TAU)[0], _example().l
    conflict = advantage * log_ratio > 0
    strength = (_once().k3[0, :, 0].abs() / advantage.abs())[conflict]  # |1 - exp(-Delta)| / (|A| r)
    yield same(strength, ((1 - (-log_ratio).exp()).abs() / advantage.abs())[conflict])
    for factor, reversed_somewhere in ((0.999, False), (1.001, True)):
        beta = factor / float(strength.max())
        against = (_steps(TAU, beta) * advantage < 0)[conflict]
        yield printed(float(bool(against.any()) != reversed_somewhere))
        kl = (_steps(TAU, 0.0) - _steps(TAU, beta)).abs()
        yield same((kl / advantage.abs())[conflict], beta * strength)


@claim("ZCPO-G1-decomposition", over=mixed_groups)
def shared_drift_and_scales_drop_out(g: AnswerGroups) -> Iterator[Found]:
    """A common drift, and the unit of what is left of the rewards, leave C; the largest reward part is 1."""
    pull = 4.0 * g.pull
    by_hand = g.left / g.left.abs().amax(-1, keepdim=True) - pull
    yield same(calibrated(5.0 + 1e-3 * g.rewards, g.drift + 0.3, 4.0), by_hand)
    yield same(g.joint(0.0).abs().amax(-1), 1.0)
    yield same((g.joint(4.0) - g.joint(0.0)).abs().amax(-1), pull.abs().amax(-1))


@claim("ZCPO-G1-mixed", over=lambda: map(binary, bandits()[:6]))
def chance_of_a_group_with_both_rewards(problem: Problem) -> Iterator[Found]:
    """1 - p^G - (1 - p)^G, and what one more answer adds."""
    p, before = population_mean(problem, problem.rewards), None
    for size in (2, 3, 4):
        chance = float(groups(problem, size)[0][~every_group(problem, size).equal].sum())
        yield same(chance, 1 - p**size - (1 - p) ** size)
        if before is not None:
            yield same(chance - before, p ** (size - 1) * (1 - p) + (1 - p) ** (size - 1) * p)
        before = chance
    yield same(p, regularized(problem, 0.0)[0])


@claim("ZCPO-G1-d0")
def the_weak_pair_under_calibration() -> Iterator[Found]:
    """All drifts are .4 log 2 + .6 log .75 = .10465, and the weak pair gets tau and -tau."""
    drift = mean_drift(_example().problem)[None]
    yield same(drift, 0.4 * math.log(2) + 0.6 * math.log(0.75))
    yield same(drift, _example().kl)
    yield printed(excess(float(drift[0, 0]), "0.10465"))
    yield same(calibrated(_rewards(TAU), drift, BETA), _rewards(TAU))


@claim("ZCPO-H-identity", over=each(bandits))
def mean_log_ratio_of_the_samplers_tokens(w: Enumeration) -> Iterator[Found]:
    """For tokens of the sampler itself the log-ratio has the KL there as its mean."""
    yield same(w.E(w.l), w.kl)
