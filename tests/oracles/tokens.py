"""What a mask, an aggregation, credit and weights mean, by loops; shares no code with the package.

A batch is a list of lists: one list per sequence, with the completion tokens only.
"""

import math


def aggregated(batch: list[list[float]], how: str, length: float | None = None) -> float:
    """One number from the values of all completion tokens."""
    if how == "token_mean":
        return math.fsum(x for row in batch for x in row) / sum(len(row) for row in batch)
    totals = []
    for row in batch:
        total = math.fsum(row)
        if how == "sequence_mean":
            total = total / len(row)
        elif how == "constant":
            total = total / length
        totals.append(total)
    return math.fsum(totals) / len(totals)


def weights(logp: list[float], behavior_logp: list[float], scope: str) -> list[float]:
    """pi / mu of each token: of itself, of the sequence up to it, or of the whole sequence."""
    out = []
    for t in range(len(logp)):
        chosen = {"token": [t], "prefix": list(range(t + 1)), "sequence": list(range(len(logp)))}[scope]
        product = 1.0
        for s in chosen:
            product = product * math.exp(logp[s]) / math.exp(behavior_logp[s])
        out.append(product)
    return out


def without_oneself(values: list[float], prompts: list[int]) -> list[float]:
    """Each value minus the mean of the others with the same prompt."""
    out = []
    for i in range(len(values)):
        others = [values[j] for j in range(len(values)) if j != i and prompts[j] == prompts[i]]
        out.append(values[i] - math.fsum(others) / len(others))
    return out
