"""Every named objective, value by value, written prefix by prefix."""

from kl_companion.divergences import DIVERGENCES
from tests.oracles import worlds


def world_of(problem):
    leaves, row = [], {}
    for tokens, mask, rows in zip(problem.sequences, problem.completion_mask, problem.rows, strict=True):
        leaf = tuple(tokens[: int(mask.sum())].tolist())
        leaves.append(leaf)
        row.update({leaf[:i]: rows[i].item() for i in range(len(leaf))})
    return {"leaves": leaves, "row": row, "reward": problem.rewards.tolist()}


def oracle(name, problem, theta):
    world = world_of(problem)
    sampler = theta if problem.behavior_logits is None else problem.behavior_logits
    level, _, rest = name.partition("_")
    if level == "sequence" and rest in DIVERGENCES:
        return worlds.sequence_level(world, theta, problem.ref_logits, rest)
    if level == "token" and rest in DIVERGENCES:
        return worlds.token_level(world, theta, problem.ref_logits, sampler, rest)
    if name.startswith("policy_token_") and name[13:] in DIVERGENCES:
        return worlds.token_level(world, theta, problem.ref_logits, theta, name[13:])
    if name.startswith("surrogate_") or name.endswith("_to_sampler"):
        return worlds.of_sampler(world, theta, sampler)[name]
    return worlds.others(world, theta, problem.ref_logits, sampler)[name]
