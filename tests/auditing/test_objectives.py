"""Every named objective, value and gradient, against the same thing written prefix by prefix."""

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.objectives import OBJECTIVES, field, objectives, register_objective, value
from kl_companion.divergences import DIVERGENCES
from tests.oracles import worlds

NAMES = list(OBJECTIVES)


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
    return worlds.others(world, theta, problem.ref_logits, sampler)[name]


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_objective(name, eos, off_policy):
    problem = prefix_tree(3, 2, seed=5, eos=eos, off_policy=off_policy)
    theta = problem.logits.clone().requires_grad_()
    truth = oracle(name, problem, theta)
    (gradient,) = torch.autograd.grad(truth, theta)
    assert value(OBJECTIVES[name], problem) == pytest.approx(truth.item(), rel=1e-10)
    torch.testing.assert_close(field(OBJECTIVES[name], problem), gradient, rtol=1e-9, atol=1e-12)


def test_objectives_that_coincide_on_policy_are_tried_off_policy_only():
    assert "behavior_squared_log_ratio" not in objectives(off_policy=False)
    assert "behavior_squared_log_ratio" in objectives(off_policy=True)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match=r"'expected_reward' is registered already"):
        register_objective("expected_reward", words="another", source="-")(lambda ro: ro.logp.sum())
