"""Section 4: the lag of the EMA anchor, lemmas 4.1 and 4.2 (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, corrected, inside, numbers, printed, same
from kl_book.ledger.claims.ground import anchors, sequences
from kl_book.ledger.claims.ground.anchors import (
    AnchorStep,
    Rates,
    Walks,
    all_walks,
    ema_cycle,
    ema_step,
    times,
)
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, worlds

LENGTHS = (1, 2, 7)
PERIODS = ((0.5, 1), (0.9, 1), (0.95, 1), (0.5, 2), (0.9, 10), (0.95, 10), (0.9, 40))  # (eta, T)
close = partial(same, by=anchors.apart_by_size)


@claim("EMA-eq4-6", "EMA-lemC.1", over=anchors.changing_steps)
def joint_map_of_policy_and_lag(x: AnchorStep) -> Iterator[Found]:
    """The block matrix of eq (6), eqs (33) to (36): another matrix and gradient at every step."""
    (eta, alpha, beta), (theta, anchor), (new, moved) = x.by, x.before, x.after
    lag, unit = theta - anchor, torch.eye(6, dtype=torch.float64)
    yield same(theta + alpha * x.gradient - alpha * beta * x.fisher @ lag, new)  # eq (5)
    upper = torch.cat([unit, -alpha * beta * x.fisher], 1)
    lower = torch.cat([0 * unit, eta * unit - alpha * beta * x.fisher], 1)
    joint = torch.cat([upper, lower]) @ torch.cat([theta, lag]) + alpha * x.gradient.repeat(2)
    yield close(joint, torch.cat([new, new - moved]))
    yield close(theta - moved, eta * lag)
    yield close(new - moved, new - theta + eta * lag)


@claim("EMA-eq4-6+g", over=each(worlds))
def policy_gradient_of_one_sample(w: Enumeration) -> Iterator[Found]:
    """R times the score is one sample's gradient; its mean is that of the expected reward."""
    yield same(w.Es(w.R), w.d_reward)


def _block(x: Walks, k: int) -> torch.Tensor:
    """(theta, lag) after k steps by the block matrix of lemma 4.1, [2, settings, d]."""
    power, s, m = x.closed(k)
    alpha, beta = x.by.alpha[..., None], x.by.beta[..., None]
    theta = x.theta - times(alpha * beta * x.fisher @ s, x.lag)
    theta = theta + times(alpha * k * x.unit - alpha**2 * beta * x.fisher @ m, x.gradient)
    return torch.stack([theta, times(power, x.lag) + times(alpha * s, x.gradient)])


@claim("EMA-lem4.1", "EMA-eq48-54", over=all_walks)
def k_steps_at_once(x: Walks) -> Iterator[Found]:
    """Sums and block matrix in closed form, theta by eq (53); stable or not, with singular F as well."""
    (_, alpha, beta), start = x.by, x.theta
    yield at_most(1e-4, torch.linalg.eigvalsh(x.unit - x.contraction)[:, 0])
    for k in LENGTHS:
        (theta, anchor), lags, (_, s, m) = x.walk(k)[-1], x.lags(k)[:k].sum(0), x.summed(k)
        yield close(_block(x, k), torch.stack([theta, theta - anchor]))
        yield close(torch.stack(x.closed(k)), torch.stack(x.summed(k)))
        yield close(times(s, x.lag) + alpha * times(m, x.gradient), lags)  # eq (51)
        yield close(start + alpha * k * x.gradient - alpha * beta * lags @ x.fisher, theta)
        push = alpha * k * x.gradient - alpha**2 * beta * times(m, x.gradient) @ x.fisher
        yield close(start + push - alpha * beta * times(s, x.lag) @ x.fisher, theta)


@claim("EMA-lem4.1+eq7")
def nearly_constant_is_enough() -> Iterator[Found]:
    """The error of lemma 4.1 falls with the changes of g and F: a tenth of these leaves a tenth of it."""
    x, k, off = anchors.walks(anchors.fishers()[1], anchors.NO_OSCILLATION + anchors.OSCILLATING), 8, []
    noise, push = anchors.normal(k, 6, 6, seed=30), anchors.normal(k, *x.gradient.shape, seed=31)
    for size in (1e-2, 1e-3, 1e-4):
        theta, anchor = x.theta, x.anchor
        for t in range(k):
            pull = (theta - anchor) @ (x.fisher + size * (noise[t] + noise[t].T))
            theta, anchor = ema_step(theta, anchor, x.gradient + size * push[t], pull, x.by)
        off.append((torch.stack([theta, theta - anchor]) - _block(x, k)).abs().amax((0, 2)))
    for coarse, fine in pairwise(off):
        yield at_most(fine, 0.15 * coarse)
    theta, anchor = anchors.normal(6, seed=32), torch.zeros(6, dtype=torch.float64)
    for t in range(30):  # F is new at every step, and always just below the threshold
        matrix, before = anchors.changing_fisher(t), (theta - anchor).norm()
        by = Rates(0.9, 1.0, 0.98 * 1.9 / float(torch.linalg.eigvalsh(matrix)[-1]))
        theta, anchor = ema_step(theta, anchor, 0.0, matrix @ (theta - anchor), by)
        yield at_most((theta - anchor).norm(), 0.97 * before)


@claim("EMA-lem4.2-eq8", over=all_walks)
def modes_of_the_lag(x: Walks) -> Iterator[Found]:
    """Transient and particular solution of each mode, against the loop projected on the eigenvectors."""
    for k in LENGTHS:
        pushed = x.by.alpha * (1 - x.chi**k) / (1 - x.chi) * x.modes(x.gradient)
        yield close(x.chi**k * x.modes(x.lag) + pushed, x.modes(x.lags(k)[-1]))


def _left(x: Walks, steps: int = 300) -> torch.Tensor:
    """Size of the transient after so many steps of eqs (2) and (5), relative to the start, [settings]."""
    lags = x.lags(steps, push=False)
    return lags[-1].norm(dim=-1) / lags[0].norm(dim=-1)


def _steepest(x: Walks, steps: int) -> torch.Tensor:
    """What each step leaves of the steepest mode, with its sign, [steps, settings]."""
    top = x.modes(x.lags(steps, push=False))[..., -1]
    return top[1:] / top[:-1]


@claim("EMA-lem4.2-eq9", "EMA-eq58-59")
def stable_below_one_plus_eta() -> Iterator[Found]:
    """The walk dies out where max |chi| < 1, which is where alpha beta lambda_max < 1 + eta."""
    for x in all_walks(etas=anchors.FORGETFUL):
        left, factors, over = _left(x), x.chi.abs().amax(-1), x.strength[:, -1] - 1 - x.by.eta[:, 0]
        yield same(torch.linalg.eigvals(x.contraction).abs().amax(-1), factors)
        yield at_most(torch.where(left < 0.01, factors - 0.99, 1 - 1e-12 - factors), 0.0)
        yield at_most(torch.where(left < 0.01, over + 0.01, -over - 1e-12), 0.0)
    yield from _unstable()


words("EMA-lem4.2-eq9")(lambda: {"bound": (1 + 0.9) / (1e-6 * 1e-3)})


def _unstable() -> Iterator[Found]:
    """From 1 + eta on the steepest mode never shrinks, and beyond it grows."""
    for x in all_walks(anchors.UNSTABLE):
        yield at_most(1 - 1e-9, _steepest(x, 20).abs())
    for x in all_walks(anchors.UNSTABLE[1:]):
        yield at_most(1.0, _left(x))


@claim("EMA-lem4.2-r1")
def the_calm_regime() -> Iterator[Found]:
    """Up to eta: every mode keeps its sign and shrinks by chi between 0 and eta; all of them die out."""
    for x in all_walks(anchors.NO_OSCILLATION):
        lags = x.modes(x.lags(12, push=False))
        yield at_most(-1e-12, x.chi)
        yield at_most(x.chi, x.by.eta)
        yield close(lags[1:], x.chi * lags[:-1])
        yield at_most(0.0, lags[1:] * lags[:-1])
    for x in all_walks(anchors.NO_OSCILLATION, anchors.FORGETFUL):
        yield at_most(_left(x), 1e-6)


@claim("EMA-lem4.2-r2")
def the_ringing_regime() -> Iterator[Found]:
    """Between eta and 1 + eta: the steepest mode changes its sign at every step; the lag dies out."""
    for x in all_walks(anchors.OSCILLATING):
        yield at_most(_steepest(x, 5), -0.04)
    for x in all_walks(anchors.OSCILLATING, anchors.FORGETFUL):
        yield at_most(_left(x), 0.01)


@claim("EMA-lem4.2-r3")
def the_unstable_regime() -> Iterator[Found]:
    """From 1 + eta on the steepest mode never shrinks; with the true KL of a softmax the lag grows."""
    yield from _unstable()
    theta, push = bandits()[7].logits[0], anchors.normal(6, seed=8)
    anchor, sizes = theta - 1e-3 * (push - push.mean()) / (push - push.mean()).norm(), []
    by = Rates(0.9, 1.0, 1.1 * 1.9 / anchors.top_curvature(theta))
    for _ in range(600):
        theta, anchor = ema_step(theta, anchor, 0.0, sequences.softmax_pull(theta, anchor), by)
        sizes.append((theta - anchor).norm())
    yield numbers(high=max(sizes), late=max(sizes[-60:]))


def _cycles(
    a: float,
    eta: float,
    steps: int,
    cycles: int = 200,
    start: tuple[Any, Any] = (torch.ones(1).double(), torch.zeros(1).double()),
    pull: Callable[[Any, Any], Any] = anchors.linear_pull,
) -> float:
    """Lag after so many cycles of Algorithm 3 of a mode with this strength, by default from a lag of one."""
    theta, anchor = start
    for _ in range(cycles):
        theta, anchor = ema_cycle(theta, anchor, 0.0, pull, Rates(eta, 1.0, a), steps)
    return float((theta - anchor).norm())


def _softmax_cycles(a: float, eta: float, steps: int, cycles: int = 30) -> float:
    """The same with the true KL of a softmax, from a lag of 1e-6 in its steepest direction."""
    theta = bandits()[7].logits[0]
    p = theta.softmax(-1)
    steepest = torch.linalg.eigh(p.diag() - p[:, None] * p).eigenvectors[:, -1]
    start = theta, theta - 1e-6 * steepest
    return _cycles(a / anchors.top_curvature(theta), eta, steps, cycles, start, sequences.softmax_pull) / 1e-6


def _steps(a: float, eta: float, steps: int) -> float:
    """As `_cycles`, with eqs (2) and (5)."""
    theta, anchor = 1.0, 0.0
    for _ in range(200):
        theta, anchor = ema_step(theta, anchor, 0.0, theta - anchor, Rates(eta, 1.0, a))
    return abs(theta - anchor)


def _wrong(threshold: Callable[..., float], left: Callable[..., float], *periods: tuple[float, int]) -> float:
    """Share of (eta, T) where the lag does not die out 2 percent below and grow 2 percent above it."""
    at = [(threshold(*period), *period) for period in periods]
    right = [left(0.98 * a, *period) < 0.5 and left(1.02 * a, *period) > 1 for a, *period in at]
    return 1 - sum(right) / len(right)


def nine(eta: float, steps: int) -> float:
    """The threshold of eq (9)."""
    return 1 + eta


def algorithm(eta: float, steps: int) -> float:
    """The threshold of Algorithm 3."""
    return 1 + eta ** (-1 / steps)


@claim("EMA-lem4.2-exact")
def exact_for_another_order() -> Iterator[Found]:
    """Algorithm 3 stays stable beyond eq (9): the new policy is averaged in, after T gradient steps."""
    yield printed(_wrong(nine, _cycles, *PERIODS))
    yield inside(_wrong(nine, _steps, *PERIODS))
    yield corrected(_wrong(algorithm, _cycles, *PERIODS))
    yield corrected(_wrong(algorithm, _softmax_cycles, *PERIODS[:-1]))
    for period in PERIODS:
        yield at_most(_cycles(0.98 * nine(*period), *period), 0.5, "corrected")
    first = [
        ema_cycle(1.0, 0.0, 0.0, anchors.linear_pull, Rates(0.9, 1.0, a), 1)[0] for a in (1.0, 0.5, 1.02)
    ]
    yield at_most(0.0, min(first[:2]), "corrected")  # what a step leaves of a lag, before the anchor moves
    yield at_most(first[2], -0.01, "corrected")
    at, size = 1.95, 1e9 * 1e-6 * 1e-3  # alpha beta of the experiments, in billionths
    yield numbers(at=at, one=_cycles(at, 0.9, 1, 30), ten=_cycles(at, 0.9, 10, 30))
    yield numbers(softmax=_softmax_cycles(at, 0.9, 10))
    yield numbers(below_nine=nine(0.9, 10) / size, below_algorithm=algorithm(0.9, 10) / size)
