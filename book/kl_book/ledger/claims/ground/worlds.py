"""The small worlds on which claims are checked: bandits and trees, near the reference and far from it.

They are enumerated completely: see `kl_book.ledger.claims.ground.sums`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import torch

from kl_book.ledger.claims.ground.sums import terms
from kl_companion.tabular import Problem, bandit, prefix_tree, stack


@cache
def bandits() -> tuple[Problem, ...]:
    """Bandits of 2, 3 and 6 arms with policies near to and far from the reference."""
    return tuple(bandit(v, seed=7 * v + i, scale=s) for v in (2, 3, 6) for i, s in enumerate((0.3, 1.0, 2.5)))


@cache
def trees() -> tuple[Problem, ...]:
    """Trees of two and three steps, with sequences of one length and with end-of-sequence."""
    return (
        prefix_tree(2, 2, seed=1, scale=0.5),
        prefix_tree(3, 2, seed=2, scale=2.0),
        prefix_tree(2, 3, seed=3, eos=True),
        prefix_tree(3, 3, seed=4, eos=True, scale=2.0),
    )


def worlds() -> tuple[Problem, ...]:
    """`bandits` and `trees`; all on-policy."""
    return bandits() + trees()


@cache
def arms(count: int = 100, vocab: int = 100, scale: float = 1.0) -> Problem:
    """A stack of bandits as tang2025pitfalls, appendix C, draws them: one per seed."""
    return stack([bandit(vocab, seed=seed, scale=scale) for seed in range(count)])


@cache
def hedge_bandits() -> tuple[Problem, ...]:
    """The fixed list for hedged statements about one decision: 90 bandits, near the reference and far."""
    sizes = itertools.product((3, 10, 100), (0.3, 1.0, 2.5), range(10))
    return tuple(bandit(v, seed=seed, scale=s) for v, s, seed in sizes)


@cache
def hedge_trees() -> tuple[Problem, ...]:
    """The fixed list for hedged statements about sequences: 48 trees, near the reference and far."""
    shapes = ((2, 2, False), (3, 2, False), (2, 3, True), (3, 3, True))
    return tuple(
        prefix_tree(v, t, seed=seed, eos=eos, scale=s)
        for v, t, eos in shapes
        for s in (0.3, 1.0, 2.0)
        for seed in range(4)
    )


def two_policies(policy: Sequence[float], reference: Sequence[float]) -> Problem:
    """A bandit with these probabilities."""
    p, q = (torch.tensor([x], dtype=torch.float64).log() for x in (policy, reference))
    return bandit(len(policy))._replace(logits=p, ref_logits=q)


def tree_of(policy: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> Problem:
    """A tree of two steps with these next-token probabilities, one row per prefix."""
    p, q = (torch.tensor(x, dtype=torch.float64).log() for x in (policy, reference))
    return prefix_tree(len(policy[0]), 2)._replace(logits=p, ref_logits=q)


BOUND = 0.5  # k1 >= -1/2, so that 2 k1 + 1 >= 0


@cache
def sampled_elsewhere() -> tuple[Problem, ...]:
    """Bandits and trees, with and without end-of-sequence, that another policy samples."""
    flat = [bandit(v, seed=v, scale=s, off_policy=True) for v in (2, 3, 6) for s in (0.3, 1.0)]
    return (
        *flat,
        prefix_tree(3, 2, seed=5, off_policy=True, scale=2.0),
        prefix_tree(2, 3, seed=6, off_policy=True, eos=True),
    )


@cache
def all_worlds() -> tuple[Problem, ...]:
    """`worlds` and `sampled_elsewhere`: on-policy and off-policy."""
    return worlds() + sampled_elsewhere()


def three_policies(policy: Sequence[float], reference: Sequence[float], behavior: Sequence[float]) -> Problem:
    """A bandit with these probabilities, sampled from the third."""
    mu = torch.tensor([behavior], dtype=torch.float64).log()
    return two_policies(policy, reference)._replace(behavior_logits=mu)


@cache
def near(problem: Problem, bound: float = BOUND) -> Problem:
    """The same world with its policy pulled towards the reference until no log-ratio exceeds ``bound``.

    Raises:
        ValueError: halving the distance forty times is not enough.
    """
    shift = problem.logits - problem.ref_logits
    for halvings in range(40):
        closer = problem._replace(logits=problem.ref_logits + shift * 0.5**halvings)
        if float(terms(closer).log_ratio.sum(-1).abs().max()) <= bound:
            return closer
    raise ValueError(f"no policy towards the reference has log-ratios of at most {bound}")


def few_sampled_elsewhere() -> list[Problem]:
    """Worlds that another policy samples, so that some ratios leave the bounds."""
    return [p for p in sampled_elsewhere() if len(p.sequences) < 10]
