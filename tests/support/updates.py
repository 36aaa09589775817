"""The choices of the hand-written step, the `Recipe` that stands for them, and prompts to try both on."""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.auditing.updates import Recipe, prompt
from kl_companion.kl_term import KLTerm
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem
from kl_companion.tabular.populations import Population, population_tree
from tests.oracles import updates as oracle
from tests.oracles.sampling import as_world

GRADED = (0.0, 0.7, 0.2, 1.0)
PROMPTS = {
    "on-policy": prompt(0.5, GRADED),
    "stale": prompt(0.3, GRADED, off_policy=True, scale=0.5),
    "tree": population_tree(3, 2, parts=6, seed=3, eos=True),
    "stale tree": population_tree(3, 2, parts=6, seed=5, eos=True, off_policy=True, scale=1.5),
}
SIZES = {"on-policy": 3, "stale": 3, "tree": 2, "stale tree": 2}
PLACES: dict[str, dict[str, Any]] = {
    "before": {"placement": "reward"},
    "after": {"placement": "reward"},
    "after_whole": {"placement": "reward", "level": "sequence"},
    "loss": {"placement": "loss", "importance": None},
    "loss_weighted": {"placement": "loss"},
    "score": {"placement": "score"},
}


def value_of(leaf: tuple[int, ...], t: int) -> float:
    """A critic that knows nothing."""
    return 0.25 * t - 0.1 * leaf[t]


def critic(rollout: Rollout) -> torch.Tensor:
    """The same as a function of a batch."""
    return 0.25 * torch.arange(rollout.tokens.shape[1]) - 0.1 * rollout.tokens.double()


def recipe_of(**choices: Any) -> Recipe:
    """The record of a step of `tests.oracles.updates`."""
    o = {**oracle.STEP, **choices}
    return Recipe(
        advantage=o["advantage"],
        kl=None if o["kl"] is None else KLTerm(o["kl"], **PLACES[o["place"]]),
        beta=o["beta"],
        penalty="after" if o["place"] in ("after", "after_whole") else "before",
        policy_loss=o["surrogate"],
        clip=(o["low"], o["high"]),
        dual_clip=o["dual"],
        aggregate=o["aggregate"],
        length=o["length"],
        entropy=o["entropy"],
        eps=o["eps"],
        unbiased=bool(o["ddof"]),
        sampler_cap=o["cap"],
        keep_ratios=o["keep_ratios"],
        keep_kl=o["keep_kl"],
        critic=critic if callable(o["critic"]) else o["critic"],
        gamma=o["gamma"],
        lam=o["lam"],
    )


def policies(problem: Problem) -> list[list[list[float]]]:
    """Logits of policy, reference and sampler as plain numbers."""
    return [x.tolist() for x in (problem.logits, problem.ref_logits, problem.sampled_from)]


def by_hand(at: Population, size: int | None, **choices: Any) -> torch.Tensor:
    """The expected update of the oracle, [rows, vocab]; a size of None is that of large batches."""
    world, tables = as_world(at.problem), policies(at.problem)
    if size is None:
        found = oracle.in_large_batches(world, *tables, **choices)
    else:
        found = oracle.expected(world, *tables, size, **choices)
    return torch.tensor(found, dtype=torch.float64)


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """|a - b| over |b|."""
    return ((a - b).norm() / b.norm()).item()
