"""What beta is worth, by numbers of a pocket calculator and by sums over every group written out."""

import itertools
import math

import pytest
import torch

from kl_companion.frameworks.recipes import default_recipes
from kl_companion.frameworks.worth import (
    LARGE,
    LINEAR,
    SMALL,
    equal_ratio,
    shared,
    silent,
    update,
    world,
)
from kl_companion.tabular import expected_gradient
from tests.support.data import data

DATA = data(__file__)

NAMES = {(r.setting.name, r.algorithm.name): r for r in default_recipes()}
# answers of one, two, three and three tokens; the second and the fourth are right
CHANCE = {0.5: (0.2, 0.2, 0.3, 0.3), 0.1: (0.36, 0.04, 0.54, 0.06)}
RIGHT, LENGTH = (0, 1, 0, 1), (1, 2, 3, 3)
LENGTHS = sum(p * n for p, n in zip(CHANCE[0.5], LENGTH, strict=True))  # 2.4
TOKENS = 1.3 / 2.4  # share of the tokens that are in right answers: (0.2 x 2 + 0.3 x 3) / 2.4


def factor(name, success, group, beta=SMALL):
    share = shared(NAMES[name], world(success), group, (beta,))[beta]
    return share.effective_beta / beta


def expected_root(p, n):
    """E[sqrt(m (n - m) (n - 1) / n^3)] with m of n answers right, each with chance p."""
    return sum(
        math.comb(n, m) * p**m * (1 - p) ** (n - m) * math.sqrt(m * (n - m) * (n - 1) / n**3)
        for m in range(n + 1)
    )


IN_LARGE = {(setting, way): eval(factor) for setting, way, factor in DATA["in large batches"]}


@pytest.mark.parametrize("name", IN_LARGE, ids=" ".join)
def test_in_large_batches(name):
    assert factor(name, 0.5, None) == pytest.approx(IN_LARGE[name], rel=2e-6)
    assert shared(NAMES[name], world(0.5), None, (SMALL,))[SMALL].rest < 1e-3


@pytest.mark.parametrize("p", [0.01, 0.1])
def test_divided_rewards_multiply_beta_by_their_spread(p):
    assert factor(("verl.loss_k3", "GRPO"), p, None) == pytest.approx(math.sqrt(p * (1 - p)), rel=2e-5)


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_in_groups(n, p):
    """Undivided a group of n that counts the answer in its mean leaves (n - 1)/n of the reward."""
    by_root = p * (1 - p) / expected_root(p, n)
    assert factor(("unsloth.grpo", "GRPO"), p, n) == pytest.approx(by_root, rel=2e-4)  # eps
    assert factor(("open_instruct.kl_estimator_2", "GRPO"), p, n) == pytest.approx(n / (n - 1), rel=1e-10)
    assert factor(("liger.grpo", "GRPO loss, advantages as handed in"), p, n) == pytest.approx(n / (n - 1))
    for undivided in (("verl.reward_k1", "RLOO"), ("trl.rloo", "RLOO"), ("openrlhf.reward_k1", "RLOO")):
        assert factor(undivided, p, n) == pytest.approx(1.0, rel=1e-8)


def divided(x, eps):
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in x) / (len(x) - 1))
    return [(v - mean) / (deviation + eps) for v in x]


def by_hand(success, values, n, eps):
    """The expected update over every ordered group, [rows, vocab], of advantages divided by hand."""
    means = [0.0] * 4
    chance = CHANCE[success]
    for group in itertools.product(range(4), repeat=n):
        weight = math.prod(chance[i] for i in group)
        for i, a in zip(group, divided([values[i] for i in group], eps), strict=True):
            means[i] += weight * a / n
    factors = torch.tensor(means, dtype=torch.float64) / torch.tensor(chance, dtype=torch.float64)
    where = {(1, 0): 0, (2, 0): 1, (3, 0): 2, (3, 1): 3}  # length and last token

    def loss(rollout):
        length = int(rollout.completion_mask.sum())
        which = where[length, int(rollout.tokens[0, length - 1])]
        return -factors[which] * (rollout.logp * rollout.completion_mask).sum()

    return -expected_gradient(loss, world(success).problem)


@pytest.mark.parametrize("beta", [LARGE, SMALL])
@pytest.mark.parametrize("n", [2, 3])
def test_a_penalty_that_is_divided_with_the_rewards(beta, n):
    problem = world(0.5).problem
    every = problem.rollout(problem.logits)
    cost = ((every.logp - every.ref_logp) * every.completion_mask).sum(-1).tolist()
    wanted = by_hand(0.5, [r - beta * k for r, k in zip(RIGHT, cost, strict=True)], n, 1e-6)
    found = update(NAMES["verl.reward_k1", "GRPO"], beta, world(0.5), n)
    torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("name", [("trl.grpo", "GRPO"), ("skyrl.loss_k3", "RLOO"), ("roll.loss", "GRPO")])
def test_a_term_in_the_loss_is_added_to_what_the_rewards_do(name):
    """So that its own gradient is not enumerated again for every group."""
    recipe, at = NAMES[name], world(0.5)
    with_it, without = (update(recipe, beta, at, 2) for beta in (LARGE, 0.0))
    term = expected_gradient(recipe.setting.exact, at.problem)
    torch.testing.assert_close(with_it, without - LARGE * term, rtol=1e-9, atol=1e-12)


CANCELS = [(*name,) for name in DATA["cancels"]]
STAYS = [(*name,) for name in DATA["stays"]]


@pytest.mark.parametrize("name", [*CANCELS, *STAYS], ids=" ".join)
def test_where_all_rewards_agree(name):
    """Four answers of which none or all are right are the groups in which beta cancels, and no others."""
    cancels = name in CANCELS
    assert silent(NAMES[name]) == ((0, 4) if cancels else ())


def test_equal_rewards_leave_no_trace_of_beta_where_it_cancels():
    assert equal_ratio(NAMES["skyrl.reward_k3", "GRPO"]) < 1.1
    assert equal_ratio(NAMES["roll.reward_kl", "GRPO"]) == pytest.approx(LINEAR, rel=1e-6)
    assert equal_ratio(NAMES["trl.grpo", "GRPO"]) == LINEAR


def test_a_term_without_an_expected_gradient_is_worth_nothing():
    for name in (("openrlhf.loss_k1", "PPO"), ("slime.reward_grpo", "GRPO")):
        assert math.isnan(factor(name, 0.5, 2)), name
        assert math.isnan(equal_ratio(NAMES[name])), name
