"""Objectives of a tree of prefixes, written out prefix by prefix; shares no code with the package.

A world is a dict: ``leaves``, the list of all sequences as tuples; ``row``, the index of each prefix's
logits; ``reward``, one number per leaf. Policies are tensors of logits [rows, vocab].
"""

import math

import torch

LOG2 = math.log(2.0)

# generators as they are defined, not normalized: sum Q f(P/Q) does not see c (t - 1)
GENERATORS = {
    "reverse_kl": lambda t: t * torch.log(t),
    "forward_kl": lambda t: -torch.log(t),
    "jensen_shannon": lambda t: 0.5 * t * torch.log(2 * t / (1 + t)) + 0.5 * torch.log(2 / (1 + t)),
    "squared_hellinger": lambda t: 1 - torch.sqrt(t),
    "pearson": lambda t: t * t - 1,
    "neyman": lambda t: 1 / t - 1,
    "total_variation": lambda t: torch.abs(t - 1) / 2,
    "amari_alpha(0.5)": lambda t: (1 - t**0.75) * 4 / 0.75,
    "power_divergence(1.5)": lambda t: (t**1.5 - 1) / 0.75,
}


def log_probs(logits):
    return logits - torch.log(torch.exp(logits).sum(-1, keepdim=True))


def log_prob(world, logits, leaf):
    table = log_probs(logits)
    return sum(table[world["row"][leaf[:i]], leaf[i]] for i in range(len(leaf)))


def divergence(name, p, q):
    """sum over y of Q f(P/Q), one outcome after the other; p, q are lists of probabilities."""
    return sum(b * GENERATORS[name](a / b) for a, b in zip(p, q, strict=True))


def visits(world, sampler):
    """Probability that the sampler reaches each prefix, by walking every leaf."""
    reach = dict.fromkeys(world["row"], 0.0)
    table = log_probs(sampler.detach())
    for prefix in world["row"]:
        chance = 1.0
        for i in range(len(prefix)):
            chance = chance * math.exp(table[world["row"][prefix[:i]], prefix[i]].item())
        reach[prefix] = chance
    return reach


def sequence_level(world, policy, reference, name):
    p = [torch.exp(log_prob(world, policy, leaf)) for leaf in world["leaves"]]
    q = [torch.exp(log_prob(world, reference, leaf)) for leaf in world["leaves"]]
    return divergence(name, p, q)


def per_prefix(world, sampler, each):
    """sum over prefixes of (fixed chance of a visit) times each(row of the prefix)."""
    reach = visits(world, sampler)
    return sum(reach[prefix] * each(row) for prefix, row in world["row"].items())


def token_level(world, policy, reference, sampler, name):
    def each(row):
        p, q = torch.exp(log_probs(policy)[row]), torch.exp(log_probs(reference)[row])
        return divergence(name, list(p), list(q))

    return per_prefix(world, sampler, each)


def over_leaves(world, sampler, each):
    """sum over leaves of (fixed chance of being sampled) times each(leaf)."""
    return sum(
        math.exp(log_prob(world, sampler.detach(), leaf).item()) * each(leaf) for leaf in world["leaves"]
    )


# f(policy / sampler) with f(1) = f'(1) = 0, which makes a difference where the length of an answer divides it
NORMALIZED = {
    "reverse_kl": lambda t: t * torch.log(t) - t + 1,
    "forward_kl": lambda t: t - 1 - torch.log(t),
    "total_variation": lambda t: torch.abs(t - 1) / 2,
    "pearson": lambda t: t * t - 2 * t + 1,
    "neyman": lambda t: 1 / t - 2 + t,
    "squared_log_ratio": lambda t: torch.log(t) ** 2 / 2,
    "weighted_squared_log_ratio": lambda t: t * torch.log(t) ** 2 / 2,
}


def of_sampler(world, policy, sampler):
    """Every objective that is anchored to the policy that sampled, by name."""
    fixed = sampler.detach()

    def ratios(leaf):
        rows = [world["row"][leaf[:i]] for i in range(len(leaf))]
        logs = (log_probs(policy)[r, y] - log_probs(fixed)[r, y] for r, y in zip(rows, leaf, strict=True))
        return [torch.exp(x) for x in logs]

    def ratio(leaf):
        return torch.exp(log_prob(world, policy, leaf) - log_prob(world, fixed, leaf))

    def of_answers(f, divided=False):
        return over_leaves(
            world, sampler, lambda leaf: sum(f(t) for t in ratios(leaf)) / (len(leaf) if divided else 1)
        )

    def next_token(f):
        def each(row):
            p, q = torch.exp(log_probs(policy)[row]), torch.exp(log_probs(fixed)[row])
            return sum(b * f(a / b) for a, b in zip(p, q, strict=True))

        return per_prefix(world, sampler, each)

    rewards = dict(zip(world["leaves"], world["reward"], strict=True))
    mean = over_leaves(world, sampler, rewards.get)
    found = {
        "surrogate_reward": over_leaves(world, sampler, lambda x: rewards[x] * sum(ratios(x))),
        "surrogate_reward_per_token": over_leaves(
            world, sampler, lambda x: rewards[x] * sum(ratios(x)) / len(x)
        ),
        "surrogate_centered_reward_per_token": over_leaves(
            world, sampler, lambda x: (rewards[x] - mean) * sum(ratios(x)) / len(x)
        ),
        "forward_kl_to_sampler": -over_leaves(
            world, sampler, lambda x: log_prob(world, policy, x) - log_prob(world, fixed, x)
        ),
    }
    for name, f in NORMALIZED.items():
        found[f"token_{name}_to_sampler"] = next_token(f)
        found[f"sequence_{name}_to_sampler"] = over_leaves(
            world,
            sampler,
            lambda x, f=f: f(torch.exp(log_prob(world, policy, x) - log_prob(world, fixed, x))),
        )
        found[f"sampled_mean_{name}_to_sampler"] = of_answers(f, divided=True)
    return found


def others(world, policy, reference, sampler):
    """Every objective that is not an f-divergence, by name."""

    def log_ratio(leaf):
        return log_prob(world, policy, leaf) - log_prob(world, reference, leaf)

    def steps(leaf):
        for i in range(len(leaf)):
            row = world["row"][leaf[:i]]
            yield log_probs(policy)[row, leaf[i]] - log_probs(reference)[row, leaf[i]]

    def entropy(row):
        p = torch.exp(log_probs(policy)[row])
        return -sum(a * torch.log(a) for a in p)

    def squared(row):
        p, q = log_probs(policy)[row], log_probs(reference)[row]
        return sum(torch.exp(a) * (a - b) ** 2 / 2 for a, b in zip(p, q, strict=True))

    def top_mass(k, scores):
        def each(row):
            order = sorted(range(policy.shape[1]), key=lambda j: -scores[row, j].item())
            p = torch.exp(log_probs(policy)[row])
            return sum(p[j] for j in order[:k])

        return per_prefix(world, sampler, each)

    rewards = dict(zip(world["leaves"], world["reward"], strict=True))
    chances = {leaf: torch.exp(log_prob(world, policy, leaf)) for leaf in world["leaves"]}
    mean = over_leaves(world, sampler, rewards.get)
    mean_ratio = over_leaves(world, sampler, log_ratio)
    return {
        "token_top_1_mass": top_mass(1, policy),
        "token_top_2_mass": top_mass(2, policy),
        "token_reference_top_1_mass": top_mass(1, reference),
        "token_reference_top_2_mass": top_mass(2, reference),
        "expected_reward": sum(chances[x] * r for x, r in rewards.items()),
        "expected_reward_per_token": sum(chances[x] * r / len(x) for x, r in rewards.items()),
        "behavior_reward": over_leaves(world, sampler, lambda x: rewards[x] * log_prob(world, policy, x)),
        "behavior_reward_per_token": over_leaves(
            world, sampler, lambda x: rewards[x] * log_prob(world, policy, x) / len(x)
        ),
        "expected_centered_reward_per_token": sum(
            chances[x] * (r - mean) / len(x) for x, r in rewards.items()
        ),
        "behavior_centered_reward": over_leaves(
            world, sampler, lambda x: (rewards[x] - mean) * log_prob(world, policy, x)
        ),
        "behavior_centered_reward_per_token": over_leaves(
            world, sampler, lambda x: (rewards[x] - mean) * log_prob(world, policy, x) / len(x)
        ),
        "behavior_sequence_log_ratio_variance": over_leaves(
            world, sampler, lambda x: (log_ratio(x) - mean_ratio) ** 2 / 2
        ),
        "token_entropy": per_prefix(world, sampler, entropy),
        "sequence_entropy": -sum(c * torch.log(c) for c in chances.values()),
        "sequence_squared_log_ratio": sum(c * log_ratio(x) ** 2 / 2 for x, c in chances.items()),
        "token_squared_log_ratio": per_prefix(world, sampler, squared),
        "behavior_squared_log_ratio": over_leaves(world, sampler, lambda x: sum(s**2 / 2 for s in steps(x))),
        "behavior_sequence_squared_log_ratio": over_leaves(world, sampler, lambda x: log_ratio(x) ** 2 / 2),
        "behavior_log_likelihood": over_leaves(world, sampler, lambda x: log_prob(world, policy, x)),
        "behavior_reference_ratio": over_leaves(
            world, sampler, lambda x: sum(torch.exp(-s) for s in steps(x))
        ),
        "behavior_sequence_reference_ratio": over_leaves(world, sampler, lambda x: torch.exp(-log_ratio(x))),
        "policy_token_squared_log_ratio": per_prefix(world, policy, squared),
        "summed_squared_log_ratio": sum(c * sum(s**2 / 2 for s in steps(x)) for x, c in chances.items()),
        "expected_inverse_length": sum(c / len(x) for x, c in chances.items()),
        "sequence_mean_reverse_kl": sum(c * log_ratio(x) / len(x) for x, c in chances.items()),
        "sampled_mean_squared_log_ratio": over_leaves(
            world, sampler, lambda x: sum(s**2 / 2 for s in steps(x)) / len(x)
        ),
        "sampled_mean_reference_ratio": over_leaves(
            world, sampler, lambda x: sum(torch.exp(-s) for s in steps(x)) / len(x)
        ),
        "sampled_mean_log_likelihood": over_leaves(
            world, sampler, lambda x: log_prob(world, policy, x) / len(x)
        ),
    }


def cut(world, policy, reference, sampler, direction, how, whose, k, mean):
    """A divergence of next tokens of which only the k likeliest count, token by token.

    Args:
        world: The tree.
        policy: Logits, [rows, vocab], as the others.
        reference: Logits.
        sampler: Logits.
        direction: ``"reverse_kl"``, ``"forward_kl"`` or ``"jensen_shannon"``.
        how: What is done with the others: ``"bucketed"``, ``"conditional"``, ``"cropped"``, ``"truncated"``,
            ``"clamped"``, or ``"whole"`` where there are none.
        whose: ``"policy"`` or ``"reference"``: whose k likeliest.
        k: How many.
        mean: Whether the sum over an answer is divided by its length.
    """

    def each(row):
        scores = (policy if whose == "policy" else reference)[row].tolist()
        order = sorted(range(len(scores)), key=lambda j: -scores[j])
        inside = order if how == "whole" else order[:k]
        p, q = (torch.exp(log_probs(x)[row]) for x in (policy, reference))
        p, q = [p[j] for j in inside], [q[j] for j in inside]
        if how == "bucketed":
            p, q = [*p, 1 - sum(p)], [*q, 1 - sum(q)]
        if how == "conditional":
            p = [a / sum(p) for a in p]
        if how in ("conditional", "cropped"):
            q = [b / sum(q) for b in q]
        total = 0.0
        for a, b in zip(p, q, strict=True):
            middle = (a + b) / 2
            total = (
                total
                + {
                    "reverse_kl": a * torch.log(a / b),
                    "forward_kl": b * torch.log(b / a),
                    "jensen_shannon": (a * torch.log(a / middle) + b * torch.log(b / middle)) / 2,
                }[direction]
            )
        return 0 * total if how == "clamped" and total.item() < 0 else total

    def of_answer(leaf):
        rows = [world["row"][leaf[:i]] for i in range(len(leaf))]
        return sum(each(row) for row in rows) / (len(leaf) if mean else 1)

    return over_leaves(world, sampler, of_answer)
