"""Losses and penalties of a `KLTerm`: the same as its choices handed over one by one."""

import pytest
import torch

from kl_companion.kl_term import KLTerm
from kl_companion.losses import kl_loss, kl_reward, kl_terms
from kl_companion.rollout import credit
from tests.support.by_hand import MASK, rollout, slope


@pytest.mark.parametrize(
    ("term", "options"),
    [
        (KLTerm("k3"), {}),
        (KLTerm("k3", level="sequence"), {"level": "sequence"}),
        (KLTerm("k1", "score"), {"credit": 1.0}),
        (KLTerm("k3", importance=None), {"importance": None}),
        (KLTerm("k3"), {"importance": "token"}),
        (KLTerm("k3", ratio="attached", clip=(0.9, 1.1)), {"importance": "token", "ratio": "attached"}),
        (KLTerm("k3", level="sequence", clip=(0.9, 1.1)), {"level": "sequence", "importance": "sequence"}),
        (KLTerm("k3", "score", credit=0.5, importance=None), {"credit": 0.5, "importance": None}),
        (KLTerm("k3", "both", importance="prefix"), {"importance": "prefix"}),
    ],
)
def test_a_term_is_the_same_as_its_choices(term, options):
    options = {**options, "clip": (0.9, 1.1)} if term.clip else options
    ro, same = rollout(), rollout()
    loss, wanted = kl_loss(ro, term, beta=0.3), kl_loss(same, term.estimator, beta=0.3, **options)
    assert loss.item() == wanted.item()
    assert slope(loss, ro) == slope(wanted, same)
    assert kl_terms(rollout(), term).tolist() == kl_terms(rollout(), term.estimator, **options).tolist()


def test_a_term_in_the_reward_charges_what_comes_after():
    costs = kl_reward(rollout(), "k3", beta=2.0, level="token", credit=None)
    ahead = kl_reward(rollout(), KLTerm("k3", "reward", credit=0.5), beta=2.0)
    assert torch.equal(ahead, credit(costs, MASK, discount=0.5))
    before = kl_reward(rollout(), KLTerm("k3", "both", credit=0.5), beta=2.0)
    assert before.tolist() == pytest.approx((ahead - costs).numpy())
    whole = kl_reward(rollout(), KLTerm("k3", "reward", "sequence"), beta=2.0)
    assert torch.equal(whole, kl_reward(rollout(), "k3", beta=2.0))
