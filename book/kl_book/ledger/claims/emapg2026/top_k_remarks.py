"""Section 6 and figure 8: remarks on what head and tail of Top-k KL are good for (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, less, printed, same
from kl_book.ledger.claims.ground import positions, worlds
from kl_book.ledger.claims.ground.estimates import k4, k5, top_k_estimate
from kl_book.ledger.claims.ground.synthetic_task import HEADS, SyntheticTask, forms, tasks
from kl_book.ledger.claims.ground.top_k import PUBLISHED, bias_of_top_k, of_the_reference, of_the_sampler
from kl_book.ledger.claims.ground.world import Enumeration, each


def noise(x: SyntheticTask, k: int) -> float:
    """Standard deviation of one draw of the published form, as a share of that of the sampled one."""
    return forms(x, k)["published"].noise / forms(x, k)["sampled"].noise


@claim("EMA-6-positive-k")
def without_a_head_nothing_changes() -> Iterator[Found]:
    """k = 0 is K4 (forward: K5) sample by sample; each k of appendix G lowers the noise of every task."""
    for w in each(worlds.bandits)():
        for forward, sampled, right in ((False, k4, w.kl), (True, k5, w.forward)):
            everything, none = (partial(top_k_estimate, k=k, forward=forward) for k in (len(w.p), 0))
            yield same(w.value(everything), right)  # no noise is left
            yield same(w.slope(none), w.slope(sampled))
            yield same(w.value(none), w.value(sampled))
    for x in tasks():
        for k in HEADS:
            yield less(noise(x, k), 1.0)


@words("EMA-6-positive-k")
def noise_of_the_ends() -> dict[str, Any]:
    """Over all tasks, for the smallest and the largest k."""
    few, many = ([noise(x, k) for x in tasks()] for k in (HEADS[0], HEADS[-1]))
    return {
        "few": HEADS[0],
        "least_of_few": min(few),
        "most_of_few": max(few),
        "many": HEADS[-1],
        "least_of_many": min(many),
        "most_of_many": max(many),
    }


SETS = {"reverse": of_the_sampler, "forward": of_the_reference}
NEAR = worlds.three_policies((0.5, 0.3, 0.2), (0.2, 0.35, 0.45), (0.48, 0.33, 0.19))  # near the sampler


def biases(w: Enumeration, direction: str, chosen: torch.Tensor) -> tuple[float, float, float]:
    """Bias of the value: with the tail corrected by pi/mu, as it is sampled, and without a tail."""
    split, truth, _ = PUBLISHED[direction]
    without = split._replace(tail=lambda p, q: 0 * p)
    corrected = bias_of_top_k(split, truth, chosen, w.problem, w.rho)
    left, dropped = (bias_of_top_k(x, truth, chosen, w.problem) for x in (split, without))
    return abs(corrected[0]), abs(left[0]), abs(dropped[0])


def outside(w: Enumeration, direction: str, chosen: torch.Tensor) -> float:
    """The part of the KL that the tokens outside the head hold, by its definition."""
    p, q = w.problem.logits[0].log_softmax(-1), w.problem.ref_logits[0].log_softmax(-1)
    a, b = (p, q) if direction == "reverse" else (q, p)
    return abs((a.exp() * (a - b))[~chosen].sum().item())


def truncated(direction: str) -> Iterator[tuple[Enumeration, torch.Tensor]]:
    """Worlds that another policy samples, and every head of them that leaves a tail."""
    for w in each(lambda: worlds.sampled_elsewhere()[:6], NEAR)():
        yield from ((w, chosen) for chosen in [*SETS[direction](w.problem)][1:-1])


@claim("EMA-fig8-tail")
def an_uncorrected_tail() -> Iterator[Found]:
    """Corrected it is right; as it is sampled, and dropped, it misses the KL."""
    for direction in SETS:
        for w, chosen in truncated(direction):
            corrected, left, dropped = biases(w, direction, chosen)
            yield printed(corrected)
            yield at_most(positions.SMALLEST_BIAS, left)
            yield at_most(positions.SMALLEST_BIAS, dropped)
            yield same(dropped, outside(w, direction, chosen))


@words("EMA-fig8-tail")
def uncorrected_beside_dropped() -> dict[str, Any]:
    """How often the uncorrected tail is worse than none, and a case where it is better."""
    worse = {}
    for direction in SETS:
        of_all = [biases(w, direction, chosen) for w, chosen in truncated(direction)]
        worse[f"worse_{direction}"] = sum(left > dropped for _, left, dropped in of_all)
    _, left, dropped = biases(Enumeration(NEAR), "reverse", torch.tensor([True, False, False]))
    return {**worse, "cases": len(of_all), "left": left, "dropped": dropped}
