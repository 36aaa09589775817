"""Appendices C.1 to C.5: dynamics of the lag, its steady state (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import sympy
import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, numbers, printed, same
from kl_book.ledger.claims.ground import anchors, sums, worlds
from kl_book.ledger.claims.ground.anchors import Rates, Walks, all_walks, ema_cycle, ema_step, times

SETTLED = ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.9, 0.9))  # well below 1 + eta, as p + q eta
STEPS = 400  # until the lag has settled to the last digits
LENGTHS = (1, 2, 9)
close = partial(same, by=anchors.apart_by_size)
settling = partial(all_walks, SETTLED, anchors.FORGETFUL)


@claim("EMA-eq41-43", over=all_walks)
def lag_after_k_steps(x: Walks) -> Iterator[Found]:
    """D^k lag + alpha sum D^j g."""
    for k in LENGTHS:
        power, s, _ = x.summed(k)
        yield close(times(power, x.lag) + x.by.alpha * times(s, x.gradient), x.lags(k)[-1])


@claim("EMA-eq44-47", over=all_walks)
def inverse_of_one_minus_d(x: Walks) -> Iterator[Found]:
    """Eigenvectors of F are those of D; chi <= eta < 1; the walk from a lag of zero is alpha S_k g."""
    vectors, still = torch.linalg.eigh(x.fisher).eigenvectors, x._replace(anchor=x.theta)
    yield close(x.contraction @ vectors, vectors * x.chi[:, None, :])
    yield at_most(x.chi, x.by.eta + 1e-12)
    for k in LENGTHS:
        yield close(x.by.alpha * times(x.closed(k)[1], x.gradient), still.lags(k)[-1])


@claim("EMA-eq55-57", over=all_walks)
def each_mode_on_its_own(x: Walks) -> Iterator[Found]:
    """An orthonormal basis of modes; each follows its own scalar recursion, summed in eqs (56) and (57)."""
    values, vectors = torch.linalg.eigh(x.fisher)
    yield same(vectors.T @ vectors, x.unit)
    yield printed(-float(values[0]))
    chi, push, path = x.chi, x.modes(x.gradient), x.modes(x.lags(9))
    for k in LENGTHS:
        summed = chi**k * path[0] + x.by.alpha * sum(chi**j for j in range(k)) * push
        yield close(summed, path[k])
        yield close(chi**k * path[0] + x.by.alpha * (1 - chi**k) / (1 - chi) * push, path[k])


@claim("EMA-eq60", over=all_walks)
def no_oscillation_up_to_eta(x: Walks) -> Iterator[Found]:
    """No mode changes its sign iff alpha beta lambda_max <= eta; each factor lies where the list says."""
    path = x.modes(x.lags(4, push=False))
    products, over = path[1:] * path[:-1], x.strength[:, -1] - x.by.eta[:, 0]
    turns = (products < -1e-12).any(0).any(-1)
    yield at_most(torch.where(turns, 0.01 - over, over - 1e-12), 0.0)
    yield at_most(-1e-12, products * (over <= 1e-12)[:, None])
    yield printed(float(((x.chi < -0.01) & (products[0] >= 0)).sum()))


def _end(x: Walks) -> torch.Tensor:
    """The lag that a walk settles at."""
    lag = x.lag
    for _ in range(STEPS):  # from an anchor of zero: the lag is not rounded by a drifting theta
        theta, anchor = ema_step(lag, 0 * lag, x.gradient, lag @ x.fisher, x.by)
        lag = theta - anchor
    return lag


def _steady(x: Walks) -> torch.Tensor:
    """Eq (63) in the eigenbasis, [settings, d]."""
    return x.by.alpha * x.modes(x.gradient) / (1 - x.by.eta + x.strength)


@claim("EMA-eq61-63", over=settling)
def lag_that_the_walk_settles_at(x: Walks) -> Iterator[Found]:
    """alpha ((1 - eta) I + alpha beta F)^{-1} g, and the same mode by mode."""
    eta, alpha, beta = (rate[..., None] for rate in x.by)
    lag = _end(x)
    for inverse in (x.inverse, torch.linalg.inv((1 - eta) * x.unit + alpha * beta * x.fisher)):
        yield close(times(inverse, x.by.alpha * x.gradient), lag)
    yield close(_steady(x), x.modes(lag))


@words("EMA-eq61-63", "EMA-eq64")
def ten_steps_between_averages() -> dict[str, Any]:
    """Steady lag of one mode under Algorithm 3, before and after the anchor moves; eq (63), eq (64)."""
    after = 0.0
    for _ in range(200):
        before, anchor = ema_cycle(after, 0.0, 0.1, anchors.linear_pull, Rates(0.9, 1.0, 0.05), 10)
        after = before - anchor
    return {"before": before, "after": after, "steady": 0.1 / (0.1 + 0.05), "bound": 0.1 / (1 - 0.9)}


@claim("EMA-eq64")
def bound_of_the_steady_lag() -> Iterator[Found]:
    """|delta*| <= alpha |g| / (1 - eta), reached where the gradient lies in a direction without curvature."""
    for x in settling():
        (eta, alpha, beta), lag = (rate[:, 0] for rate in x.by), _end(x).norm(dim=-1)
        limit = alpha / (1 - eta) * x.gradient.norm(dim=-1)
        yield at_most(lag / limit, 1 + 1e-12)
        yield close(lag[beta == 0], limit[beta == 0])
        gap = x.unit / (1 - x.by.eta[..., None]) - x.inverse
        yield at_most(-1e-12, torch.linalg.eigvalsh(gap))
        yield at_most(torch.linalg.matrix_norm(x.inverse, 2) * (1 - eta), 1 + 1e-12)
    ten = ten_steps_between_averages()
    yield at_most(ten["before"], 10 * ten["bound"])


@claim("EMA-eq65-67")
def kl_that_the_walk_settles_at() -> Iterator[Found]:
    """Half delta*^T F delta* is the sum over modes; the true KL differs from it by third order."""
    for x in settling():
        values, lag = torch.linalg.eigvalsh(x.fisher), _end(x)
        form = torch.einsum("ni,ij,nj->n", lag, x.fisher, lag)
        yield close((values * x.modes(lag).square()).sum(-1), form)
        yield close((values * _steady(x).square()).sum(-1) / 2, form / 2)
    for problem in worlds.bandits()[1:8:3]:
        values, vectors = torch.linalg.eigh(anchors.fisher(problem))
        push, left = vectors.T @ sums.field(problem.rewards, problem).flatten(), []
        for alpha in (1e-1, 1e-2, 1e-3):  # eta = 0.9 and alpha beta = 0.2: the lag shrinks with alpha
            modes = alpha * push / (0.1 + 0.2 * values)
            kl = sums.exact(sums.reverse_kl, anchors.with_lag(problem, (vectors @ modes)[None]))[0]
            left.append(abs(kl - float((values * modes.square()).sum() / 2)))
        yield printed(anchors.falls_as_power(left, 3))


@claim("EMA-C5-monotone")
def what_raises_the_steady_kl() -> Iterator[Found]:
    """The steady KL of a mode, from a step that keeps its lag: up with eta, down with beta, up with alpha."""
    gap, alpha, beta, curvature, less_gap = sympy.symbols("gap alpha beta lambda d", positive=True)
    push, lag = sympy.symbols("g delta", real=True, nonzero=True)
    theta, anchor = ema_step(lag, sympy.Integer(0), push, curvature * lag, Rates(1 - gap, alpha, beta))
    (steady,) = sympy.solve(sympy.Eq(theta - anchor, lag), lag)
    kl = sympy.factor(curvature * steady**2 / 2)
    formula = alpha**2 * curvature * push**2 / (gap + alpha * beta * curvature) ** 2 / 2
    offset = beta + less_gap / (alpha * curvature)
    moved = kl.subs({gap: gap - less_gap, beta: offset}, simultaneous=True)
    zeros = [kl - formula, moved - kl, sympy.limit(kl, beta, sympy.oo), sympy.limit(kl, alpha, 0)]
    yield printed(sum(sympy.simplify(x) != 0 for x in zeros))
    rising = [-kl.diff(gap), -kl.diff(beta), kl.diff(alpha)]  # gap = 1 - eta
    yield printed(sum(not sympy.factor(x).is_positive for x in rising))
    yield numbers(strength=0.5 + float((offset - beta).subs({less_gap: 0.05, alpha: 1, curvature: 0.01})))
