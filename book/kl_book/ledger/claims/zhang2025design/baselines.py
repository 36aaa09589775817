"""Appendix G.1 and line 6 of the algorithms: the mean reward as a baseline (zhang2025design)."""

from __future__ import annotations

import torch

from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.off_policy import rho, share_of_cases, times_score
from kl_book.ledger.claims.ground.sums import field, terms, variance
from kl_book.ledger.claims.ground.unnormalized import normalized
from kl_book.ledger.claims.ground.updates import utility_gradient
from kl_book.ledger.claims.ground.worlds import three_policies
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_companion.tabular import Problem

ANSWERS = 16  # per prompt in the source


def _batch_gradient(problem: Problem, size: int, *, own: bool) -> torch.Tensor:
    """Mean update of w(R - b) over all batches; ``own``: the own reward is part of the mean b."""
    p, index = groups(problem, size)
    a = centered(problem.rewards[index], "mean" if own else "leave_one_out")
    w = rho(problem)[index]
    return torch.einsum("g,gi,girv->rv", p, w * a, terms(problem).score[index]) / size


@claim("RPG-alg1-baseline")
def the_mean_of_the_batch_is_no_baseline() -> Evidence:
    """With a sample's own reward in it, the mean takes away one Nth of the reward's gradient."""
    printed, corrected, sizes = [], [], (2, 3)
    for problem in (w.problem for w in normalized() if len(w.problem.sequences) < 7):
        for size in sizes:
            wanted = utility_gradient(problem)
            shrunk = _batch_gradient(problem, size, own=True)
            printed.append(relative(shrunk, wanted))
            corrected.append(apart(shrunk, (1 - 1 / size) * wanted))
            corrected.append(apart(_batch_gradient(problem, size, own=False), wanted))
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            r"The mean reward of the other $N - 1$ samples leaves the gradient as it is. The mean of all $N$ "
            r"multiplies the reward's part by $1 - 1/N$, so that $\beta$ counts $N/(N-1)$ times."
        ),
        counterexample=(
            f"batches of {sizes[0]}: the expected update of the reward is {printed[0]:.0%} away from its "
            "gradient; by appendix C.1 a baseline leaves it as it is, as it depends on the state only"
        ),
        practice=(
            rf"With the {ANSWERS} answers per prompt of the source $\beta$ counts "
            rf"{ANSWERS / (ANSWERS - 1):.3f} times. It vanishes with large batches."
        ),
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
def a_mean_reward_can_raise_the_variance() -> Evidence:
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
    return Evidence(
        share_of_cases(raised),
        worst(corrected),
        unit="share of cases",
        correction=(
            r"The variance changes by $b(b - 2b^*)\E[w^2|s|^2]$, with $s$ the score and $b^* = \E[w^2|s|^2 "
            r"R] / \E[w^2|s|^2]$: it falls where $b$ lies between 0 and $2b^*$, and the mean reward need not."
        ),
        counterexample=(
            "two answers with probability 0.9 and 0.1 under policy and sampler, the likelier one right: "
            f"subtracting the mean reward 0.9 makes the variance {factor:.1f} times as large, as "
            f"$b^*$ = {_best_constant(solved)[0]:.2g}"
        ),
        practice=(
            f"It rises in {sum(raised)} of {len(raised)} worlds tried. Prompts that are nearly solved, as "
            "in the counterexample, are filtered out by the source."
        ),
    )
