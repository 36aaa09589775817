"""What the choices of a loss default to, and what becomes of a keyword that it does not have."""

import math

import pytest
import torch

from kl_companion.kl_term import KLTerm
from kl_companion.losses import kl_loss, kl_reward, kl_terms
from tests.support.by_hand import MASK, NAN, rollout, slope


def test_off_policy_the_default_ratio_is_that_of_the_level():
    """Off-policy the ratio of the level multiplies the estimate; exp(-1/5), ... are typed by hand."""
    loss = kl_loss(rollout(), "k2")
    total = math.exp(-0.2) * 0.125 + math.exp(0.2) * 0.5 + math.exp(0.5) * 0.5 + math.exp(-0.5) * 0.5
    assert loss.item() == pytest.approx(total / 2, rel=1e-13)
    mu = torch.tensor([[NAN, -0.5, -1.5], [-0.5, -0.25, -2.0]], dtype=torch.float64)  # log rho = -1, -1
    by_sequence = kl_loss(rollout(behavior_logp=mu), "k2", level="sequence")
    assert by_sequence.item() == pytest.approx(math.exp(-1) * 0.125 / 2, rel=1e-13)


@pytest.mark.parametrize("options", [{}, {"level": "sequence"}, {"credit": 1.0}, {"clip": (0.5, 2.0)}])
def test_on_policy_the_default_equals_no_ratio(options):
    ro, same = rollout(behavior_logp=None), rollout(behavior_logp=None)
    loss, plain = (
        kl_loss(ro, "k3", **options),
        kl_loss(same, "k3", **{**options, "clip": None}, importance=None),
    )
    assert loss.item() == plain.item()
    assert slope(loss, ro) == slope(plain, same)


def test_on_policy_a_clip_below_one_cuts_the_ratio():
    loss = kl_loss(rollout(behavior_logp=None), "k2", clip=(0.0, 0.5))
    assert loss.item() == pytest.approx(0.5 * 1.625 / 2, rel=1e-14)


def test_on_policy_tokens_of_probability_zero_need_no_ratio():
    """exp(-1000) is 0 in float64, and its on-policy ratio is 1 all the same."""
    logp = torch.tensor([[NAN, -1000.0, -2.0], [-0.5, -0.25, -3.0]], dtype=torch.float64)
    loss = kl_loss(rollout(logp=logp, behavior_logp=None), "k1")
    assert loss.item() == pytest.approx((-998.5 - 1 + 0 + 1 - 1) / 2, rel=1e-14)


@pytest.mark.parametrize("function", [kl_loss, kl_terms, kl_reward])
@pytest.mark.parametrize("name", ["levl", "placement", "eta"])
def test_an_unknown_keyword_is_an_error_of_the_function_that_was_called(function, name):
    with pytest.raises(
        TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword argument '{name}'"
    ):
        function(rollout(), "k2", **{name: "token"})
    with pytest.raises(
        TypeError, match=rf"{function.__name__}\(\) got an unexpected keyword argument '{name}'"
    ):
        function(rollout(), "k2", credit=1.0, **{name: "token"})


def test_penalties_of_tokens_by_hand():
    """K1 of the tokens is (1/2, -1) and (0, 1, -1); with the later ones (-1/2, -1) and (0, 0, -1)."""
    own, ahead = [[0, 0.5, -1.0], [0, 1.0, -1.0]], [[-0.5, -0.5, -1.0], [0, 0, -1.0]]
    assert kl_reward(rollout(), "k1", level="token", credit=None).tolist() == own
    assert kl_reward(rollout(), "k1", level="token", credit=0).tolist() == own
    got = kl_reward(rollout(), "k1", level="token")
    assert got[MASK.bool()].tolist() == [
        x for row, m in zip(ahead, MASK, strict=True) for x, i in zip(row, m, strict=True) if i
    ]
    assert torch.equal(got, kl_reward(rollout(), KLTerm("k1", "reward", "token")))
    half = kl_reward(rollout(), "k1", beta=2.0, level="token", credit=0.5)
    assert half[1].tolist() == [0.5, 1.0, -2.0]
