"""Appendix G.1 and line 6 of the algorithms: the mean reward as a baseline (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, numbers, printed, same
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import share_of_cases, times_score
from kl_book.ledger.claims.ground.unnormalized import normalized
from kl_book.ledger.claims.ground.world import World
from kl_book.ledger.claims.ground.worlds import three_policies

ANSWERS = 16  # per prompt in the source


def _batch_gradient(x: World, size: int, *, own: bool) -> torch.Tensor:
    """Mean update of w(R - b) over all batches; ``own``: the own reward is part of the mean b."""
    p, index = groups(x.problem, size)
    a = centered(x.R[index], "mean" if own else "leave_one_out")
    return torch.einsum("g,gi,girv->rv", p, x.rho[index] * a, x.s[index]) / size


@claim("RPG-alg1-baseline")
def the_mean_of_the_batch_is_no_baseline() -> Iterator[Found]:
    """With a sample's own reward in it, the mean takes away one Nth of the reward's gradient."""
    shares = []
    for x in (World(old.problem) for old in normalized() if len(old.p) < 7):
        for size in (2, 3):
            shrunk = _batch_gradient(x, size, own=True)
            shares.append(relative(shrunk, x.d_reward))
            yield printed(shares[-1])
            yield same(shrunk, (1 - 1 / size) * x.d_reward, "corrected")
            yield same(_batch_gradient(x, size, own=False), x.d_reward, "corrected")
    yield numbers(size=2, share=shares[0], answers=ANSWERS, factor=ANSWERS / (ANSWERS - 1))


def _best_constant(x: World) -> tuple[float, float]:
    """The constant baseline of least variance of w(R - b) score, and E[w^2 |score|^2]."""
    square = x.p * x.rho.square() * x.s.square().sum((-2, -1))
    return float(square @ x.R / square.sum()), float(square.sum())


def _spread(x: World, b: float) -> float:
    """Variance of w(R - b) score of one sample."""
    return x.var(times_score(x.R - b, x.problem))


@claim("RPG-G1-baseline")
def a_mean_reward_can_raise_the_variance() -> Iterator[Found]:
    """It lowers it exactly where it lies between 0 and twice the best constant."""
    nearly_solved = World(three_policies((0.9, 0.1), (0.5, 0.5), (0.9, 0.1)))
    nearly_solved = nearly_solved.replace(rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
    raised = []
    for x in (nearly_solved, *(World(old.problem) for old in normalized())):
        b, (best, size) = float(x.E(x.R)), _best_constant(x)
        change = _spread(x, b) - _spread(x, 0.0)
        raised.append(change > 1e-12)
        yield same(change, b * (b - 2 * best) * size, "corrected")
        yield same(x.Es(x.rho), 0.0, "corrected")
    yield printed(share_of_cases(raised))
    yield numbers(
        factor=_spread(nearly_solved, 0.9) / _spread(nearly_solved, 0.0),
        best=_best_constant(nearly_solved)[0],
        raised=sum(raised),
        worlds=len(raised),
    )
