"""Where training with a published top-k estimator ends: the pull of its gradient bias."""

from __future__ import annotations

from functools import cache
from statistics import median
from typing import Any

import torch

from kl_book.ledger.claims.ground.top_k import PUBLISHED, mean_of_top_k
from kl_book.ledger.claims.ground.worlds import hedge_bandits, two_policies
from kl_companion.tabular import Problem

LIKELIEST = 10  # tokens in the top-k part, of a hundred


MASS = 0.9  # of a top-k part under the reference, for the example of where training stops


@cache
def at_the_reference() -> Problem:
    """Four tokens, policy and reference equal."""
    p = torch.tensor([1.0, 0.5, 0.0, -0.5]).double().softmax(-1).tolist()
    return two_policies(p, p)


def size_of_the_pull(problem: Problem, k: int) -> float:
    """|grad pi(S)| over |grad KL| for the policy's k likeliest of one softmax, in closed form."""
    p = problem.logits[0].softmax(-1)
    log_ratio = p.log() - problem.ref_logits[0].log_softmax(-1)
    inside = torch.zeros_like(p).index_fill(0, p.topk(k).indices, 1.0)
    pull, right = (p * (x - p @ x) for x in (inside, log_ratio))
    return float(pull.norm() / right.norm())


def stops_at(direction: str, chosen: torch.Tensor, problem: Problem) -> Problem:
    """The policy at which the published form with this fixed set has no expected gradient."""
    q = problem.ref_logits[0].log_softmax(-1)
    inside = chosen.to(q)
    pull = inside if direction == "reverse" else (1 + (q.exp() @ inside).sqrt() - inside).log()
    return problem._replace(logits=(q - pull)[None])


@cache
def numbers_of_the_pull() -> dict[str, Any]:
    """A counterexample at the reference, how large the bias is beside the KL, and where training stops."""
    first, small = torch.tensor([True, False, False, False]), at_the_reference()
    pulls = {direction: mean_of_top_k(PUBLISHED[direction][0], first, small)[1] for direction in PUBLISHED}
    several = [p for p in hedge_bandits() if len(p.sequences) == 100]
    near, _, far = (median(size_of_the_pull(p, LIKELIEST) for p in several[i : i + 10]) for i in (0, 10, 20))
    pair, head = two_policies((0.5, 0.5), (MASS, 1 - MASS)), torch.tensor([True, False])
    ends = {f"{d}_end": float(stops_at(d, head, pair).logits.softmax(-1)[0, 0]) for d in PUBLISHED}
    return {**pulls, **ends, "near": near, "far": far, "k": LIKELIEST, "mass": MASS}
