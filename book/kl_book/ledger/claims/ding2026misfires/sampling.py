"""Section 3, F7, and section 5: the noise of the sampled log-ratio in a coefficient (ding2026misfires)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, rises, same
from kl_book.ledger.claims.ground.calibration import (
    calibrated_update,
    every_group,
    mean_drift,
    mean_log_ratio,
    stale,
)
from kl_book.ledger.claims.ground.errors import turned
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import kl_gradient, log_ratio, variance
from kl_book.ledger.claims.ground.updates import binary, graded_trees
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, trees
from kl_companion.tabular import Problem

BETA = 4.0  # that of the source's main run


@claim("ZCPO-F7", over=each(bandits))
def centering_leaves_the_noise(w: Enumeration) -> Iterator[Found]:
    """Var(Delta_i - mean Delta) = (1 - 1/G) Var(Delta), above 0, and all answers have one exact KL."""
    for n in (2, 3):
        p, index = groups(w.problem, n)
        noise = variance(p, centered(w.l[index], "mean")[:, 0])
        yield same(noise, (1 - 1 / n) * w.var(w.l))
        yield less(0.0, noise)
    yield same(w.E(w.l), w.kl)


@claim("ZCPO-F7-same")
def the_exact_kl_has_no_noise_of_its_token() -> Iterator[Found]:
    """It is one number per prefix; for answers of one token the centered coefficients are all 0."""
    for w in each(bandits)():
        g = every_group(w.problem, 2)
        yield same(mean_drift(w.problem), w.kl)
        yield same(centered(g.drift, "mean"), 0.0)
        yield differs(centered(w.l[g.answers], "mean"), 0.0)
    for w in each(trees)():
        along, by_token = token_kls(w.problem, w.problem.logits), w.t.log_ratio
        for row in range(len(w.problem.logits)):
            here = (w.problem.rows == row) & (w.problem.completion_mask > 0)
            yield same(along[here], along[here][0])
            yield differs(by_token[here], by_token[here][0])


def _added(problem: Problem, drift: torch.Tensor) -> torch.Tensor:
    """What a KL in the coefficients adds to the expected update, [rows, vocab]."""
    return calibrated_update(problem, drift, BETA) - calibrated_update(problem, drift, 0.0)


@claim("ZCPO-4-notunbiased")
def exact_and_sampled_coefficients_have_other_updates() -> Iterator[Found]:
    """In a bandit the exact one adds nothing; in trees neither has the gradient of the sequence KL."""
    turns = []
    for problem in map(binary, bandits()[3:]):
        yield same(_added(problem, mean_drift(problem)), 0.0)
        yield differs(_added(problem, log_ratio(problem)), 0.0)
    for problem in graded_trees():
        by_exact, by_sample = (_added(problem, x(problem)) for x in (mean_drift, mean_log_ratio))
        yield differs(by_exact, by_sample)
        w, whole = Enumeration(problem), -BETA * kl_gradient(problem)
        yield same(-BETA * w.Es(w.l), whole)
        turns += [turned(added, whole) for added in (by_exact, by_sample)]
    yield less(0.0, min(turns))
    yield numbers(least=min(turns), most=max(turns))


@claim("ZCPO-5-F7scale", over=each(bandits))
def the_spread_of_k1_near_the_reference(w: Enumeration) -> Iterator[Found]:
    """Var(k1) = 2 KL to leading order: the ratio tends to 1 as the policy nears the reference."""
    nearer = [w.near(bound) for bound in (0.00125, 0.005, 0.02)]
    gaps = [abs(x.var(x.l) / (2 * x.kl) - 1) for x in nearer]
    yield rises(gaps, by=0.0)
    yield less(gaps[0], 1e-3, by=0.0)


@claim("ZCPO-5-cRestimate")
def the_sum_of_norms_from_a_sample() -> Iterator[Found]:
    """The number of tokens times the mean norm of some of them has the right mean."""
    g = every_group(stale()[-2], 3)
    strongest = int(g.advantage.abs().sum(-1).argmax())
    g = g.where(torch.tensor([strongest]))
    each_token = g.contributions(g.slopes(g.advantage))[0].flatten(0, 1)
    norms = each_token.flatten(1).norm(dim=-1)
    whole, total = float(norms.sum()), float(each_token.sum(0).norm())
    pairs = [len(norms) * float(norms[list(c)].mean()) for c in combinations(range(len(norms)), 2)]
    yield same(sum(pairs) / len(pairs), whole)
    rates = [1 - total / x for x in pairs if x > 0]
    yield numbers(rate=1 - total / whole, estimate=sum(rates) / len(rates))
