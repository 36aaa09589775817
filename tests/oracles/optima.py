"""A regularized reward maximized directly: mass moves between two tokens while it pays.

Nothing here knows of a multiplier. What a unit of mass of a token costs at the margin, f'(p/q), is written
out by hand for each divergence.
"""

import math
from itertools import combinations


def _power(a):
    """(t^a - 1 - a (t - 1)) / (a (a - 1)): its slope."""
    return lambda t: (t ** (a - 1) - 1) / (a - 1) if t > 0 or a > 1 else -math.inf


SLOPES = {
    "reverse_kl": lambda t: math.log(t) if t > 0 else -math.inf,
    "forward_kl": lambda t: 1 - 1 / t if t > 0 else -math.inf,
    "jensen_shannon": lambda t: 0.5 * math.log(2 * t / (t + 1)) if t > 0 else -math.inf,
    "squared_hellinger": lambda t: 0.5 - 0.5 / math.sqrt(t) if t > 0 else -math.inf,
    "pearson": lambda t: 2 * t - 2,
    "neyman": lambda t: 1 - 1 / t**2 if t > 0 else -math.inf,
    "amari_alpha(0.5)": lambda t: 4 * (1 - t**-0.25) if t > 0 else -math.inf,
    "power_divergence(1.5)": lambda t: 2 * (math.sqrt(t) - 1),
    "power_divergence(3)": _power(3.0),
    "power_divergence(-1)": _power(-1.0),
    "amari_alpha(-3)": lambda t: (1 - t**-2) / 2 if t > 0 else -math.inf,
}
# what a unit of mass costs where the reference has none: the limit of the slope
OUTSIDE = {
    "forward_kl": 1.0,
    "jensen_shannon": 0.5 * math.log(2),
    "squared_hellinger": 0.5,
    "neyman": 1.0,
    "amari_alpha(0.5)": 4.0,
    "power_divergence(-1)": 0.5,
    "amari_alpha(-3)": 0.5,
}


def marginal(name, rewards, reference, beta, i, p):
    """What one more unit of mass of token i is worth: r - beta f'(p/q)."""
    if reference[i] == 0:
        return rewards[i] - beta * OUTSIDE.get(name, math.inf)
    return rewards[i] - beta * SLOPES[name](p / reference[i])


def best_policy(name, rewards, reference, beta, sweeps=3000):
    """The maximizer of sum p r - beta sum q f(p/q), as a list of probabilities; plain floats.

    Each step moves mass between two tokens to where the last unit moved is worth nothing.
    """
    policy = list(reference)
    for _ in range(sweeps):
        most = 0.0
        for i, j in combinations(range(len(policy)), 2):
            both = policy[i] + policy[j]
            if both == 0:
                continue

            def gain(p, i=i, j=j, both=both):
                return marginal(name, rewards, reference, beta, i, p) - marginal(
                    name, rewards, reference, beta, j, both - p
                )

            low, high = 0.0, both
            for _ in range(80):
                middle = (low + high) / 2
                low, high = (middle, high) if gain(middle) > 0 else (low, middle)
            moved = high if gain(both) > 0 else low if gain(0.0) <= 0 else (low + high) / 2
            most = max(most, abs(moved - policy[i]))
            policy[i], policy[j] = moved, both - moved
        if most < 1e-13:
            break
    return policy
