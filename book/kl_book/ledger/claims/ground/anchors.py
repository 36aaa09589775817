"""One step of the EMA anchor by hand, and where it is walked (emapg2026, sections 3-4, appendix C).

The loops here are the source's updates and nothing else; every closed form is compared with them. Fisher
matrices are sums over all sequences of a small world. Leading axes [settings] run over the coefficients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from kl_book.ledger.claims.ground import errors, sums
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem

# a = alpha beta lambda_max as p + q eta, for the three regimes of lemma 4.2
NO_OSCILLATION = ((0.0, 0.0), (0.0, 0.5), (0.0, 1.0))
OSCILLATING = ((0.05, 1.0), (0.5, 1.0), (0.98, 0.98))
UNSTABLE = ((1.0, 1.0), (1.02, 1.02), (1.3, 1.3))
ETAS = (0.0, 0.5, 0.9, 0.99)
FORGETFUL = (0.0, 0.5, 0.9)  # those that a few hundred steps settle


class Rates(NamedTuple):
    """eta, alpha and beta: tensors [settings, 1], numbers or symbols."""

    eta: Any
    alpha: Any
    beta: Any


def ema_step(theta: Any, anchor: Any, gradient: Any, pull: Any, by: Rates) -> tuple[Any, Any]:
    """Eqs (29) and (2): policy and anchor move, both from the old policy; ``pull`` is the KL's gradient."""
    moved = theta + by.alpha * (gradient - by.beta * pull)
    return moved, by.eta * anchor + (1 - by.eta) * theta


def ema_cycle(
    theta: Any, anchor: Any, gradient: Any, pull: Callable[[Any, Any], Any], by: Rates, steps: int
) -> tuple[Any, Any]:
    """Algorithm 3, lines 13-27: ``steps`` gradient steps, then the anchor averages in the new policy."""
    for _ in range(steps):
        theta = theta + by.alpha * (gradient - by.beta * pull(theta, anchor))
    return theta, by.eta * anchor + (1 - by.eta) * theta


def linear_pull(theta: Any, anchor: Any) -> Any:
    """Pull of one mode, its curvature in the rates."""
    return theta - anchor


def fisher(problem: Problem) -> torch.Tensor:
    """E[s s^T] over all sequences, s the score in all logits, [rows * vocab, rows * vocab]."""
    t = sums.terms(problem)
    score = t.score.flatten(1)
    return torch.einsum("i,ij,ik->jk", t.p, score, score)


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Unit Gaussian numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@cache
def fishers() -> tuple[torch.Tensor, ...]:
    """Of two softmax policies and a tree, all singular; one of full rank; one of rank two."""
    x, y = normal(4, 4, seed=0), normal(5, 2, seed=1)
    return (*(fisher(p) for p in (bandits()[1], bandits()[7], trees()[0])), x @ x.T, y @ y.T)


class Walks(NamedTuple):
    """A Fisher matrix with many coefficients, and states to start from, one per setting.

    Attributes:
        fisher: [d, d].
        by: The coefficients, each [settings, 1].
        theta, anchor, gradient: [settings, d].
    """

    fisher: torch.Tensor
    by: Rates
    theta: torch.Tensor
    anchor: torch.Tensor
    gradient: torch.Tensor

    @property
    def lag(self) -> torch.Tensor:
        """theta - anchor at the start, [settings, d]."""
        return self.theta - self.anchor

    @property
    def unit(self) -> torch.Tensor:
        """I, [d, d]."""
        return torch.eye(len(self.fisher), dtype=torch.float64)

    @property
    def contraction(self) -> torch.Tensor:
        """D = eta I - alpha beta F, [settings, d, d]."""
        size = (self.by.alpha * self.by.beta)[..., None]
        return self.by.eta[..., None] * self.unit - size * self.fisher

    @property
    def strength(self) -> torch.Tensor:
        """alpha beta times the eigenvalues of F, in increasing order, [settings, d]."""
        return self.by.alpha * self.by.beta * torch.linalg.eigvalsh(self.fisher)

    @property
    def chi(self) -> torch.Tensor:
        """eta - alpha beta lambda: the eigenvalues of D, in the order of `strength`, [settings, d]."""
        return self.by.eta - self.strength

    def summed(self, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """D^k, S_k and M_k by repeated multiplication and addition, [settings, d, d] each."""
        d = self.contraction
        power, s, m = self.unit.expand_as(d), 0 * d, 0 * d
        for _ in range(k):
            power, s, m = power @ d, s + power, m + s
        return power, s, m

    def closed(self, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """D^k, and S_k and M_k of lemma 4.1 in closed form, [settings, d, d] each."""
        power, inverse = torch.linalg.matrix_power(self.contraction, k), self.inverse
        s = (self.unit - power) @ inverse
        return power, s, (k * self.unit - s) @ inverse

    @property
    def inverse(self) -> torch.Tensor:
        """(I - D)^{-1}, [settings, d, d]."""
        return torch.linalg.inv(self.unit - self.contraction)

    def modes(self, x: torch.Tensor) -> torch.Tensor:
        """Coordinates of x [..., d] in the eigenbasis of F, in the order of `strength`."""
        return x @ torch.linalg.eigh(self.fisher).eigenvectors

    def walk(self, steps: int, *, push: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(theta, anchor) before each step and after the last; without ``push`` the gradient is zero."""
        theta, anchor, gradient = self.theta, self.anchor, self.gradient * push
        path = [(theta, anchor)]
        for _ in range(steps):
            theta, anchor = ema_step(theta, anchor, gradient, (theta - anchor) @ self.fisher, self.by)
            path.append((theta, anchor))
        return path

    def lags(self, steps: int, *, push: bool = True) -> torch.Tensor:
        """The lag along `walk`, [steps + 1, settings, d]."""
        return torch.stack([theta - anchor for theta, anchor in self.walk(steps, push=push)])


def times(matrix: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Products of matrices [settings, d, d] and vectors [settings, d]."""
    return torch.einsum("nij,nj->ni", matrix, v)


def walks(
    matrix: torch.Tensor,
    levels: tuple[tuple[float, float], ...] = NO_OSCILLATION + OSCILLATING + UNSTABLE,
    etas: tuple[float, ...] = ETAS,
) -> Walks:
    """Every eta with every level p + q eta of alpha beta lambda_max."""
    pairs = torch.tensor([(e, p + q * e) for e in etas for p, q in levels], dtype=torch.float64)
    eta, a = pairs.T[..., None]
    alpha = torch.linspace(0.1, 0.9, len(pairs), dtype=torch.float64)[:, None]
    beta = a / (alpha * torch.linalg.eigvalsh(matrix)[-1])
    theta, anchor, gradient = normal(3, len(pairs), len(matrix), seed=len(matrix))
    return Walks(matrix, Rates(eta, alpha, beta), theta, anchor, gradient)


def all_walks(
    levels: tuple[tuple[float, float], ...] = NO_OSCILLATION + OSCILLATING + UNSTABLE,
    etas: tuple[float, ...] = ETAS,
) -> Iterator[Walks]:
    """`walks` for each of `fishers`."""
    return (walks(matrix, levels, etas) for matrix in fishers())


def apart_by_size(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference, relative to what is wanted where that is large; NaN becomes infinite."""
    error = (found - wanted).abs() / (1 + wanted.abs())
    return float("inf") if error.isnan().any() else float(error.max())


def top_curvature(theta: torch.Tensor) -> float:
    """Largest eigenvalue of the Fisher matrix diag(p) - p p^T of one softmax [vocab]."""
    p = theta.softmax(-1)
    return float(torch.linalg.eigvalsh(p.diag() - p[:, None] * p)[-1])


ROUNDING = 1e-14  # a remainder as small as this is rounding


def with_lag(problem: Problem, lag: torch.Tensor) -> Problem:
    """The reference is the policy moved back by ``lag`` [rows, vocab]."""
    return problem._replace(ref_logits=problem.logits - lag)


def falls_as_power(found: list[float], order: int) -> float:
    """Error of "falls as size^order": what each tenth of the size leaves beyond one and a half times that."""
    return errors.violation(*(b - 1.5 * 10.0**-order * a - ROUNDING for a, b in pairwise(found)))


def changing_fisher(t: int) -> torch.Tensor:
    """A Fisher matrix that changes from step to step, [6, 6]."""
    x = normal(6, 4, seed=20 + t)
    return x @ x.T


class AnchorStep(NamedTuple):
    """One step: (policy, anchor) before and after it, and what they were moved by."""

    by: Rates
    fisher: torch.Tensor
    gradient: torch.Tensor
    before: tuple[torch.Tensor, torch.Tensor]
    after: tuple[torch.Tensor, torch.Tensor]


def changing_steps() -> Iterator[AnchorStep]:
    """Five steps for each of several rates, with another matrix and gradient at every step."""
    for by in map(Rates, (0.0, 0.5, 0.95, 0.9), (0.3, 0.1, 1.0, 0.5), (0.1, 2.0, 0.0, 0.7)):
        theta, anchor = normal(2, 6, seed=50)
        for t, gradient in enumerate(normal(5, 6, seed=51)):
            matrix = changing_fisher(t)
            after = ema_step(theta, anchor, gradient, matrix @ (theta - anchor), by)
            yield AnchorStep(by, matrix, gradient, (theta, anchor), after)
            theta, anchor = after
