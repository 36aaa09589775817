"""What the checks about whole updates share, by hand on small worlds."""

import math

import pytest
import torch

from kl_book.ledger.claims.ground import calibration, errors, groups, sequences, sums, updates, worlds

SIGMA = math.sqrt(0.75 * 0.25)
RIGHT = torch.tensor([1.0, 0.0], dtype=torch.float64)
PAIR = worlds.two_policies((0.75, 0.25), (0.5, 0.5))._replace(rewards=RIGHT)


def test_standardized_rewards_and_their_update():
    assert updates.standardized(PAIR, RIGHT).tolist() == pytest.approx([0.25 / SIGMA, -0.75 / SIGMA])
    update = updates.standardized_update(PAIR, RIGHT)
    assert update[0].tolist() == pytest.approx([SIGMA, -SIGMA])
    assert updates.arcsine_gradient(PAIR)[0].tolist() == pytest.approx([SIGMA, -SIGMA])
    assert updates.slope("2 arcsin sqrt(p)", 0.75) == pytest.approx(1 / SIGMA)
    assert updates.slope("log p", 0.75) == pytest.approx(1 / 0.75)
    assert updates.shaped(PAIR, 2.0).tolist() == pytest.approx([1 - 2 * math.log(1.5), 2 * math.log(2)])
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    value, gradient = updates.regularized(PAIR, 2.0)
    assert value == pytest.approx(0.75 - 2 * kl)
    assert gradient[0, 0].item() == pytest.approx(0.1875 - 2 * 0.75 * (math.log(1.5) - kl))
    both = updates.coordinates(2 * update - 3 * gradient, update, gradient)
    assert (both[0] * update + both[1] * gradient)[0, 0].item() == pytest.approx(
        (2 * update - 3 * gradient)[0, 0].item()
    )


def test_rewards_of_graded_worlds_are_zero_and_one_and_both_occur():
    for problem in (*updates.graded(), *updates.graded_pairs()):
        assert set(problem.rewards.tolist()) == {0.0, 1.0}
    assert len(updates.graded()) == 10
    assert len(updates.graded_trees()) == 4


def test_penalties_of_tokens_and_their_gradients():
    u = torch.tensor([0.5 / 0.75, 0.5 / 0.25], dtype=torch.float64)
    assert updates.penalties("k3", PAIR)[:, 0].tolist() == pytest.approx((u - u.log() - 1).tolist())
    assert updates.local_slopes("k3", PAIR)[:, 0].tolist() == pytest.approx((1 - u).tolist())
    assert updates.local_slopes("square", PAIR)[:, 0].tolist() == pytest.approx((-(u - 1) * u).tolist())
    assert float(updates.row_divergences("forward", PAIR, PAIR.logits)) == pytest.approx(
        0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    )
    found = updates.penalty_gradient("k1", PAIR)
    assert found[0].tolist() == pytest.approx(sums.kl_gradient(PAIR)[0].tolist())
    x = torch.tensor([[1.0, 2.0, 4.0]])
    assert updates.later(x).tolist() == [[6.0, 4.0, 0.0]]


def test_what_a_prefix_is_worth_takes_any_number_per_token():
    tree = worlds.tree_of([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]], [[0.5, 0.5]] * 3)
    second = torch.zeros(4, 2, dtype=torch.float64)
    second[:, 1] = torch.tensor([8.0, 0.0, 2.0, 4.0])
    assert sequences.values_of_prefixes(tree, second).tolist() == pytest.approx([0.0, 2.0, 3.0])
    slopes = sequences.jacobian(lambda p: p.logits**2, PAIR)
    assert torch.allclose(slopes, torch.diag(2 * PAIR.logits.flatten()))


def test_directions_and_standardized_groups():
    right = torch.tensor([3.0, 4.0])
    assert errors.turned(2 * right, right) == pytest.approx(0.0)
    assert errors.turned(-right, right) == pytest.approx(1.0)
    assert errors.turned(torch.tensor([1.0, 0.0]), right) == pytest.approx(0.8)
    rewards = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 3.0]])
    found = groups.standardized_or_zero(rewards)
    assert found[0].tolist() == [0.0, 0.0, 0.0]
    assert found[1].tolist() == pytest.approx([-(0.5**0.5), -(0.5**0.5), 2**0.5])


STALE = worlds.three_policies((0.75, 0.25), (0.5, 0.5), (0.5, 0.5))


def test_slopes_of_the_clipped_surrogate_and_its_gates():
    """Ratios are 1.5 and 0.5: beyond both bounds."""
    pair = calibration.AnswerGroups(STALE, torch.tensor([[0, 1]]))
    for advantages, gates, slopes in (
        ((1.0, -1.0), (0.0, 0.0), (0.0, 0.0)),
        ((-1.0, 1.0), (1.0, 1.0), (1.5, -0.5)),
    ):
        a = torch.tensor([advantages], dtype=torch.float64)
        assert pair.gates(a)[0, :, 0].tolist() == list(gates)
        assert pair.slopes(a)[0, :, 0].tolist() == pytest.approx(list(slopes))
    assert calibration.k3_slopes(STALE)[:, 0].tolist() == pytest.approx([1 - 0.5 / 0.75, 1 - 0.5 / 0.25])
    each = pair.contributions(torch.tensor([[[2.0], [0.0]]], dtype=torch.float64))
    assert each[0, 0, 0, 0].tolist() == pytest.approx([0.5, -0.5])
    assert each[0, 1].abs().max() == 0.0


def test_calibrated_coefficients_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    drift = torch.tensor([[0.3, 0.0, 0.0], [0.3, 0.0, 0.0]], dtype=torch.float64)
    found = calibration.calibrated(rewards, drift, 2.0)
    assert found[0].tolist() == pytest.approx([1 - 0.4, -0.5 + 0.2, -0.5 + 0.2])
    assert found[1].tolist() == [0.0, 0.0, 0.0]
    kl = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert calibration.mean_drift(PAIR).tolist() == pytest.approx([kl, kl])
    assert calibration.mean_log_ratio(PAIR).tolist() == pytest.approx([math.log(1.5), math.log(0.5)])
