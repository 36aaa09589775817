"""Expected updates of groups from multisets, against every ordered group of draws."""

import math

import pytest
import torch

from kl_companion.tabular import bandit, prefix_tree
from kl_companion.tabular.expectations import multisets
from kl_companion.tabular.groups import group_update
from tests.oracles import sampling
from tests.oracles.sampling import as_world
from tests.support.moments import chances

WORLDS = {
    "bandit": bandit(4, seed=1),
    "tree": prefix_tree(2, 2, seed=3, eos=True),
    "off_policy": bandit(3, seed=2, off_policy=True),
}


def divided(x):
    """(x - mean) / (standard deviation + 0.01) of one group, by hand."""
    mean = sum(x) / len(x)
    spread = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    return [(v - mean) / (spread + 0.01) for v in x]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", WORLDS)
def test_multisets_give_the_sum_over_all_ordered_groups(name, n):
    problem = WORLDS[name]
    values = problem.rewards.tolist()
    scores = sampling.scores(as_world(problem), problem.logits)
    wanted = torch.zeros_like(problem.logits).flatten()
    total = 0.0
    for group, weight in sampling.groups(chances(problem), n):
        total += weight
        for i, a in zip(group, divided([values[j] for j in group]), strict=True):
            wanted = wanted + weight * a * scores[i] / n
    assert total == pytest.approx(1)

    def advantages(drawn):
        x = problem.rewards[drawn]
        return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 0.01)

    got = group_update(advantages, problem, n)
    torch.testing.assert_close(got.flatten(), wanted, rtol=1e-11, atol=1e-14)
    assert got.norm() > 0.01


def test_multisets_are_counted_with_their_chances():
    drawn, chance = multisets(torch.tensor([0.25, 0.75, 0.0], dtype=torch.float64), 2)
    assert drawn.tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2], [2, 2]]
    assert chance.tolist() == pytest.approx([1 / 16, 6 / 16, 0, 9 / 16, 0, 0])
