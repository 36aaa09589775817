"""Groups of answers with rewards and costs, every order of them; shares no code with the package."""

import itertools
import math


def spread(values, unbiased):
    """Standard deviation, 0 where all agree."""
    if max(values) == min(values):
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - unbiased))


def advantages(values, how, eps, unbiased):
    """Of the members of one group."""
    mean, n = sum(values) / len(values), len(values)
    if how == "mean":
        return [v - mean for v in values]
    if how == "leave_one_out":
        return [v - (sum(values) - v) / (n - 1) for v in values]
    sd = spread(values, unbiased)
    return [(v - mean) / (sd + eps) if sd else 0.0 for v in values]


def expected(values, chances, size, how="group_std", eps=0.0, unbiased=0):
    """E[advantage of the first member | which answer it is], over all ordered groups."""
    found = []
    for first in range(len(values)):
        total = 0.0
        for others in itertools.product(range(len(values)), repeat=size - 1):
            chance = math.prod(chances[i] for i in others)
            group = [values[i] for i in (first, *others)]
            total += chance * advantages(group, how, eps, unbiased)[0]
        found.append(total)
    return found


def fit(target, rewards, costs, chances):
    """(a, b, degrees): target = a reward - b cost + constant + rest, weighted by the chances."""

    def inner(x, y):
        mean_x, mean_y = (sum(c * v for c, v in zip(chances, z, strict=True)) for z in (x, y))
        return sum(c * (u - mean_x) * (v - mean_y) for c, u, v in zip(chances, x, y, strict=True))

    rr, cc, rc = inner(rewards, rewards), inner(costs, costs), inner(rewards, costs)
    tr, tc, tt = inner(target, rewards), inner(target, costs), inner(target, target)
    determinant = rr * cc - rc * rc
    a, b = (tr * cc - tc * rc) / determinant, -(tc * rr - tr * rc) / determinant
    explained = (a * tr - b * tc) / tt
    return a, b, math.degrees(math.acos(math.sqrt(min(1.0, explained))))


def coin(success, beta, size, before):
    """(gain, effective beta, degrees) of rewards 0 and 1 and independent costs of +1 and -1."""
    rewards, costs = [1.0, 1.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0]
    chances = [success / 2, success / 2, (1 - success) / 2, (1 - success) / 2]
    charged = [r - beta * c for r, c in zip(rewards, costs, strict=True)]
    target = expected(charged if before else rewards, chances, size)
    if not before:
        target = [t - beta * c for t, c in zip(target, costs, strict=True)]
    a, b, rest = fit(target, rewards, costs, chances)
    return a, b / a, rest
