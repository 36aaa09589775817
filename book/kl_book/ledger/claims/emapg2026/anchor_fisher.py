"""Section 3 and appendix C.1: the Fisher matrix as the local shape of the KL (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.anchors import Rates, ema_step, falls_as_power, fisher, normal, with_lag
from kl_book.ledger.claims.ground.errors import apart, violation, worst
from kl_book.ledger.claims.ground.sums import exact, field, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies
from kl_companion.tabular import Problem

SIZES = (1e-1, 1e-2, 1e-3)
SINGULAR = 1e-6  # the smallest eigenvalue relative to the largest


def several() -> tuple[Problem, ...]:
    """Bandits and trees whose scores are quickly enumerated."""
    return (*bandits(), *trees())


def directions(problem: Problem) -> list[torch.Tensor]:
    """Directions of unit length in the logits, [rows, vocab] each."""
    drawn = normal(3, *problem.logits.shape, seed=5)
    return [x / x.norm() for x in drawn]


@claim("EMA-eq3+fisher")
def local_sensitivity() -> Iterator[Found]:
    """E[s s^T] is the covariance of the score, and the Hessian of the KL in either argument."""
    errors = []
    for problem in (*bandits()[:8:3], *trees()[:3]):
        theta = problem.logits
        found = fisher(problem)
        here = problem.token_logp(theta).sum(-1)

        def as_policy(x: torch.Tensor, p: Problem = problem, at: torch.Tensor = here) -> torch.Tensor:
            return reverse_kl(p.token_logp(x).sum(-1), at)

        def as_reference(x: torch.Tensor, p: Problem = problem, at: torch.Tensor = here) -> torch.Tensor:
            return reverse_kl(at, p.token_logp(x).sum(-1))

        for kl in (as_policy, as_reference):
            hessian = torch.autograd.functional.hessian(kl, theta)
            errors.append(apart(found, hessian.reshape(found.shape)))
        errors.append(apart(mean(terms(problem).p, terms(problem).score), 0.0))
    yield from each_form(worst(errors))


def _pinned(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """A vector or matrix over all logits without the last logit of each row, which stays at 0."""
    rows, vocab = problem.logits.shape
    keep = (torch.arange(rows * vocab) % vocab) < vocab - 1
    return x[keep][:, keep] if x.ndim == 2 else x[keep]


def _trust_region(problem: Problem) -> float:
    """Error of "the best direction on a KL ball tends to F^{-1} g as the ball shrinks", one softmax.

    KL(pi_theta, pi_{theta + d}) is convex in d with gradient pi_{theta + d} - pi_theta; setting this to
    g / mu gives the best step of the ball through it.
    """
    p, gain = problem.logits[0].softmax(-1), problem.rewards
    gradient = p * (gain - p @ gain)
    natural = torch.linalg.pinv(fisher(problem), hermitian=True) @ gradient
    off, errors = [], []
    for mu in (1e2, 1e3, 1e4):
        best = (p + gradient / mu).log() - p.log()
        step = best.clone().requires_grad_()
        kl = reverse_kl(p.log(), (problem.logits[0] + step).log_softmax(-1))
        (slope,) = torch.autograd.grad(kl, step)
        errors.append(apart(slope, gradient / mu))
        best = best - best.mean()
        off.append(float((best / best.norm() - natural / natural.norm()).norm()))
    return max(worst(errors), falls_as_power(off, 1))


@claim("EMA-eq3+natural")
def natural_gradient() -> Iterator[Found]:
    """F^{-1} g is the best direction; but the Fisher matrix of softmax logits has no inverse."""
    exists, best = [], []
    for problem in several():
        matrix = fisher(problem)
        gradient = field(problem.rewards, problem).flatten()
        spectrum = torch.linalg.eigvalsh(matrix)
        exists.append(spectrum[0] / spectrum[-1] > SINGULAR)
        small, slope = _pinned(problem, matrix), _pinned(problem, gradient)
        natural = torch.linalg.solve(small, slope)
        budget = float(natural @ small @ natural)
        rivals = normal(50, len(small), seed=6)
        rivals = rivals * (budget / torch.einsum("id,de,ie->i", rivals, small, rivals)).sqrt()[:, None]
        best.append(violation(*(rivals @ slope - natural @ slope).tolist()) / (1 + budget))
        free = torch.linalg.pinv(matrix, hermitian=True) @ gradient  # the same move in all logits
        moved = terms(problem).score.flatten(1)
        at = torch.zeros_like(gradient)
        rows, vocab = problem.logits.shape
        at[(torch.arange(rows * vocab) % vocab) < vocab - 1] = natural
        best.append(apart(moved @ free, moved @ at) / (1 + float((moved @ at).abs().max())))
    best += [_trust_region(p) for p in bandits()]
    yield from each_form(max(1 - sum(exists) / len(exists), worst(best)), inside=worst(best))


@claim("EMA-eq3")
def kl_is_locally_quadratic() -> Iterator[Found]:
    """What the quadratic form leaves falls by a thousand when delta shrinks to a tenth."""
    errors = []
    for problem in several():
        matrix = fisher(problem)
        for x in directions(problem):
            found = []
            for size in SIZES:
                kl = exact(reverse_kl, with_lag(problem, -size * x))[0]
                found.append(abs(kl - size**2 * float(x.flatten() @ matrix @ x.flatten()) / 2))
            errors.append(falls_as_power(found, 3))
    yield from each_form(worst(errors))


@claim("EMA-eq3+gradient")
def gradient_of_the_kl_near_its_minimum() -> Iterator[Found]:
    """grad KL - F (theta - theta') falls by a hundred; for one softmax there is no remainder at all."""
    errors, none = [], []
    for problem in several():
        matrix = fisher(problem)
        for x in directions(problem):
            found = []
            for size in SIZES:
                behind = with_lag(problem, size * x)
                found.append(apart(exact(reverse_kl, behind)[1].flatten(), size * matrix @ x.flatten()))
            errors.append(falls_as_power(found, 2))
        far = with_lag(problem, 3 * directions(problem)[0])
        t = terms(far)
        token = mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio, t.scores)).flatten()
        none.append(apart(token, matrix @ (far.logits - far.ref_logits).flatten()))
    yield from each_form(max(worst(errors), worst(none)))


def _shared() -> tuple[torch.Tensor, float]:
    """Fisher matrix and E|s|^2 of eight parameters shared by three prompts, from their sums over tokens."""
    total, square = torch.zeros(8, 8, dtype=torch.float64), 0.0
    for seed, problem in enumerate(bandits()[6:]):
        t, features = terms(problem), normal(6, 8, seed=40 + seed)
        score = t.score.flatten(1) @ features
        total += torch.einsum("i,ij,ik->jk", t.p, score, score) / 3
        square += float(t.p @ score.square().sum(-1)) / 3
    return total, square


@claim("EMA-eq28")
def eigenvalue_below_the_trace() -> Iterator[Found]:
    """No negative eigenvalue; the largest is at most the trace, which is the mean squared score."""
    errors = []
    for matrix, square in [*((fisher(p), _squared_score(p)) for p in several()), _shared()]:
        spectrum = torch.linalg.eigvalsh(matrix)
        errors += [
            violation(-float(spectrum[0]), float(spectrum[-1]) - square),
            apart(matrix.trace(), square),
        ]
        errors.append(apart(matrix, matrix.T))
    yield from each_form(worst(errors))


def _squared_score(problem: Problem) -> float:
    """E|s|^2 from the squares of explicit scores e_y - pi, prefix by prefix."""
    p = problem.logits.softmax(-1)
    own = 1 - 2 * p + p.square().sum(-1, keepdim=True)  # of every token at every prefix
    at = own[problem.rows, problem.sequences] * problem.completion_mask
    return float(problem.token_logp(problem.logits).sum(-1).exp() @ at.sum(-1))


@claim("EMA-eq28+practical")
def estimate_of_the_bound() -> Iterator[Found]:
    """The mean of |s|^2 over samples estimates the trace, without bias; the trace may be far too large."""
    errors, loose = [], []
    for problem in several():
        t = terms(problem)
        square, matrix = t.score.flatten(1).square().sum(-1), fisher(problem)
        pairs = torch.tensor(list(combinations_with_replacement(range(len(t.p)), 2)))
        weight = t.p[pairs].prod(-1) * torch.where(pairs[:, 0] == pairs[:, 1], 1.0, 2.0)
        errors.append(apart(weight @ square[pairs].mean(-1), _squared_score(problem)))
        top, rank = torch.linalg.eigvalsh(matrix)[-1], int(torch.linalg.matrix_rank(matrix, hermitian=True))
        loose.append(float(matrix.trace() / top))
        errors.append(violation(1 - loose[-1], loose[-1] - rank))
    flat = fisher(two_policies([1 / 30] * 30, [1 / 30] * 30))
    yield from each_form(
        worst(errors),
        min_loose=min(loose),
        max_loose=max(loose),
        number_of_loose=len(loose),
        float=float(flat.trace() / torch.linalg.eigvalsh(flat)[-1]),
    )


@claim("EMA-eq29-32")
def update_near_the_anchor() -> Iterator[Found]:
    """delta^T F delta / 2 and F delta against KL and gradient; the step is right to second order."""
    errors = []
    for problem in several():
        matrix = fisher(problem)
        gradient = field(problem.rewards, problem).flatten()
        for x in directions(problem):
            values, slopes, steps = [], [], []
            for size in (1e-1, 1e-2, 1e-3):
                behind = with_lag(problem, size * x)
                lag = size * x.flatten()
                kl, slope = exact(reverse_kl, behind)
                values.append(abs(kl - float(lag @ matrix @ lag) / 2))
                slopes.append(apart(slope.flatten(), matrix @ lag))
                theta, anchor = behind.logits.flatten(), behind.ref_logits.flatten()
                moved, _ = ema_step(theta, anchor, gradient, slope.flatten(), Rates(0.9, 0.3, 2.0))
                steps.append(apart(moved, theta + 0.3 * gradient - 0.3 * 2.0 * matrix @ lag))
            errors += [falls_as_power(values, 3), falls_as_power(slopes, 2), falls_as_power(steps, 2)]
    yield from each_form(worst(errors))


@claim("EMA-eq29-32+empirical")
def fisher_of_samples() -> Iterator[Found]:
    """The quadratic form needs the mean over the policy's own responses, not over some sample."""
    inside, printed = [], []
    for problem in several():
        t, matrix = terms(problem), fisher(problem)
        every = torch.einsum("ij,ik->ijk", t.score.flatten(1), t.score.flatten(1))
        inside.append(apart(mean(t.p, every), matrix))
        for x in directions(problem):
            lag = x.flatten()
            kl = [exact(reverse_kl, with_lag(problem, size * x))[0] for size in (1e-1, 1e-2, 1e-3)]
            true = [
                abs(k - size**2 * float(lag @ matrix @ lag) / 2)
                for k, size in zip(kl, (0.1, 0.01, 0.001), strict=True)
            ]
            inside.append(falls_as_power(true, 3))
            of_one_sample = every @ lag @ lag / 2
            printed.append(float((of_one_sample * 1e-6 / kl[-1] - 1).abs().max()))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    scores, lag = terms(small).score.flatten(1), torch.tensor([1e-3, 0.0], dtype=torch.float64)
    value, form = exact(reverse_kl, with_lag(small, lag[None]))[0], (scores @ lag).square() / 2
    yield from each_form(
        max(worst(printed), worst(inside)), inside=worst(inside), value=value, form_0=form[0], form_1=form[1]
    )
