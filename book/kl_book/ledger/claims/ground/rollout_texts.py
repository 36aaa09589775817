"""Sentences that several findings on appendix J of emapg2026 share, with their numbers."""

from __future__ import annotations

import torch

from kl_book.ledger.claims.ground.rollouts import eq147, first_logit, kl_to_target, rollouts
from kl_book.ledger.claims.ground.sums import field
from kl_companion.tabular import Problem

ANSWERS = r"two answers, $\pi$ = (0.9, 0.1), $\pref$ = (0.5, 0.5), $R$ = (1, 0)"


WORLD = f"{ANSWERS}, first logit"


HALF_OF_K2 = r"the $\frac{1}{2}$ of K2"


FACTOR_TWO = (
    "a factor 2 on the whole loss is one on the step size. It counts where another term stands beside it: a "
    r"KL in the loss with a $\beta$ of its own has half the weight then"
)


def missing_half(printed: torch.Tensor, problem: Problem) -> str:
    """The counterexample of a missing half."""
    return (
        f"{WORLD}: the printed square has the expected gradient {first_logit(field(printed, problem)):.4f}, "
        rf"$\KL{{\pi}}{{\pi^*}}$ {first_logit(kl_to_target(problem)[1]):.4f}"
    )


def in_brackets(x: torch.Tensor) -> str:
    """Numbers in a bracket."""
    return "(" + ", ".join(f"{float(v):.3g}" for v in x) + ")"


K3_IS_K5 = (
    r"$(1 - w)\nabla\log \pi$ in every sample, which is K5's gradient: K3 minimizes $\KL{\pi^*}{\pi}$ "
    "alone, as RWR and MPO do, and the reward enters through $w$ only. GRPO and MPO together are K1 in the "
    "reward and K5 as a loss"
)


K3PP_IS_K2 = (
    rf"$\nabla L_{{3++}} = \nabla L_2$ in every sample, with {HALF_OF_K2}: K3++ is APA alone, and no term of "
    "$L_1$ is in it"
)


def another_optimum() -> str:
    """What K3 trains instead of the sum, in words."""
    sums = []
    for problem in rollouts():
        found = kl_to_target(problem, forward=True)[1]
        sums.append(float(found.norm() / (found + eq147(problem)).norm()))
    return (
        "a loss K3 that is trained because it should contain GRPO trains RWR and MPO alone: in the "
        f"{len(sums)} worlds that were tried its gradient has {min(sums):.0%} to {max(sums):.0%} of the "
        r"length of the sum in table 8. The optimum $\pi^*$ is that of this sum as well; the way there "
        "differs"
    )


def counted_twice() -> str:
    """What the printed sum of K3++ would train, in words."""
    return (
        "K3++ has the right optimum. The sum as it is printed counts the reward twice: its optimum is that "
        r"of $\beta/2$. With the $L_1$ of table 8 the sum is three times as long, and its direction the same"
    )
