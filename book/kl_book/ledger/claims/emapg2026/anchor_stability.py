"""Section 4: the lag of the EMA anchor, lemmas 4.1 and 4.2 (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.anchors import (
    NO_OSCILLATION,
    OSCILLATING,
    UNSTABLE,
    Rates,
    Walks,
    all_walks,
    apart_by_size,
    changing_fisher,
    ema_cycle,
    ema_step,
    fishers,
    normal,
    softmax_pull,
    top_curvature,
    walks,
)
from kl_book.ledger.claims.ground.errors import apart, violation, worst
from kl_book.ledger.claims.ground.rollouts import reward_gradient
from kl_book.ledger.claims.ground.sums import field
from kl_book.ledger.claims.ground.worlds import bandits, trees

LENGTHS = (1, 2, 7)
Threshold = Callable[[float, int], float]


@claim("EMA-eq4-6")
def joint_map_of_policy_and_lag() -> Iterator[Found]:
    """The block matrix of eq (6) against the loop, with another matrix and gradient at every step."""
    errors, unit = [], torch.eye(6, dtype=torch.float64)
    for eta, alpha, beta in ((0.0, 0.3, 0.1), (0.5, 0.1, 2.0), (0.95, 1.0, 0.0), (0.9, 0.5, 0.7)):
        theta, anchor = normal(2, 6, seed=2)
        joint = torch.cat([theta, theta - anchor])
        for t, gradient in enumerate(normal(5, 6, seed=3)):
            matrix, pull = changing_fisher(t), changing_fisher(t) @ (theta - anchor)
            plain = theta + alpha * gradient - alpha * beta * pull  # eq (5)
            theta, anchor = ema_step(theta, anchor, gradient, pull, Rates(eta, alpha, beta))
            upper = torch.cat([unit, -alpha * beta * matrix], 1)
            lower = torch.cat([0 * unit, eta * unit - alpha * beta * matrix], 1)
            joint = torch.cat([upper, lower]) @ joint + alpha * torch.cat([gradient, gradient])
            errors += [apart(plain, theta), apart_by_size(joint, torch.cat([theta, theta - anchor]))]
    yield from each_form(worst(errors))


@claim("EMA-eq4-6+g")
def policy_gradient_of_one_sample() -> Iterator[Found]:
    """R times the score is one sample's gradient; its mean is that of the expected reward."""
    errors = []
    for problem in (*bandits(), *trees()):
        errors.append(apart(field(problem.rewards, problem), reward_gradient(problem)))
    yield from each_form(worst(errors))


def _closed(x: Walks, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(S_k, M_k) of lemma 4.1 in closed form, [settings, d, d] each."""
    d = x.contraction
    unit = torch.eye(d.shape[-1], dtype=d.dtype)
    inverse = torch.linalg.inv(unit - d)
    s = (unit - torch.linalg.matrix_power(d, k)) @ inverse
    return s, (k * unit - s) @ inverse


def _block(x: Walks, k: int) -> torch.Tensor:
    """(theta, lag) after k steps by the block matrix of lemma 4.1, [2, settings, d]."""
    s, m = _closed(x, k)
    alpha, beta = x.by.alpha[..., None], x.by.beta[..., None]

    def times(matrix: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nij,nj->ni", matrix, v)

    unit = torch.eye(len(x.fisher), dtype=torch.float64)
    theta = x.theta - times(alpha * beta * x.fisher @ s, x.lag)
    theta = theta + times(alpha * k * unit - alpha**2 * beta * x.fisher @ m, x.gradient)
    power = torch.linalg.matrix_power(x.contraction, k)
    return torch.stack([theta, times(power, x.lag) + times(alpha * s, x.gradient)])


@claim("EMA-lem4.1")
def k_steps_at_once() -> Iterator[Found]:
    """Sums and block matrix in closed form; stable or not, with singular F as well."""
    errors = []
    for x in all_walks():
        d, unit = x.contraction, torch.eye(len(x.fisher), dtype=torch.float64)
        errors.append(violation(*(1e-4 - torch.linalg.eigvalsh(unit - d)[:, 0]).tolist()))
        for k in LENGTHS:
            theta, anchor = x.walk(k)[-1]
            errors.append(apart_by_size(_block(x, k), torch.stack([theta, theta - anchor])))
            sums = [sum((torch.linalg.matrix_power(d, j) for j in range(n)), 0 * d) for n in range(k + 1)]
            errors += [
                apart_by_size(a, b)
                for a, b in zip(_closed(x, k), (sums[k], sum(sums[:k], 0 * d)), strict=True)
            ]
    yield from each_form(worst(errors))


def _drifting_transient() -> float:
    """Error of "each step shrinks the transient", F new at every step, always just below the threshold."""
    errors, theta, anchor = [], normal(6, seed=32), torch.zeros(6, dtype=torch.float64)
    for t in range(30):
        eta, matrix, before = 0.9, changing_fisher(t), (theta - anchor).norm()
        by = Rates(eta, 1.0, 0.98 * (1 + eta) / float(torch.linalg.eigvalsh(matrix)[-1]))
        theta, anchor = ema_step(theta, anchor, 0.0, matrix @ (theta - anchor), by)
        errors.append(violation(float((theta - anchor).norm() - 0.97 * before)))
    return worst(errors)


@claim("EMA-lem4.1+eq7")
def nearly_constant_is_enough() -> Iterator[Found]:
    """The error of lemma 4.1 falls with the changes of g and F: a tenth of these leaves a tenth of it."""
    errors, k = [], 8
    x = walks(fishers()[1], NO_OSCILLATION + OSCILLATING)
    wanted = _block(x, k)
    noise, push = normal(k, 6, 6, seed=30), normal(k, *x.gradient.shape, seed=31)
    found = []
    for size in (1e-2, 1e-3, 1e-4):
        theta, anchor = x.theta, x.anchor
        for t in range(k):
            change = size * (noise[t] + noise[t].T)
            pull = (theta - anchor) @ (x.fisher + change)
            theta, anchor = ema_step(theta, anchor, x.gradient + size * push[t], pull, x.by)
        found.append((torch.stack([theta, theta - anchor]) - wanted).abs().amax((0, 2)))
    for coarse, fine in pairwise(found):
        errors.append(violation(*(fine - 0.15 * coarse).tolist()))
    errors.append(_drifting_transient())
    yield from each_form(worst(errors))


@claim("EMA-lem4.2-eq8")
def modes_of_the_lag() -> Iterator[Found]:
    """Transient and particular solution of each mode, against the loop projected on the eigenvectors."""
    errors = []
    for x in all_walks():
        chi = x.by.eta - x.strength
        for k in LENGTHS:
            pushed = x.by.alpha * (1 - chi**k) / (1 - chi) * x.modes(x.gradient)
            errors.append(apart_by_size(chi**k * x.modes(x.lag) + pushed, x.modes(x.lags(k)[-1])))
    yield from each_form(worst(errors))


def _left(x: Walks, steps: int) -> torch.Tensor:
    """Size of the transient after so many steps of eqs (2) and (5), relative to the start, [settings]."""
    lags = x.lags(steps, push=False)
    return lags[-1].norm(dim=-1) / lags[0].norm(dim=-1)


def _stays(x: Walks, steps: int) -> float:
    """Error of "the steepest mode never shrinks", relative to its size."""
    top = x.modes(x.lags(steps, push=False))[..., -1].abs()
    return violation(*(1 - top[1:] / top[:-1] - 1e-9).flatten().tolist())


@claim("EMA-lem4.2-eq9")
def stable_below_one_plus_eta() -> Iterator[Found]:
    """Two percent below the threshold the transient dies, two percent above it grows, at it it stays."""
    errors = []
    for x in all_walks(((0.98, 0.98),), (0.0, 0.5, 0.9)):
        errors.append(violation(*(_left(x, 300) - 0.01).tolist()))
    for x in all_walks(((1.0, 1.0), (1.02, 1.02))):
        errors.append(_stays(x, 20))
    for x in all_walks(((1.02, 1.02),)):
        errors.append(violation(*(1 - _left(x, 300)).tolist()))
    bound = (1 + 0.9) / (1e-6 * 1e-3)
    yield from each_form(worst(errors), bound=bound)


@claim("EMA-lem4.2-r1")
def the_calm_regime() -> Iterator[Found]:
    """Up to eta: every mode keeps its sign and shrinks by chi between 0 and eta; all of them die out."""
    errors = []
    for x in all_walks(NO_OSCILLATION):
        lags = x.modes(x.lags(12, push=False))
        chi = x.by.eta - x.strength
        errors += [violation(*(-chi - 1e-12).flatten().tolist(), *(chi - x.by.eta).flatten().tolist())]
        errors.append(apart_by_size(lags[1:], chi * lags[:-1]))
        errors.append(violation(*(-lags[1:] * lags[:-1]).flatten().tolist()))
    for x in all_walks(NO_OSCILLATION, (0.0, 0.5, 0.9)):
        errors.append(violation(*(_left(x, 300) - 1e-6).tolist()))
    yield from each_form(worst(errors))


@claim("EMA-lem4.2-r2")
def the_ringing_regime() -> Iterator[Found]:
    """Between eta and 1 + eta: the steepest mode changes its sign at every step; the lag dies out."""
    errors = []
    for x in all_walks(OSCILLATING):
        top = x.modes(x.lags(5, push=False))[..., -1]
        flips = top[1:] * top[:-1] / top[:-1].square()
        errors.append(violation(*(flips + 0.04).flatten().tolist()))
    for x in all_walks(OSCILLATING, (0.0, 0.5, 0.9)):
        errors.append(violation(*(_left(x, 300) - 0.01).tolist()))
    yield from each_form(worst(errors))


def _softmax_lag(factor: float, steps: int = 600, eta: float = 0.9) -> tuple[float, float]:
    """Largest lag over all steps and over the last tenth, true KL of one softmax, from a lag of 1e-3."""
    theta = bandits()[7].logits[0]
    push = normal(6, seed=8)
    anchor = theta - 1e-3 * (push - push.mean()) / (push - push.mean()).norm()
    by = Rates(eta, 1.0, factor * (1 + eta) / top_curvature(theta))
    sizes = []
    for _ in range(steps):
        theta, anchor = ema_step(theta, anchor, 0.0, softmax_pull(theta, anchor), by)
        sizes.append(float((theta - anchor).norm()))
    return max(sizes), max(sizes[-steps // 10 :])


@claim("EMA-lem4.2-r3")
def the_unstable_regime() -> Iterator[Found]:
    """From 1 + eta on the steepest mode never shrinks."""
    errors = [_stays(x, 20) for x in all_walks(UNSTABLE)]
    errors += [violation(*(1 - _left(x, 300)).tolist()) for x in all_walks(UNSTABLE[1:])]
    high, late = _softmax_lag(1.1)
    yield from each_form(worst(errors), high=high, late=late)


def _cycles(a: float, eta: float, steps: int, cycles: int = 200) -> float:
    """What is left of a lag of one after so many cycles of Algorithm 3, in the steepest mode."""
    theta, anchor = 1.0, 0.0
    for _ in range(cycles):
        theta, anchor = ema_cycle(theta, anchor, 0.0, lambda t, x: t - x, Rates(eta, 1.0, a), steps)
    return abs(theta - anchor)


def _softmax_cycles(a: float, eta: float, steps: int, cycles: int = 30) -> float:
    """The same with the true KL of a softmax, from a lag of 1e-6 in its steepest direction."""
    theta = bandits()[7].logits[0]
    p = theta.softmax(-1)
    steepest = torch.linalg.eigh(p.diag() - p[:, None] * p).eigenvectors[:, -1]
    anchor, by = theta - 1e-6 * steepest, Rates(eta, 1.0, a / top_curvature(theta))
    for _ in range(cycles):
        theta, anchor = ema_cycle(theta, anchor, 0.0, softmax_pull, by, steps)
    return float((theta - anchor).norm()) / 1e-6


PERIODS = ((0.5, 1), (0.9, 1), (0.95, 1), (0.5, 2), (0.9, 10), (0.95, 10), (0.9, 40))


def _exactness(
    threshold: Threshold, left: Callable[[float, float, int], float], periods: tuple[tuple[float, int], ...]
) -> float:
    """Share of (eta, T) where the lag does not die out 2 percent below and grow 2 percent above it."""
    wrong = 0
    for eta, steps in periods:
        low, high = (left(c * threshold(eta, steps), eta, steps) for c in (0.98, 1.02))
        wrong += not (low < 0.5 and high > 1)
    return wrong / len(periods)


def _within(a: float) -> float:
    """The lag of one after a gradient step, before the anchor moves."""
    return float(ema_cycle(1.0, 0.0, 0.0, lambda t, x: t - x, Rates(0.9, 1.0, a), 1)[0])


def _plain(a: float, eta: float, steps: int) -> float:
    """As `_cycles`, with eqs (2) and (5)."""
    theta, anchor = 1.0, 0.0
    for _ in range(200):
        theta, anchor = ema_step(theta, anchor, 0.0, theta - anchor, Rates(eta, 1.0, a))
    return abs(theta - anchor)


@claim("EMA-lem4.2-exact")
def exact_for_another_order() -> Iterator[Found]:
    """Algorithm 3 stays stable beyond eq (9): the new policy is averaged in, after T gradient steps."""

    def nine(eta: float, steps: int) -> float:
        return 1 + eta

    def algorithm(eta: float, steps: int) -> float:
        return 1 + eta ** (-1 / steps)

    corrected = [
        _exactness(algorithm, _cycles, PERIODS),
        _exactness(algorithm, _softmax_cycles, PERIODS[:-1]),
        violation(*(_cycles(0.98 * nine(e, t), e, t) - 0.5 for e, t in PERIODS)),
        violation(-_within(1.0), -_within(0.5), _within(1.02) + 0.01),
    ]
    at, size = 1.95, 1e9 * 1e-6 * 1e-3  # alpha beta of the experiments, in billionths
    yield from each_form(
        _exactness(nine, _cycles, PERIODS),
        worst(corrected),
        inside=_exactness(nine, _plain, PERIODS),
        at=at,
        cycles_at=_cycles(at, 0.9, 1, 30),
        cycles_at_2=_cycles(at, 0.9, 10, 30),
        softmax_cycles_at=_softmax_cycles(at, 0.9, 10),
        number=nine(0.9, 10) / size,
        number_2=algorithm(0.9, 10) / size,
    )
