"""Appendices C.1 to C.5: dynamics of the lag, its steady state (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import sympy
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
    falls_as_power,
    fisher,
    normal,
    with_lag,
)
from kl_book.ledger.claims.ground.errors import apart, violation, worst
from kl_book.ledger.claims.ground.sums import exact, field, reverse_kl
from kl_book.ledger.claims.ground.worlds import bandits

SETTLED = ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0), (0.9, 0.9))  # well below 1 + eta, as p + q eta
STEPS = 400  # until the lag has settled to the last digits


@claim("EMA-lemC.1")
def recursion_of_the_lag() -> Iterator[Found]:
    """Eqs (33) to (36) with another matrix and gradient at every step."""
    errors = []
    for eta, alpha, beta in ((0.0, 0.3, 0.1), (0.5, 0.1, 2.0), (0.95, 1.0, 0.0), (0.9, 0.5, 0.7)):
        theta, anchor = normal(2, 6, seed=50)
        for t, gradient in enumerate(normal(5, 6, seed=51)):
            lag, matrix = theta - anchor, changing_fisher(t)
            new, behind = ema_step(theta, anchor, gradient, matrix @ lag, Rates(eta, alpha, beta))
            found, operator = new - behind, eta * torch.eye(6, dtype=torch.float64) - alpha * beta * matrix
            errors += [
                apart_by_size(theta - behind, eta * lag),
                apart_by_size(found, new - theta + eta * lag),
            ]
            errors.append(apart_by_size(found, operator @ lag + alpha * gradient))
            theta, anchor = new, behind
    yield from each_form(worst(errors))


def _powers(x: Walks, k: int) -> list[torch.Tensor]:
    """D^0 to D^k by repeated multiplication, [settings, d, d] each."""
    d = x.contraction
    out = [torch.eye(d.shape[-1], dtype=d.dtype).expand_as(d)]
    for _ in range(k):
        out.append(out[-1] @ d)
    return out


def _times(matrix: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.einsum("nij,nj->ni", matrix, v)


@claim("EMA-eq41-43")
def lag_after_k_steps() -> Iterator[Found]:
    """D^k lag + alpha sum D^j g."""
    errors = []
    for x in all_walks():
        for k in (1, 2, 9):
            powers = _powers(x, k)
            wanted = _times(powers[k], x.lag) + x.by.alpha * _times(
                sum(powers[:k], 0 * powers[0]), x.gradient
            )
            errors.append(apart_by_size(wanted, x.lags(k)[-1]))
    yield from each_form(worst(errors))


@claim("EMA-eq44-47")
def inverse_of_one_minus_d() -> Iterator[Found]:
    """Eigenvectors of F are those of D; chi <= eta < 1; the walk from a lag of zero is alpha S_k g."""
    errors = []
    for x in all_walks():
        values, vectors = torch.linalg.eigh(x.fisher)
        chi = x.by.eta - x.by.alpha * x.by.beta * values
        errors.append(apart_by_size(x.contraction @ vectors, vectors * chi[:, None, :]))
        errors.append(violation(*(chi - x.by.eta - 1e-12).flatten().tolist()))
        unit = torch.eye(len(values), dtype=torch.float64)
        for k in (1, 2, 9):
            closed = (unit - _powers(x, k)[k]) @ torch.linalg.inv(unit - x.contraction)
            still = x._replace(anchor=x.theta)
            errors.append(apart_by_size(x.by.alpha * _times(closed, x.gradient), still.lags(k)[-1]))
    yield from each_form(worst(errors))


@claim("EMA-eq48-54")
def policy_after_k_steps() -> Iterator[Found]:
    """theta by eq (53), the sum of the lags by eq (51), M_k by eq (54)."""
    errors = []
    for x in all_walks():
        unit = torch.eye(len(x.fisher), dtype=torch.float64)
        for k in (1, 2, 9):
            powers = _powers(x, k)
            s = [sum(powers[:j], 0 * powers[0]) for j in range(k + 1)]
            m = sum(s[:k], 0 * powers[0])
            path = x.walk(k)
            summed = torch.stack([theta - anchor for theta, anchor in path[:k]]).sum(0)
            wanted = _times(s[k], x.lag) + x.by.alpha * _times(m, x.gradient)
            errors.append(apart_by_size(wanted, summed))
            theta = x.theta + x.by.alpha * k * x.gradient - x.by.alpha * x.by.beta * summed @ x.fisher
            errors.append(apart_by_size(theta, path[k][0]))
            pushed = (
                x.by.alpha * k * x.gradient - x.by.alpha**2 * x.by.beta * _times(m, x.gradient) @ x.fisher
            )
            pulled = x.by.alpha * x.by.beta * _times(s[k], x.lag) @ x.fisher
            errors.append(apart_by_size(x.theta + pushed - pulled, path[k][0]))
            errors.append(apart_by_size((k * unit - s[k]) @ torch.linalg.inv(unit - x.contraction), m))
    yield from each_form(worst(errors))


@claim("EMA-eq55-57")
def each_mode_on_its_own() -> Iterator[Found]:
    """An orthonormal basis of modes; each follows its own scalar recursion, summed in eqs (56) and (57)."""
    errors = []
    for x in all_walks():
        vectors = torch.linalg.eigh(x.fisher).eigenvectors
        errors.append(apart(vectors.T @ vectors, torch.eye(len(vectors), dtype=torch.float64)))
        errors.append(violation(float(-torch.linalg.eigvalsh(x.fisher)[0])))
        chi, push, path = x.by.eta - x.strength, x.modes(x.gradient), x.modes(x.lags(9))
        for k in (1, 2, 9):
            summed = chi**k * path[0] + x.by.alpha * sum(chi**j for j in range(k)) * push
            closed = chi**k * path[0] + x.by.alpha * (1 - chi**k) / (1 - chi) * push
            errors += [apart_by_size(summed, path[k]), apart_by_size(closed, path[k])]
    yield from each_form(worst(errors))


def _dies(x: Walks, steps: int = STEPS) -> torch.Tensor:
    """Whether the transient dies out along the walk, [settings]; what is left lies far from the bound."""
    lags = x.lags(steps, push=False)
    return lags[-1].norm(dim=-1) < 0.01 * lags[0].norm(dim=-1)


@claim("EMA-eq58-59")
def stable_iff_every_factor_is_below_one() -> Iterator[Found]:
    """The walk dies out where max |chi| < 1, which is where alpha beta lambda_max < 1 + eta."""
    errors = []
    for x in all_walks((*NO_OSCILLATION, *OSCILLATING, *UNSTABLE), (0.0, 0.5, 0.9)):
        dies, strength = _dies(x), x.strength[:, -1]
        factors = (x.by.eta - x.strength).abs().amax(-1)
        spectral = torch.linalg.eigvals(x.contraction).abs().amax(-1)
        bound = strength - 1 - x.by.eta[:, 0]
        errors += [
            apart(spectral, factors),
            violation(*torch.where(dies, factors - 0.99, 1 - 1e-12 - factors).tolist()),
        ]
        errors.append(violation(*torch.where(dies, bound + 0.01, -bound - 1e-12).tolist()))
    yield from each_form(worst(errors))


@claim("EMA-eq60")
def no_oscillation_up_to_eta() -> Iterator[Found]:
    """No mode changes its sign iff alpha beta lambda_max <= eta; each factor lies where the list says."""
    errors = []
    for x in all_walks((*NO_OSCILLATION, *OSCILLATING, *UNSTABLE)):
        path = x.modes(x.lags(4, push=False))
        turns = (path[1:] * path[:-1] < -1e-12).any(0).any(-1)
        over = x.strength[:, -1] - x.by.eta[:, 0]
        errors.append(violation(*torch.where(turns, 0.01 - over, over - 1e-12).tolist()))
        errors.append(float(((path[1:] * path[:-1]) * (over <= 1e-12)[:, None] < -1e-12).sum()))
        alternating = x.by.eta - x.strength < -0.01
        errors.append(float((alternating & (path[1] * path[0] >= 0)).sum()))
    yield from each_form(worst(errors))


@cache
def _settled() -> tuple[tuple[Walks, torch.Tensor], ...]:
    """Grounds well inside the stable regimes, with the lag that their walks end at."""
    out = []
    for x in all_walks(SETTLED, (0.0, 0.5, 0.9)):
        theta, anchor = x.theta, x.anchor
        for _ in range(STEPS):  # only the lag matters: kept near zero, it is not rounded by a drifting theta
            theta, anchor = ema_step(
                theta - anchor, 0 * anchor, x.gradient, (theta - anchor) @ x.fisher, x.by
            )
        out.append((x, theta - anchor))
    return tuple(out)


def _steady(x: Walks) -> torch.Tensor:
    """Eq (63) in the eigenbasis, [settings, d]."""
    return x.by.alpha * x.modes(x.gradient) / (1 - x.by.eta + x.strength)


def _cycle_lag(steps: int, eta: float = 0.9, a: float = 0.05, push: float = 0.1) -> tuple[float, float]:
    """Steady lag of one mode under Algorithm 3, before and after the anchor moves."""
    before = after = 0.0
    for _ in range(200):
        before, anchor = ema_cycle(after, 0.0, push, lambda t, x: t - x, Rates(eta, 1.0, a), steps)
        after = before - anchor
    return before, after


@claim("EMA-eq61-63")
def lag_that_the_walk_settles_at() -> Iterator[Found]:
    """alpha ((1 - eta) I + alpha beta F)^{-1} g, and the same mode by mode."""
    errors = []
    for x, found in _settled():
        unit = torch.eye(len(x.fisher), dtype=torch.float64)
        for matrix in (
            unit - x.contraction,
            (1 - x.by.eta[..., None]) * unit + (x.by.alpha * x.by.beta)[..., None] * x.fisher,
        ):
            errors.append(apart_by_size(_times(torch.linalg.inv(matrix), x.by.alpha * x.gradient), found))
        errors.append(apart_by_size(_steady(x), x.modes(found)))
    before, after = _cycle_lag(10)
    yield from each_form(worst(errors), before=before, after=after, number=0.1 / (0.1 + 0.05))


@claim("EMA-eq64")
def bound_of_the_steady_lag() -> Iterator[Found]:
    """|delta*| <= alpha |g| / (1 - eta), reached where the gradient lies in a direction without curvature."""
    errors = []
    for x, found in _settled():
        limit = x.by.alpha[:, 0] / (1 - x.by.eta[:, 0])
        errors.append(
            violation(*(found.norm(dim=-1) / (limit * x.gradient.norm(dim=-1)) - 1 - 1e-12).tolist())
        )
        flat = x.by.beta[:, 0] == 0
        errors.append(apart_by_size(found[flat].norm(dim=-1), (limit * x.gradient.norm(dim=-1))[flat]))
        unit = torch.eye(len(x.fisher), dtype=torch.float64)
        inverse = torch.linalg.inv(unit - x.contraction)
        gap = unit / (1 - x.by.eta[..., None]) - inverse
        errors.append(violation(*(-1e-12 - torch.linalg.eigvalsh(gap)).flatten().tolist()))
        errors.append(
            violation(*(torch.linalg.matrix_norm(inverse, 2) * (1 - x.by.eta[:, 0]) - 1 - 1e-12).tolist())
        )
    before, after = _cycle_lag(10)
    bound = 0.1 / (1 - 0.9)
    errors.append(violation(before - 10 * bound))
    yield from each_form(worst(errors), after=after, before=before, bound=bound)


@claim("EMA-eq65-67")
def kl_that_the_walk_settles_at() -> Iterator[Found]:
    """Half delta*^T F delta* is the sum over modes; the true KL differs from it by third order."""
    errors = []
    for x, found in _settled():
        values = torch.linalg.eigvalsh(x.fisher)
        form = torch.einsum("ni,ij,nj->n", found, x.fisher, found)
        errors.append(apart_by_size((values * x.modes(found).square()).sum(-1), form))
        size = values * x.modes(x.gradient).square() / (1 - x.by.eta + x.strength).square()
        errors.append(apart_by_size(x.by.alpha[:, 0].square() / 2 * size.sum(-1), form / 2))
    for problem in bandits()[1:8:3]:
        matrix, left = fisher(problem), []
        gradient = field(problem.rewards, problem).flatten()
        values, vectors = torch.linalg.eigh(matrix)
        for alpha in (1e-1, 1e-2, 1e-3):  # eta = 0.9 and alpha beta = 0.2: the lag shrinks with alpha
            lag = vectors @ (alpha * (vectors.T @ gradient) / (0.1 + 0.2 * values))
            kl = exact(reverse_kl, with_lag(problem, lag[None]))[0]
            wanted = (
                alpha**2
                / 2
                * (values * (vectors.T @ gradient).square() / (0.1 + 0.2 * values).square()).sum()
            )
            left.append(abs(kl - float(wanted)))
        errors.append(falls_as_power(left, 3))
    yield from each_form(worst(errors))


def _sign(x: sympy.Expr, positive: bool) -> float:
    """Error of "x is positive (or negative)", as far as SymPy can prove it."""
    simple = sympy.factor(x)
    return 0.0 if (simple.is_positive if positive else simple.is_negative) else 1.0


@claim("EMA-C5-monotone")
def what_raises_the_steady_kl() -> Iterator[Found]:
    """The steady KL of a mode, from a step that keeps its lag: up with eta, down with beta, up with alpha."""
    gap, alpha, beta, curvature, less_gap = sympy.symbols("gap alpha beta lambda d", positive=True)
    push, lag = sympy.symbols("g delta", real=True, nonzero=True)
    theta, anchor = ema_step(lag, sympy.Integer(0), push, curvature * lag, Rates(1 - gap, alpha, beta))
    (steady,) = sympy.solve(sympy.Eq(theta - anchor, lag), lag)
    kl = sympy.factor(curvature * steady**2 / 2)
    printed = alpha**2 * curvature * push**2 / (gap + alpha * beta * curvature) ** 2 / 2
    offset = beta + less_gap / (alpha * curvature)
    same = sympy.simplify(kl.subs({gap: gap - less_gap, beta: offset}, simultaneous=True) - kl)
    errors = [
        0.0 if sympy.simplify(kl - printed) == 0 else 1.0,
        _sign(-kl.diff(gap), positive=True),  # gap = 1 - eta
        _sign(kl.diff(beta), positive=False),
        _sign(kl.diff(alpha), positive=True),
        0.0 if same == 0 else 1.0,
        0.0 if all(sympy.limit(kl, *at) == 0 for at in ((beta, sympy.oo), (alpha, 0))) else 1.0,
    ]
    strength = 0.5 + float((offset - beta).subs({less_gap: 0.05, alpha: 1, curvature: 0.01}))
    yield from each_form(worst(errors), strength=strength)
