"""Variances of the values of k2 and k3 against that of k1, and where they are smaller."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

import sympy

from kl_book.ledger.claims.comparisons import Shortfall, regardless
from kl_book.ledger.claims.ground import errors, off_policy
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import near, two_policies, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem


@cache
def far_apart() -> Problem:
    """A world where both k2 and k3 have the larger variance."""
    return two_policies((0.99, 0.01), (0.5, 0.5))


def excess_of_k3(problem: Problem) -> float:
    """Error of "Var k3 - Var k1 = chi2(p||q) - 2 [KL(q||p) + KL(p||q)]", relative."""
    w = Enumeration(problem)
    chi2 = float(w.E((-2 * w.value("k1")).exp())) - 1
    return abs(w.var(w.value("k3")) - w.var(w.value("k1")) - (chi2 - 2 * (w.kl + w.forward))) / (1 + chi2)


# The largest p/q at which the term (p/q - 1) (p/q - 1 - 2 log(p/q)) of the difference below is not positive:
# the root beyond 1 of w - 1 = 2 log w
K3_BOUND = float(-2 * sympy.LambertW(-sympy.exp(-sympy.Rational(1, 2)) / 2, -1))


WITHIN = {"k2": 1.0, "k3": math.log(K3_BOUND)}  # largest |k1| for which the variance cannot grow


@cache
def one_sided() -> tuple[Problem, ...]:
    """p/q at most `K3_BOUND`, on a rare arm exactly that, while q/p is large on some arms."""
    pairs = [((0.5, 0.5), (0.99, 0.01)), ((0.4, 0.4, 0.2), (0.2, 0.799, 0.001)), ((0.7, 0.3), (0.5, 0.5))]
    pairs += [((1 - d, d), (1 - d * K3_BOUND, d * K3_BOUND)) for d in (0.1, 1e-2, 1e-4)]
    return tuple(two_policies(q, p) for q, p in pairs)


@cache
def just_beyond() -> Problem:
    """p/q a thousandth above `K3_BOUND` on one rare arm: k3 has the larger variance already."""
    d = 1e-5
    return two_policies((1 - d, d), (1 - 1.001 * d * K3_BOUND, 1.001 * d * K3_BOUND))


def larger(name: str, problem: Problem) -> bool:
    """Whether an estimate has a larger variance than k1, up to rounding."""
    w = Enumeration(problem)
    return w.var(w.value(name)) > w.var(w.value("k1")) * (1 + 1e-12)


def smaller_variances(*names: str) -> Iterator[Shortfall]:
    """The variances of these values stay below that of k1, and none of their samples is negative.

    As printed everywhere, inside where |k1| is small. The derivative of k2 in k1 is k1: where it is at most 1
    in size, the variance cannot grow. For k3, the exact difference is chi2(p||q) - 2 [KL(q||p) + KL(p||q)],
    the mean under q of (p/q - 1) (p/q - 1 - 2 log(p/q)), which is negative between 1 and `K3_BOUND`, and
    below 1.
    """
    far = (*worlds(), far_apart())
    closer = [larger(n, near(p, WITHIN[n])) for n in names for p in worlds()]
    if "k3" in names:
        closer += [larger("k3", p) for p in one_sided()]
        closer += [excess_of_k3(p) > TOLERANCE for p in far]
        closer.append(not larger("k3", just_beyond()))  # the bound is sharp
    yield Shortfall("printed", off_policy.share_of_cases(larger(n, p) for n in names for p in far))
    yield Shortfall("inside", off_policy.share_of_cases(closer))
    for name, w in itertools.product(names, each(worlds)()):
        yield from regardless(errors.violation(-float(w.value(name).min())))
