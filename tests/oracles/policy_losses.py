"""Policy-gradient losses written out sequence by sequence; shares no code with the package.

A group is a list of dicts, one per sequence: ``r`` (reward over beta), ``pi``, ``ref``, ``mu`` (log-probs
of the sequence). What is computed is the number in front of the score of each sequence.
"""

import itertools
import math


def groups(chances, size):
    """(indices, probability) of every ordered group of independent draws."""
    for indices in itertools.product(range(len(chances)), repeat=size):
        chance = 1.0
        for i in indices:
            chance *= chances[i]
        yield indices, chance


def log_z(how, group, j):
    """What stands for log Z in front of sequence ``j``."""
    counted = [y for i, y in enumerate(group) if not (how.endswith("_others") and i == j)]
    if how.startswith("importance"):
        return math.log(sum(math.exp(y["r"] + y["ref"] - y["mu"]) for y in counted) / len(counted))
    if how.startswith("lower_bound"):
        return sum(y["r"] + y["ref"] - y["pi"] for y in counted) / len(counted)
    return sum(y["r"] for y in counted) / len(counted)


def slope(estimator, y, z):
    """Derivative of the estimator with respect to the log-prob of ``y``, the target in place of ref."""
    log_w = y["ref"] + y["r"] - y["pi"] - z
    if estimator == "k1":
        return 1.0
    if estimator in ("k2", "k3_plus_plus", "k4"):
        return -log_w
    return 1.0 - math.exp(log_w)  # k3, k5


def passes(y, group, low, high):
    """0 or 1: whether PPO's clip lets the sequence through."""
    advantage = y["r"] - sum(other["r"] for other in group) / len(group)
    ratio = math.exp(y["pi"] - y["mu"])
    if advantage > 0:
        return 1.0 if ratio <= 1 + high else 0.0
    if advantage < 0:
        return 1.0 if ratio >= 1 - low else 0.0
    return 1.0


def softmax_weight(group, j):
    """Weight of sequence ``j`` in its group: target over sampler, so scaled that the group sums to 1."""
    share = [math.exp(y["r"] + y["ref"] - y["mu"]) for y in group]
    return share[j] / sum(share)


def centered(values, j, how):
    mean = sum(values) / len(values)
    if how == "none":
        return values[j]
    if how == "mean":
        return values[j] - mean
    if how == "leave_one_out":
        return values[j] - (sum(values) - values[j]) / (len(values) - 1)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return (values[j] - mean) / (spread + 1e-4)


def sign(x):
    return (x > 0) - (x < 0)


# weights of the score in w = target / policy, shifted so that they vanish at w = 1
PHI = {
    "reverse_kl": lambda w: -math.log(w),
    "forward_kl": lambda w: 1 - w,
    "jensen_shannon": lambda w: 0.5 * math.log(2 / (1 + w)),
    "squared_hellinger": lambda w: (1 - math.sqrt(w)) / 2,
    "pearson": lambda w: 2 / w - 2,
    "neyman": lambda w: 1 - w * w,
    "total_variation": lambda w: sign(1 - w) / 2,
}
PSI = {
    "reverse_kl": lambda w: 1 - w,
    "forward_kl": lambda w: -math.log(w),
    "jensen_shannon": lambda w: 0.5 * math.log(2 / (1 + w)),
    "squared_hellinger": lambda w: (1 - math.sqrt(w)) / 2,
    "pearson": lambda w: 1 - w * w,
    "neyman": lambda w: 2 / w - 2,
    "total_variation": lambda w: sign(1 - w) / 2,
}
