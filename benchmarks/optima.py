"""Optimal policies of a million tokens, in float64, against one log-softmax of the same row."""

from __future__ import annotations

import statistics
import time

import torch

from kl_companion import DIVERGENCES, optimal_policy

VOCAB = 1_000_000
BETAS = (1e-6, 0.01, 1.0, 1e6)
ROUNDS = 3


def main() -> None:
    """Print, for each divergence, the slowest beta: seconds, and the ratio to a log-softmax beside it."""
    generator = torch.Generator().manual_seed(0)
    rewards, logits = torch.randn(2, VOCAB, generator=generator, dtype=torch.float64)
    ref_logp = (3 * logits).log_softmax(-1)
    print(
        f"\nOptimal policy of {VOCAB:,} tokens, float64; the slowest of beta = {', '.join(map(str, BETAS))}"
    )
    for name in DIVERGENCES:
        optimal_policy(rewards[:4], ref_logp[:4].log_softmax(-1), name)  # derive the slope once
        slowest = (0.0, 0.0)
        for beta in BETAS:
            pairs = []
            for _ in range(ROUNDS):
                start = time.perf_counter()
                optimal_policy(rewards, ref_logp, name, beta)
                middle = time.perf_counter()
                logits.log_softmax(-1)
                pairs.append((middle - start, time.perf_counter() - middle))
            seconds = statistics.median(ours for ours, _ in pairs)
            slowest = max(slowest, (seconds, statistics.median(a / b for a, b in pairs)))
        print(f"{name:<58}{slowest[1]:>8.1f}{slowest[0]:>10.4f}", flush=True)


if __name__ == "__main__":
    main()
