"""Section 3 and appendix C.1: the Fisher matrix as the local shape of the KL (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, inside, numbers, printed, same
from kl_book.ledger.claims.ground.anchors import Rates, ema_step, falls_as_power, fisher, normal, with_lag
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.sums import exact, field, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, trees, two_policies, worlds
from kl_companion.tabular import Problem

Remainder = Callable[[Problem, torch.Tensor, torch.Tensor], float]  # world behind by a lag, the lag, F
SINGULAR = 1e-6  # the smallest eigenvalue relative to the largest


def directions(problem: Problem) -> list[torch.Tensor]:
    """Directions of unit length in the logits, [rows, vocab] each."""
    return [x / x.norm() for x in normal(3, *problem.logits.shape, seed=5)]


def falls(problem: Problem, order: int, left: Remainder) -> float:
    """Error of "what is left falls with this power of the lag", in every direction."""
    matrix, sizes = fisher(problem), (1e-1, 1e-2, 1e-3)
    return max(
        falls_as_power([left(with_lag(problem, d * x), d * x.flatten(), matrix) for d in sizes], order)
        for x in directions(problem)
    )


def of_value(behind: Problem, lag: torch.Tensor, matrix: torch.Tensor) -> float:
    """What the quadratic form leaves of the KL."""
    return abs(exact(reverse_kl, behind)[0] - float(lag @ matrix @ lag) / 2)


def of_gradient(behind: Problem, lag: torch.Tensor, matrix: torch.Tensor) -> float:
    """What F delta leaves of its gradient."""
    return apart(exact(reverse_kl, behind)[1].flatten(), matrix @ lag)


def of_step(behind: Problem, lag: torch.Tensor, matrix: torch.Tensor) -> float:
    """What F delta in the place of the gradient leaves of the step."""
    theta, anchor = behind.logits.flatten(), behind.ref_logits.flatten()
    gradient, pull = field(behind.rewards, behind).flatten(), exact(reverse_kl, behind)[1].flatten()
    moved, _ = ema_step(theta, anchor, gradient, pull, Rates(0.9, 0.3, 2.0))
    return apart(moved, theta + 0.3 * gradient - 0.3 * 2.0 * matrix @ lag)


@claim("EMA-eq3+fisher", over=each(lambda: (*bandits()[:8:3], *trees()[:3])))
def local_sensitivity(w: Enumeration) -> Iterator[Found]:
    """E[s s^T] is the covariance of the score, and the Hessian of the KL in either argument."""
    here = w.problem.token_logp(w.problem.logits).sum(-1)

    def as_policy(x: torch.Tensor) -> torch.Tensor:
        return reverse_kl(w.problem.token_logp(x).sum(-1), here)

    def as_reference(x: torch.Tensor) -> torch.Tensor:
        return reverse_kl(here, w.problem.token_logp(x).sum(-1))

    matrix = fisher(w.problem)
    for kl in (as_policy, as_reference):
        hessian = torch.autograd.functional.hessian(kl, w.problem.logits)
        yield same(matrix, hessian.reshape(matrix.shape))
    yield same(w.E(w.s), 0.0)


@claim("EMA-eq3+natural")
def natural_gradient() -> Iterator[Found]:
    """F^{-1} g is the best direction; but the Fisher matrix of softmax logits has no inverse."""
    exists = []
    for w in each(worlds)():
        matrix, gradient = fisher(w.problem), w.Es(w.R).flatten()
        spectrum = torch.linalg.eigvalsh(matrix)
        exists.append(float(spectrum[0] / spectrum[-1] > SINGULAR))
        vocab = w.problem.logits.shape[1]
        pinned = torch.arange(len(gradient)) % vocab < vocab - 1  # the last logit of each row stays at 0
        small, slope = matrix[pinned][:, pinned], gradient[pinned]
        natural = torch.linalg.solve(small, slope)
        budget = natural @ small @ natural
        rivals = normal(50, len(small), seed=6)
        rivals = rivals * (budget / torch.einsum("id,de,ie->i", rivals, small, rivals)).sqrt()[:, None]
        yield at_most(rivals @ slope / (1 + budget), natural @ slope / (1 + budget), "inside")
        score = w.s.flatten(1)
        move, free = score[:, pinned] @ natural, torch.linalg.pinv(matrix, hermitian=True) @ gradient
        size = 1 + move.abs().max()
        yield same(score @ free / size, move / size, "inside")  # the same move in all logits
    yield printed(1 - sum(exists) / len(exists))
    for problem in bandits():
        yield from _trust_region(problem)


def _trust_region(problem: Problem) -> Iterator[Found]:
    """The best direction on a KL ball of one softmax tends to F^{-1} g as the ball shrinks.

    KL(pi_theta, pi_{theta + d}) is convex in d with gradient pi_{theta + d} - pi_theta; setting this to
    g / mu gives the best step of the ball through it.
    """
    p, gain = problem.logits[0].softmax(-1), problem.rewards
    gradient, off = p * (gain - p @ gain), []
    natural = torch.linalg.pinv(fisher(problem), hermitian=True) @ gradient
    for mu in (1e2, 1e3, 1e4):
        best = (p + gradient / mu).log() - p.log()
        step = best.clone().requires_grad_()
        kl = reverse_kl(p.log(), (problem.logits[0] + step).log_softmax(-1))
        yield same(torch.autograd.grad(kl, step)[0], gradient / mu, "inside")
        best = best - best.mean()
        off.append(float((best / best.norm() - natural / natural.norm()).norm()))
    yield inside(falls_as_power(off, 1))


@claim("EMA-eq3", over=each(worlds))
def kl_is_locally_quadratic(w: Enumeration) -> Iterator[Found]:
    """What the quadratic form leaves falls by a thousand when delta shrinks to a tenth."""
    yield printed(falls(w.problem, 3, of_value))


@claim("EMA-eq3+gradient", over=each(worlds))
def gradient_of_the_kl_near_its_minimum(w: Enumeration) -> Iterator[Found]:
    """grad KL - F (theta - theta') falls by a hundred; for one softmax there is no remainder at all."""
    yield printed(falls(w.problem, 2, of_gradient))
    far = with_lag(w.problem, 3 * directions(w.problem)[0])
    t = terms(far)
    token = mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio, t.scores)).flatten()
    yield same(token, fisher(far) @ (far.logits - far.ref_logits).flatten())


def _shared() -> tuple[torch.Tensor, torch.Tensor]:
    """Fisher matrix and E|s|^2 of eight parameters shared by three prompts, from their sums over tokens."""
    scores = [terms(p).score.flatten(1) @ normal(6, 8, seed=40 + i) for i, p in enumerate(bandits()[6:])]
    weight = torch.cat([terms(p).p / 3 for p in bandits()[6:]])
    score = torch.cat(scores)
    return torch.einsum("i,ij,ik->jk", weight, score, score), weight @ score.square().sum(-1)


@claim("EMA-eq28")
def eigenvalue_below_the_trace() -> Iterator[Found]:
    """No negative eigenvalue; the largest is at most the trace, which is the mean squared score."""
    for matrix, square in [*((fisher(p), _squared_score(p)) for p in worlds()), _shared()]:
        spectrum = torch.linalg.eigvalsh(matrix)
        yield printed(-float(spectrum[0]))
        yield at_most(spectrum[-1], square)
        yield same(matrix.trace(), square)
        yield same(matrix, matrix.T)


def _squared_score(problem: Problem) -> torch.Tensor:
    """E|s|^2 from the squares of explicit scores e_y - pi, prefix by prefix."""
    p = problem.logits.softmax(-1)
    own = 1 - 2 * p + p.square().sum(-1, keepdim=True)  # of every token at every prefix
    at = own[problem.rows, problem.sequences] * problem.completion_mask
    return problem.token_logp(problem.logits).sum(-1).exp() @ at.sum(-1)


@claim("EMA-eq28+practical")
def estimate_of_the_bound() -> Iterator[Found]:
    """The mean of |s|^2 over samples estimates the trace, without bias; the trace may be far too large."""
    loose = []
    for problem in worlds():
        t, matrix = terms(problem), fisher(problem)
        pairs = torch.tensor(list(combinations_with_replacement(range(len(t.p)), 2)))
        weight = t.p[pairs].prod(-1) * torch.where(pairs[:, 0] == pairs[:, 1], 1.0, 2.0)
        square = t.score.flatten(1).square().sum(-1)
        yield same(weight @ square[pairs].mean(-1), _squared_score(problem))
        loose.append(float(matrix.trace() / torch.linalg.eigvalsh(matrix)[-1]))
        yield at_most(1.0, loose[-1])
        yield at_most(loose[-1], torch.linalg.matrix_rank(matrix, hermitian=True))
    flat = fisher(two_policies([1 / 30] * 30, [1 / 30] * 30))
    of_thirty = flat.trace() / torch.linalg.eigvalsh(flat)[-1]
    yield numbers(least=min(loose), most=max(loose), cases=len(loose), of_thirty=of_thirty)


@claim("EMA-eq29-32", over=each(worlds))
def update_near_the_anchor(w: Enumeration) -> Iterator[Found]:
    """delta^T F delta / 2 and F delta against KL and gradient; the step is right to second order."""
    for left, order in ((of_value, 3), (of_gradient, 2), (of_step, 2)):
        yield printed(falls(w.problem, order, left))


@claim("EMA-eq29-32+empirical", over=each(worlds))
def fisher_of_samples(w: Enumeration) -> Iterator[Found]:
    """The quadratic form needs the mean over the policy's own responses, not over some sample."""
    score = w.s.flatten(1)
    yield same(w.E(score[:, :, None] * score[:, None, :]), fisher(w.problem), "inside")
    yield inside(falls(w.problem, 3, of_value))
    for x in directions(w.problem):
        kl = exact(reverse_kl, with_lag(w.problem, 1e-3 * x))[0]
        of_one_sample = (score @ x.flatten() * 1e-3).square() / 2
        yield same(of_one_sample / kl, 1.0)


@words("EMA-eq29-32+empirical")
def form_of_either_answer() -> dict[str, Any]:
    """KL from a lag of a thousandth, and the quadratic form of either sample."""
    small, lag = two_policies((0.75, 0.25), (0.5, 0.5)), torch.tensor([1e-3, 0.0], dtype=torch.float64)
    first, second = (terms(small).score.flatten(1) @ lag).square() / 2
    return {"kl": exact(reverse_kl, with_lag(small, lag[None]))[0], "first": first, "second": second}
