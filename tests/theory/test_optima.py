"""Optimal policies: closed forms by hand, conditions of optimality, hard cases, and what is refused."""

import math

import pytest
import torch

from kl_companion.theory.optima import optimal_policy


def logs(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def numbers(*values):
    return torch.tensor(values, dtype=torch.float64)


def world(seed, vocab=7):
    generator = torch.Generator().manual_seed(seed)
    r, q = torch.randn(2, vocab, generator=generator, dtype=torch.float64)
    return r, (2 * q).log_softmax(-1)


def test_reverse_kl_on_two_arms():
    # weights (1/2) e^0 and (1/2) e^(log 3) are 1 : 3
    found = optimal_policy(numbers(0.0, math.log(3)), logs(0.5, 0.5))
    torch.testing.assert_close(found.logp.exp(), numbers(0.25, 0.75))
    assert found.multiplier.item() == pytest.approx(math.log(2))


def test_forward_kl_on_two_arms():
    # (1/2)/lam + (1/2)/(lam - 1) = 1 is 2 lam^2 - 4 lam + 1 = 0; the larger root exceeds both rewards
    lam = 1 + 1 / math.sqrt(2)
    found = optimal_policy(numbers(0.0, 1.0), logs(0.5, 0.5), "forward_kl")
    torch.testing.assert_close(found.logp.exp(), numbers(0.5 / lam, 0.5 / (lam - 1)))
    assert found.multiplier.item() + 1 == pytest.approx(lam, abs=1e-14)


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl"])
def test_a_forbidden_token_changes_nothing_for_the_others(name):
    r, q = world(4)
    with_it = optimal_policy(torch.cat([r, r.max()[None] + 5]), torch.cat([q, numbers(-math.inf)]), name, 0.7)
    without = optimal_policy(r, q, name, 0.7)
    assert with_it.logp[-1] == -math.inf
    torch.testing.assert_close(with_it.logp[:-1], without.logp)
    torch.testing.assert_close(with_it.multiplier, without.multiplier)


def test_forward_kl_where_the_gap_is_below_the_rounding_of_the_rewards():
    # the best arm is almost never taken by the reference; lambda* - max r is about 1e-30 / 0.75
    tiny = 1e-30
    r, q = numbers(1.0, 0.0), logs(tiny, 1.0)
    found = optimal_policy(r, q, "forward_kl", 0.25)
    assert found.logp.exp().sum().item() == pytest.approx(1.0)
    # 0.25 (tiny / gap + 1 / (1 + gap)) = 1: gap = tiny / 3, and the best arm has the rest of the mass, 3/4
    torch.testing.assert_close(found.logp.exp(), numbers(0.75, 0.25))


def test_forward_kl_with_rewards_that_tie():
    found = optimal_policy(numbers(2.0, 2.0, 2.0), logs(0.2, 0.3, 0.5), "forward_kl", 0.1)
    torch.testing.assert_close(found.logp, logs(0.2, 0.3, 0.5))
    torch.testing.assert_close(found.multiplier, torch.tensor(2.0, dtype=torch.float64))


def test_float32_is_computed_in_float64():
    r, q = (x.float() for x in world(5))
    found = optimal_policy(r, q, "forward_kl", 0.5)
    wanted = optimal_policy(r.double(), q.double(), "forward_kl", 0.5)
    torch.testing.assert_close(found.logp, wanted.logp, rtol=0, atol=1e-14)
    torch.testing.assert_close(found.multiplier, wanted.multiplier, rtol=0, atol=1e-14)
