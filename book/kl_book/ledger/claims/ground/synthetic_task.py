"""The synthetic task of appendix G at 32,000 tokens: every form of top-k KL in closed form (emapg2026).

The source draws samples; here the mean and the variance of every form are sums over the vocabulary. With
coefficients c, the gradient c (e_y - p) of a sampled token y has the squared norm c^2 (1 - 2 p_y + |p|^2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.sums import exact, reverse_kl
from kl_companion.tabular import Problem, bandit

VOCAB = 32_000
MASSES = (0.2, 0.5, 0.8, 0.9)
SEEDS = (0, 1, 2, 3)
HEADS = (4, 8, 16, 32, 64, 128, 256)
DRAWS = tuple(2**i for i in range(16))
SETTING = f"{VOCAB:,} tokens, top-32 mass {MASSES}, K of {HEADS[0]} to {HEADS[-1]}, {len(SEEDS)} tasks each"


class SyntheticTask(NamedTuple):
    """A pair of next-token distributions: the target mass, its seed, log-probs, the KL and its gradient."""

    mass: float
    seed: int
    logp: torch.Tensor
    ref_logp: torch.Tensor
    kl: float
    gradient: torch.Tensor

    @property
    def log_ratio(self) -> torch.Tensor:
        """log p/q."""
        return self.logp - self.ref_logp

    @property
    def size(self) -> float:
        """Norm of the gradient."""
        return float(self.gradient.norm())


@cache
def world() -> Problem:
    """One decision among 32,000."""
    return bandit(VOCAB)


def task_of(mass: float, seed: int, logp: torch.Tensor, ref_logp: torch.Tensor) -> SyntheticTask:
    """A `SyntheticTask` with its exact KL."""
    kl, slope = exact(reverse_kl, world()._replace(logits=logp[None], ref_logits=ref_logp[None]))
    return SyntheticTask(mass, seed, logp, ref_logp, kl, slope.flatten())


@cache
def task(mass: float, seed: int) -> SyntheticTask:
    """A pair of eqs (104)-(107): the scale of the policy's logits is found by bisection."""
    generator = torch.Generator().manual_seed(seed)
    ref, z = (torch.randn(VOCAB, generator=generator, dtype=torch.float64) for _ in range(2))
    ordered = z.sort(descending=True).values
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        short = float((middle * ordered).softmax(-1)[:32].sum()) < mass
        low, high = (middle, high) if short else (low, middle)
    return task_of(mass, seed, (low * z).log_softmax(-1), ref.log_softmax(-1))


def tasks() -> Iterator[SyntheticTask]:
    """Every task of the sweep."""
    return (task(m, seed) for m in MASSES for seed in SEEDS)


def of_scores(x: SyntheticTask, coefficient: torch.Tensor) -> torch.Tensor:
    """E[c s]: mean gradient with these coefficients of the score."""
    weighted = x.logp.exp() * coefficient
    return weighted - x.logp.exp() * weighted.sum()


def head(x: SyntheticTask, k: int) -> torch.Tensor:
    """Mask of the policy's k likeliest tokens."""
    return torch.zeros_like(x.logp).index_fill(0, x.logp.topk(k).indices, 1.0)


class Errors(NamedTuple):
    """A gradient estimate against |grad KL|: its bias, and the standard deviation of one draw."""

    bias: float
    noise: float

    def at(self, draws: float) -> float:
        """RelRMSE of eq (108) with so many draws."""
        return math.hypot(self.bias, self.noise / math.sqrt(draws))


def errors_of(x: SyntheticTask, inside: torch.Tensor, outside: torch.Tensor) -> Errors:
    """A summed part with coefficients ``inside``, and a sampled part with coefficients ``outside``."""
    p, tail = x.logp.exp(), of_scores(x, outside)
    second = (p * outside.square() * (1 - 2 * p + p.square().sum())).sum()
    spread = math.sqrt(max(0.0, float(second - tail.square().sum())))
    return Errors(float((of_scores(x, inside) + tail - x.gradient).norm()) / x.size, spread / x.size)


@cache
def forms(x: SyntheticTask, k: int) -> dict[str, Errors]:
    """Every form with the policy's k likeliest tokens as its head; only `sampled` has none."""
    top, score = head(x, k), x.log_ratio
    rest, none = 1 - top, torch.zeros_like(score)
    return {
        "sampled": errors_of(x, none, score),
        "truncated": errors_of(x, top * (score + 1), none),
        "published": errors_of(x, top * (score + 1), rest * score),
        "generic": errors_of(x, top * (score + 1), rest * (score + 1)),
        "bregman": errors_of(x, top * score, rest * score),
    }


def critical(form: Errors, floor: Errors) -> float:
    """Draws from which a form has a smaller error than the truncated one; infinite where none is enough."""
    room = floor.bias**2 - form.bias**2
    return form.noise**2 / room if room > 0 else math.inf
