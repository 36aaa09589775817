"""Groups without their order, and in every order for losses that mind it, against every ordered group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from kl_companion.rollout import Rollout
from kl_companion.tabular import (
    Loss,
    Problem,
    bandit,
    expected_gradient,
    expected_value,
    prefix_tree,
    truncate,
)
from tests.oracles import sampling
from tests.oracles.numeric import gradient
from tests.oracles.sampling import as_world
from tests.support.worlds import sampler

SPARSE = bandit(6, seed=4)._replace(rewards=torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).double())
WORLDS = {
    "bandit": bandit(3, seed=1),
    "tree": prefix_tree(2, 2, seed=3, eos=True, off_policy=True),
    "rewards in blocks": SPARSE,
}


def totals(ro: Rollout) -> torch.Tensor:
    return (ro.logp * ro.completion_mask).sum(-1)


def ones(ro: Rollout) -> torch.Tensor:
    """A ratio of the policy to itself, less 1: 0 with the gradient of log pi."""
    return totals(ro) - totals(ro).detach()


def centered(ro: Rollout) -> torch.Tensor:
    assert ro.rewards is not None
    return ro.rewards - ro.rewards.mean()


def x_of(group: list) -> list[torch.Tensor]:
    return [sum(steps) for _, steps, _ in group]  # type: ignore[misc]


def after_the_row_before(reward: dict, group: list, shift: int) -> torch.Tensor:
    """Minus the mean over rows of the centered reward ``shift`` rows before times (x - its value)."""
    r, x, n = [reward[leaf] for leaf, _, _ in group], x_of(group), len(group)
    return -sum((r[i - shift] - sum(r) / n) * (x[i] - x[i].item()) for i in range(n)) / n  # type: ignore


# a loss; the same by hand of (rewards by leaf, group); sizes of groups
ORDERED: dict[str, tuple[Loss, Callable[[dict, list], torch.Tensor], tuple[int, ...]]] = {
    "the first row": (lambda ro: totals(ro)[0] ** 2, lambda reward, g: x_of(g)[0] ** 2, (2, 3)),
    "the last row": (lambda ro: totals(ro)[-1] ** 2, lambda reward, g: x_of(g)[-1] ** 2, (2, 3)),
    "row 0 with row 1, row 2 with row 3": (
        lambda ro: (totals(ro)[::2] * totals(ro)[1::2]).square().sum(),
        lambda reward, g: (x_of(g)[0] * x_of(g)[1]) ** 2 + (x_of(g)[2] * x_of(g)[3]) ** 2,
        (4,),
    ),
    "neighbors in a ring": (
        lambda ro: ((totals(ro) - totals(ro).roll(1)) ** 2).mean(),
        lambda reward, g: sum((x_of(g)[i] - x_of(g)[i - 1]) ** 2 for i in range(4)) / 4,  # type: ignore
        (4,),
    ),
    "the reward of the row before": (
        lambda ro: -(centered(ro).roll(1) * totals(ro)).mean(),
        lambda reward, g: (
            after_the_row_before(reward, g, 1)
            - sum(
                (reward[g[i - 1][0]] - sum(reward[y[0]] for y in g) / len(g)) * x_of(g)[i].item()
                for i in range(len(g))
            )
            / len(g)
        ),
        (2, 3),
    ),
    "the reward of the row before and a ratio of 1": (
        lambda ro: -(centered(ro).roll(1) * ones(ro)).mean(),
        lambda reward, g: after_the_row_before(reward, g, 1),
        (2, 3),
    ),
}


def wanted(problem: Problem, by_hand: Callable[[dict, list], torch.Tensor], size: int) -> torch.Tensor:
    world = as_world(problem)
    reward = dict(zip(world["leaves"], world["reward"], strict=True))

    def oracle(x: torch.Tensor) -> torch.Tensor:
        at = sampler(problem, problem.logits)
        return sampling.expected(world, x, problem.ref_logits, at, lambda g: by_hand(reward, g), size)

    return gradient(oracle, problem.logits)


def counted(loss: Loss) -> tuple[Loss, list[int]]:
    calls = [0]

    def counting(ro: Rollout) -> torch.Tensor:
        calls[0] += 1
        return loss(ro)

    return counting, calls


@pytest.mark.parametrize("world", ["bandit", "tree"])
@pytest.mark.parametrize("name", ORDERED)
def test_a_loss_that_minds_the_order_is_evaluated_in_every_order(name: str, world: str) -> None:
    ours, by_hand, sizes = ORDERED[name]
    problem = WORLDS[world]
    for size in sizes:
        got = expected_gradient(ours, problem, group_size=size)
        torch.testing.assert_close(got, wanted(problem, by_hand, size), rtol=1e-11, atol=1e-14)
        assert got.norm() > 1e-3


def test_rows_are_looked_at_beside_others_that_are_far_from_them() -> None:
    # among neighbors no advantage is other than 0
    ours, by_hand, _ = ORDERED["the reward of the row before and a ratio of 1"]
    loss, calls = counted(ours)
    got = expected_gradient(loss, SPARSE, group_size=3)
    torch.testing.assert_close(got, wanted(SPARSE, by_hand, 3), rtol=1e-11, atol=1e-14)
    assert calls[0] > 6**3


SYMMETRIC: dict[str, Loss] = {
    "a mean": lambda ro: totals(ro).mean(),
    "the square of a mean": lambda ro: totals(ro).mean() ** 2,
    "centered rewards and a ratio of 1": lambda ro: -(centered(ro) * ones(ro)).mean(),
    "centered rewards, in another unit": lambda ro: -1e6 * (centered(ro) * totals(ro)).mean(),
    "divided by a deviation": lambda ro: (
        -(centered(ro) / (centered(ro).std() + 1e-6) * torch.exp(ones(ro))).mean()
    ),
}


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize(("world", "size"), [("bandit", 4), ("tree", 4), ("rewards in blocks", 3)])
def test_a_loss_that_does_not_mind_it_is_evaluated_once_for_each_multiset(
    name: str, world: str, size: int
) -> None:
    loss, calls = counted(SYMMETRIC[name])
    problem = WORLDS[world]
    count = len(problem.sequences)
    got = expected_gradient(loss, problem, group_size=size)
    runs = -(-count // size)
    assert calls[0] <= math.comb(count + size - 1, size) + 6 * runs

    leaf = problem.logits.clone().requires_grad_()
    groups = list(itertools.product(range(count), repeat=size))
    chance = problem.probabilities()[torch.tensor(groups)].prod(-1)
    losses = [SYMMETRIC[name](batch) for batch in problem.rollout(leaf).batches(groups)]
    (every,) = torch.autograd.grad((chance * torch.stack(losses)).sum(), leaf)
    assert (got - every).norm() < 1e-11 * every.norm() + 1e-15
    assert every.norm() > 1e-3 or name == "a mean"  # the mean of scores is 0


def test_rewards_that_agree_up_to_rounding_are_no_order() -> None:
    problem = WORLDS["bandit"]._replace(rewards=torch.full((3,), 0.1).double())
    loss, calls = counted(lambda ro: -(centered(ro) * totals(ro)).mean())
    assert expected_gradient(loss, problem, group_size=7).norm() < 1e-15
    assert calls[0] < 36 + 10


def test_groups_of_eight_of_four_answers() -> None:
    problem = WORLDS["tree"]._replace(behavior_logits=None)
    assert len(problem.sequences) == 3
    four = bandit(4, seed=7)
    loss, calls = counted(SYMMETRIC["centered rewards and a ratio of 1"])
    got = expected_gradient(loss, four, group_size=8)
    assert calls[0] < 165 + 10
    # E[(1/8) sum (r_i - mean) s_i] = (1 - 1/8) grad E[r]
    p, r = four.logits.softmax(-1)[0], four.rewards
    torch.testing.assert_close(got[0], -7 / 8 * p * (r - (p * r).sum()), rtol=1e-11, atol=1e-14)


def test_values_without_a_gradient_mind_the_order_too() -> None:
    problem = WORLDS["bandit"]
    loss, calls = counted(lambda ro: (ro.rewards[0] > ro.rewards[1]) * 1.0)  # type: ignore[index]
    p = problem.logits.softmax(-1)[0]
    above = (problem.rewards.unsqueeze(1) > problem.rewards).double()
    assert expected_value(loss, problem, group_size=2) == pytest.approx((p @ above @ p).item(), rel=1e-13)
    assert calls[0] > 9


def test_what_is_never_sampled_is_in_no_group() -> None:
    problem = truncate(bandit(5, seed=2), top_k=2)
    seen: set[int] = set()

    def loss(ro: Rollout) -> torch.Tensor:
        seen.update(ro.tokens.flatten().tolist())
        return totals(ro)[0] * totals(ro)[1:].sum()

    q, x = problem.sampled_from.softmax(-1)[0], problem.logits.log_softmax(-1)[0]
    mean = (q * x).sum().item()
    assert expected_value(loss, problem, group_size=3) == pytest.approx(2 * mean**2, rel=1e-13)
    assert len(seen) == 2
