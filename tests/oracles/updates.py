"""A policy-gradient step written out answer by answer and token by token; shares no code with the package.

Worlds are the dicts of `tests.oracles.sampling`: ``leaves`` (tuples of tokens), ``row`` (prefix to row of
logits), ``reward``. Policies are lists of rows of logits, plain numbers. No gradient is computed by machine:
in front of the score of every token, e_token - p, stands a number, and `STEP` says what it is made of.
"""

import itertools
import math

# the choices of a step and what they are without being asked for
STEP = {
    "advantage": "group_std",  # none, mean, leave_one_out, others_std, whitened (first and last: of tokens)
    "eps": 0.0,
    "ddof": 1,
    "surrogate": "ppo",  # reinforce, importance, gspo, cispo
    "low": 0.2,
    "high": 0.2,
    "dual": None,
    "aggregate": "token_mean",  # sequence_mean, constant, sum
    "length": None,
    "kl": None,  # k1, k2, k3
    "place": "before",  # after, after_whole, loss, loss_weighted, score
    "beta": 0.3,
    "entropy": 0.0,
    "cap": None,
    "keep_ratios": None,
    "keep_kl": None,
    "critic": None,  # of (leaf, t), or "exact" or "reward"
    "gamma": 1.0,
    "lam": 1.0,
}
VALUE = {"k1": lambda x: x, "k2": lambda x: x * x / 2, "k3": lambda x: math.exp(-x) - 1 + x}
SLOPE = {"k1": lambda x: 1.0, "k2": lambda x: x, "k3": lambda x: 1 - math.exp(-x)}


def log_probs(policy):
    """Rows of log-probs."""
    out = []
    for row in policy:
        total = math.log(math.fsum(math.exp(x) for x in row))
        out.append([x - total for x in row])
    return out


def of_answer(world, table, leaf):
    """Log-prob of each token of one answer."""
    return [table[world["row"][leaf[:t]]][leaf[t]] for t in range(len(leaf))]


def chances(world, sampler):
    """Probability of every answer."""
    table = log_probs(sampler)
    return [math.exp(math.fsum(of_answer(world, table, leaf))) for leaf in world["leaves"]]


def ahead(values):
    """What is ahead of each token, itself included."""
    return [math.fsum(values[t:]) for t in range(len(values))]


def rewards_of_tokens(reward, costs):
    """Rewards of the tokens of one answer: minus the cost of each, and the answer's reward at its end."""
    return [*(-c for c in costs[:-1]), reward - costs[-1]]


def estimates(rewards, values, gamma, lam):
    """Advantages of the tokens of one answer; the value behind its last token is 0."""
    found, ahead, next_value = [], 0.0, 0.0
    for r, v in zip(reversed(rewards), reversed(values), strict=True):
        ahead = r + gamma * next_value - v + gamma * lam * ahead
        found.insert(0, ahead)
        next_value = v
    return found


def expected_return(leaves, chances, rewards, gamma):
    """A critic, a function of (leaf, t): the mean over all answers that begin like the leaf up to t."""

    def value(leaf, t):
        top = bottom = 0.0
        for other, p, r in zip(leaves, chances, rewards, strict=True):
            if len(other) > t and other[:t] == leaf[:t]:
                top += p * math.fsum(gamma**k * x for k, x in enumerate(r[t:]))
                bottom += p
        return top / bottom

    return value


def compared(values, weights, n, o):
    """Advantages of a group with weights that sum to 1; n of them, or None for infinitely many."""
    how = o["advantage"]
    if how == "none":
        return values
    if how == "others_std" and n is not None:
        return [beside(values[i], values[:i] + values[i + 1 :], o) for i in range(n)]
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True))
    apart = [v - mean for v in values]
    if how == "mean":
        return apart
    if how == "leave_one_out":
        return apart if n is None else [a * n / (n - 1) for a in apart]
    if max(values) == min(values):
        return [0.0] * len(values)
    variance = math.fsum(w * a * a for w, a in zip(weights, apart, strict=True))
    if n is not None:
        variance *= n / (n - o["ddof"])
    if how == "whitened":
        return [a / math.sqrt(variance + o["eps"]) for a in apart]
    return [a / (math.sqrt(variance) + o["eps"]) for a in apart]


def beside(value, others, o):
    """A value minus the mean of the others, over their standard deviation where they have one."""
    mean = math.fsum(others) / len(others)
    if max(others) == min(others):
        return value - mean
    variance = math.fsum((x - mean) ** 2 for x in others) / (len(others) - o["ddof"])
    return (value - mean) / (math.sqrt(variance) + o["eps"])


def advantages(world, answers, weights, n, old, ref, o):
    """Of every token of every answer, a list of lists."""
    own = charged = [[0.0] * len(leaf) for leaf in answers]
    if o["kl"] is not None and o["place"] in ("before", "after", "after_whole"):
        cost = VALUE[o["kl"]]
        own = [
            [o["beta"] * cost(a - b) for a, b in zip(x, y, strict=True)]
            for x, y in zip(old, ref, strict=True)
        ]
        charged = [ahead(costs) for costs in own]
    reward = dict(zip(world["leaves"], world["reward"], strict=True))
    inside = o["place"] == "before"
    if o["advantage"] in ("none", "whitened"):
        flat, at, size = [], [], math.fsum(w * len(leaf) for w, leaf in zip(weights, answers, strict=True))
        for i, leaf in enumerate(answers):
            costs = own[i] if inside else [0.0] * len(leaf)
            values = [0.0 if o["critic"] is None else o["critic"](leaf, t) for t in range(len(leaf))]
            flat += estimates(rewards_of_tokens(reward[leaf], costs), values, o["gamma"], o["lam"])
            at += [weights[i] / size] * len(leaf)
        found = iter(compared(flat, at, None if n is None else len(flat), o))
        a = [[next(found) for _ in leaf] for leaf in answers]
    else:
        returns = [reward[leaf] - (c[0] if inside else 0.0) for leaf, c in zip(answers, charged, strict=True)]
        a = [[x] * len(leaf) for x, leaf in zip(compared(returns, weights, n, o), answers, strict=True)]
    if o["place"] == "after":
        a = [[x - c for x, c in zip(row, cost, strict=True)] for row, cost in zip(a, charged, strict=True)]
    if o["place"] == "after_whole":
        a = [[x - cost[0] for x in row] for row, cost in zip(a, charged, strict=True)]
    return a


def named_critic(world, sampler, start, ref, o):
    """The expected return of a prefix; that of a "reward" critic has no penalty."""
    rewards = []
    for leaf, reward in zip(world["leaves"], world["reward"], strict=True):
        apart = [a - b for a, b in zip(*(of_answer(world, x, leaf) for x in (start, ref)), strict=True)]
        charges = o["critic"] == "exact" and o["kl"] is not None and o["place"] == "before"
        costs = [o["beta"] * VALUE[o["kl"]](x) if charges else 0.0 for x in apart]
        rewards.append(rewards_of_tokens(reward, costs))
    return expected_return(world["leaves"], chances(world, sampler), rewards, o["gamma"])


def passes(a, ratio, o):
    """0 or 1: whether PPO's clip and the dual clip let a ratio through."""
    if a > 0:
        return float(ratio <= 1 + o["high"])
    return float(ratio >= 1 - o["low"] and (o["dual"] is None or ratio <= o["dual"]))


def in_front(a, logp, old, weights, o):
    """What the policy loss of one answer puts in front of the score of each token, times the weights."""
    ratio = [math.exp(x - y) for x, y in zip(logp, old, strict=True)]
    if o["surrogate"] == "gspo":
        mean = math.exp(math.fsum(x - y for x, y in zip(logp, old, strict=True)) / len(logp))
        total = math.fsum(w * x * mean * passes(x, mean, o) for w, x in zip(weights, a, strict=True))
        return [total / len(logp)] * len(logp)
    factor = {
        "reinforce": lambda x, r: 1.0,
        "importance": lambda x, r: r,
        "ppo": lambda x, r: r * passes(x, r, o),
        "cispo": lambda x, r: min(max(r, 1 - o["low"]), 1 + o["high"]),
    }[o["surrogate"]]
    return [w * x * factor(x, r) for w, x, r in zip(weights, a, ratio, strict=True)]


def kept(a, logp, mu, o):
    """0 or 1 for each token of one answer."""
    far = o["keep_kl"] is not None and math.fsum(mu) - math.fsum(logp) > o["keep_kl"] * len(mu)
    out = []
    for x, p, q in zip(a, logp, mu, strict=True):
        low, high = o["keep_ratios"] or (0.0, math.inf)
        out.append(float(low <= math.exp(p - q) <= high and not (far and x < 0)))
    return out


def of_kl(logp, ref, mu, o):
    """What the KL term in the loss puts in front of each score of one answer."""
    x = [p - q for p, q in zip(logp, ref, strict=True)]
    if o["place"] == "score":
        slopes = ahead([VALUE[o["kl"]](y) for y in x])
    else:
        slopes = [SLOPE[o["kl"]](y) for y in x]
    weighted = o["place"] in ("loss_weighted", "score")
    ratio = [math.exp(p - q) if weighted else 1.0 for p, q in zip(logp, mu, strict=True)]
    return [o["beta"] * r * s for r, s in zip(ratio, slopes, strict=True)]


def ascent(world, policy, reference, sampler, start, answers, weights, n, o):
    """What one step on a batch adds to the logits, rows of numbers; ``start``: before the first step."""
    tables = [log_probs(x) for x in (policy, reference, sampler, start)]
    if isinstance(o["critic"], str):
        o = {**o, "critic": named_critic(world, sampler, tables[3], tables[1], o)}
    logp, ref, mu, old = ([of_answer(world, table, leaf) for leaf in answers] for table in tables)
    a = advantages(world, answers, weights, n, old, ref, o)
    tokens = math.fsum(w * len(leaf) for w, leaf in zip(weights, answers, strict=True))
    total = [[0.0] * len(row) for row in policy]
    for i, leaf in enumerate(answers):
        share = {
            "token_mean": 1 / tokens,
            "sequence_mean": 1 / len(leaf),
            "constant": 1 / (o["length"] or 1.0),
            "sum": 1.0,
        }[o["aggregate"]]
        w = weights[i] * share
        each = [w * k for k in kept(a[i], logp[i], mu[i], o)]
        if o["cap"] is not None:
            each = [x * min(math.exp(p - q), o["cap"]) for x, p, q in zip(each, old[i], mu[i], strict=True)]
        front = in_front(a[i], logp[i], mu[i] if o["cap"] is None else old[i], each, o)
        if o["kl"] is not None and o["place"] in ("loss", "loss_weighted", "score"):
            front = [f - w * x for f, x in zip(front, of_kl(logp[i], ref[i], mu[i], o), strict=True)]
        for t, token in enumerate(leaf):
            row = world["row"][leaf[:t]]
            inside = tables[0][row]
            entropy = -math.fsum(math.exp(x) * x for x in inside)
            for j, x in enumerate(inside):
                total[row][j] += front[t] * ((j == token) - math.exp(x))
                total[row][j] -= o["entropy"] * w * math.exp(x) * (x + entropy)
    return total


def added(total, other, factor):
    """total + factor * other, in place."""
    for row, more in zip(total, other, strict=True):
        for j, x in enumerate(more):
            row[j] += factor * x


def expected(world, policy, reference, sampler, size, steps=1, rate=1.0, **choices):
    """Mean over all ordered groups of what the steps on one of them add, over the number of steps."""
    o = {**STEP, **choices}
    total = [[0.0] * len(row) for row in policy]
    numbered = zip(world["leaves"], chances(world, sampler), strict=True)
    for group in itertools.product(list(numbered), repeat=size):
        answers, chance = [leaf for leaf, _ in group], math.prod(p for _, p in group)
        now = [list(row) for row in policy]
        for _ in range(steps):
            step = ascent(world, now, reference, sampler, policy, answers, [1 / size] * size, size, o)
            added(now, step, rate)
            added(total, step, chance / steps)
    return total


def in_large_batches(world, policy, reference, sampler, **choices):
    """The same of a batch that holds every answer in proportion to its chance: mean and deviation by hand."""
    o = {**STEP, **choices}
    return ascent(
        world, policy, reference, sampler, policy, world["leaves"], chances(world, sampler), None, o
    )


def expected_advantages(returns, probability, size, **choices):
    """E[advantage of the first of a group | which answer it is], over all orders of the others."""
    o, found = {**STEP, **choices}, []
    for first in range(len(returns)):
        total = 0.0
        for others in itertools.product(range(len(returns)), repeat=size - 1):
            values = [returns[i] for i in (first, *others)]
            chance = math.prod(probability[i] for i in others)
            total += chance * compared(values, [1 / size] * size, size, o)[0]
        found.append(total)
    return found
