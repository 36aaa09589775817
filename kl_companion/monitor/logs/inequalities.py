"""Inequalities that hold for every policy and every reference, at any length, without normality.

They concern tokens that were sampled from the policy that scores them. Write r for log policy - log reference
of a sampled token or answer: the mean of exp(-r) is at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

CHANCE = 7.0  # nats: what happens by chance less often than once in e^7, about 1,100 logs, is reported
K1_NOISE = (0.01, 2.0, 2.7)  # up to so many nats per token the variance of r is 2 K1; beyond at most 2.7 K1


def tail_threshold(tries: float, kept: float = 1.0) -> float:
    """Return the nats c that no r of a log is below by chance: P(r <= -c) <= exp(-c) for each of them.

    Args:
        tries: Number of answers, or of tokens, in the whole log.
        kept: Probability mass that the sampler keeps, 1 without top-p.

    Returns:
        c such that one of `tries` values is below -c with probability exp(-`CHANCE`) at most.
    """
    return math.log(max(1.0, tries)) + CHANCE - math.log(kept)


def negative_mean_exponent(mean: float, tokens: float) -> float:
    """Return c such that a mean of K1 over tokens is this negative with probability exp(-c) at most."""
    return max(0.0, -mean * tokens)


def mean_ratio(k1: float, k3: float) -> float:
    """Return the mean of reference/policy on the tokens of a K1 and a K3: 1 + K3 - K1, without a clamp."""
    return 1.0 + k3 - k1


def largest_product(ratios: Iterable[float]) -> float:
    """Return the logarithm of the largest product of the first ratios, whichever number of them.

    Every ratio has an expectation of at most 1, given the rows before it. By Ville's inequality the product
    reaches a somewhere with probability 1/a at most.
    """
    total = best = 0.0
    for ratio in ratios:
        total += math.log(ratio) if ratio > 0 else -math.inf
        best = max(best, total)
    return best


def k1_error(kl: float, tokens: float) -> tuple[float, float]:
    """Return bounds of the standard error of a mean of K1 over independent tokens, of the mean `kl`."""
    small, usual, most = K1_NOISE
    least = usual if kl <= small else 1.2
    top = usual if kl <= small else most
    return math.sqrt(least * kl / tokens), math.sqrt(top * kl / tokens)


def k1_error_from_k2(k2: float, tokens: float) -> float:
    """Return the standard error of a mean of K1 over independent tokens, by the K2 of the same tokens."""
    return math.sqrt(2.0 * k2 / tokens)


def k3_error(kl: float, tokens: float) -> tuple[float, float] | None:
    """Return bounds of the standard error of a mean of K3; None above 0.1 nats, where tokens give none."""
    if kl > 0.1:
        return None
    low, high = (1.8, 5.0) if kl <= 0.035 else (5.0, 47.0)
    return low * kl / math.sqrt(tokens), high * kl / math.sqrt(tokens)


def token_of_excess(excess: float, tokens: float) -> float | None:
    """Return r of the one token whose K3 raises a mean over tokens by `excess`; None where none is needed.

    K3 = exp(-r) - 1 + r is about exp(-r) for a token that the reference finds much likelier.
    """
    size = excess * tokens
    if size <= 3:
        return None
    r = -math.log(size)
    for _ in range(20):  # exp(-r) = size + 1 - r
        r = -math.log(max(1.0, size + 1 - r))
    return r


def success_bound(before: float, after: float) -> float:
    """Return the least KL per answer in nats that raises a success rate from `before` to `after`."""
    pairs = ((after, before), (1 - after, 1 - before))
    return sum(p * math.log(p / q) for p, q in pairs if p > 0 and q > 0)


def small_sample_factor(group: float) -> float:
    """Return the mean standard deviation of normal groups of this size in units of sigma (c4)."""
    if group < 2:
        return math.nan
    return math.sqrt(2 / (group - 1)) * math.exp(math.lgamma(group / 2) - math.lgamma((group - 1) / 2))


def pair_bounds(k1: float, k2: float) -> bool:
    """Return whether a K1 and a K2 can be means over the same tokens: K2 >= K1^2 / 2."""
    return k2 >= 0.5 * k1 * k1 * (1 - 1e-6)


def quotient_interval(
    numerators: Sequence[float], half: float, denominators: Sequence[float]
) -> list[tuple[float, float]]:
    """Return the interval of every quotient whose numerator was rounded by `half` at most."""
    return [((x - half) / y, (x + half) / y) for x, y in zip(numerators, denominators, strict=True) if y > 0]
