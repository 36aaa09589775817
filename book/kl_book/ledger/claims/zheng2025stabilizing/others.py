"""What is not computed here: training runs, and rows that nobody has examined yet (zheng2025stabilizing)."""

from __future__ import annotations

from kl_book.ledger.claims.ground.mixtures import (
    divergence_of_tokens,
    logps,
    mixtures,
    rounded,
    routed,
    updated,
)
from kl_book.ledger.claims.ground.reported import reported

MAIN = (
    "training runs of a cold-started Qwen3-30B-A3B-Base with FP8 inference, the source's 4,096 problems and "
    "settings, and its test sets"
)
SMALL = "training runs of the source's small Qwen3Next model from its three cold starts, and its test sets"
RUNS = (
    "QW-4.3-best",
    "QW-4.3-len-run",
    "QW-4.3-R3-run",
    "QW-4.4-essential",
    "QW-4.4-R2R3",
    "QW-4.5-peak",
)
OPEN = ("QW-A-grpo",)


def _with_other_experts() -> str:
    """What a change of experts adds to both distances, on tiny mixtures of two experts."""
    discrepancy, staleness = [], []
    for number, old in enumerate(mixtures()):
        now, coarse = updated(number), rounded(old)
        if (routed(coarse) != routed(old)).any():
            sampler = logps(coarse, routed(coarse))
            both = [divergence_of_tokens(sampler, logps(old, e)) for e in (routed(old), routed(coarse))]
            discrepancy.append(both[0] > both[1])
        if (routed(now) != routed(old)).any():
            before = logps(old, routed(old))
            both = [divergence_of_tokens(before, logps(now, e)) for e in (routed(now), routed(old))]
            staleness.append(both[0] > both[1])
    return (
        "On tiny mixtures of two experts that choose differently, the KL between the engines is larger "
        f"than with the same experts in {sum(discrepancy)} of {len(discrepancy)}, and the KL from the older "
        f"policy in {sum(staleness)} of {len(staleness)}"
    )


reported(
    "QW-3.1-entangled", "a mixture of experts in a training and an inference engine", _with_other_experts
)
