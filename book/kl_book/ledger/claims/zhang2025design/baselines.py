"""Appendix G.1 and line 6 of the algorithms: the mean reward as a baseline (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import rho, share_of_cases, times_score
from kl_book.ledger.claims.ground.sums import field, terms, variance
from kl_book.ledger.claims.ground.unnormalized import normalized
from kl_book.ledger.claims.ground.updates import utility_gradient
from kl_book.ledger.claims.ground.worlds import three_policies
from kl_companion.tabular import Problem

ANSWERS = 16  # per prompt in the source


def _batch_gradient(problem: Problem, size: int, *, own: bool) -> torch.Tensor:
    """Mean update of w(R - b) over all batches; ``own``: the own reward is part of the mean b."""
    p, index = groups(problem, size)
    a = centered(problem.rewards[index], "mean" if own else "leave_one_out")
    w = rho(problem)[index]
    return torch.einsum("g,gi,girv->rv", p, w * a, terms(problem).score[index]) / size


@claim("RPG-alg1-baseline")
def the_mean_of_the_batch_is_no_baseline() -> Iterator[Found]:
    """With a sample's own reward in it, the mean takes away one Nth of the reward's gradient."""
    printed, corrected, sizes = [], [], (2, 3)
    for problem in (w.problem for w in normalized() if len(w.problem.sequences) < 7):
        for size in sizes:
            wanted = utility_gradient(problem)
            shrunk = _batch_gradient(problem, size, own=True)
            printed.append(relative(shrunk, wanted))
            corrected.append(apart(shrunk, (1 - 1 / size) * wanted))
            corrected.append(apart(_batch_gradient(problem, size, own=False), wanted))
    yield from each_form(
        worst(printed),
        worst(corrected),
        sizes_0=sizes[0],
        printed_0=printed[0],
        ANSWERS=ANSWERS,
        number=ANSWERS / (ANSWERS - 1),
    )


def _best_constant(problem: Problem) -> tuple[float, float]:
    """The constant baseline of least variance of w(R - b) score, and E[w^2 |score|^2]."""
    t = terms(problem)
    w = rho(problem)
    square = t.p * w.square() * t.score.square().sum((-2, -1))
    return float(square @ problem.rewards / square.sum()), float(square.sum())


def _spread(problem: Problem, b: float) -> float:
    """Variance of w(R - b) score of one sample."""
    return variance(terms(problem).p, times_score(problem.rewards - b, problem))


@claim("RPG-G1-baseline")
def a_mean_reward_can_raise_the_variance() -> Iterator[Found]:
    """It lowers it exactly where it lies between 0 and twice the best constant."""
    solved = three_policies((0.9, 0.1), (0.5, 0.5), (0.9, 0.1))._replace(
        rewards=torch.tensor([1.0, 0.0], dtype=torch.float64)
    )
    raised, corrected = [], []
    for problem in (solved, *(w.problem for w in normalized())):
        b = float(terms(problem).p @ problem.rewards)
        best, size = _best_constant(problem)
        change = _spread(problem, b) - _spread(problem, 0.0)
        raised.append(change > 1e-12)
        corrected.append(apart(change, b * (b - 2 * best) * size))
        corrected.append(apart(field(rho(problem), problem), 0.0))
    factor = _spread(solved, 0.9) / _spread(solved, 0.0)
    yield from each_form(
        share_of_cases(raised),
        worst(corrected),
        factor=factor,
        number=_best_constant(solved)[0],
        sum_of_raised=sum(raised),
        number_of_raised=len(raised),
    )
