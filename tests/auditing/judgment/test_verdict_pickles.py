"""Verdicts are pickled, as joblib, dask and multiprocessing do, with what they print and without the loss."""

import copy
import pickle

import pytest

from kl_companion import KLTerm, Recipe, audit, audit_update
from kl_companion.auditing.judgment.card import card


def normalized(logp, ref_logp, rewards, mask, beta=0.1):
    """A loss that couples the answers of its batch."""
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    kl = (ref_logp - logp).exp() - 1 - (ref_logp - logp)
    return ((beta * kl - logp * advantages[:, None]) * mask).sum(-1).mean()


LOSSES = {
    "an estimator": "k2",
    "a member of a family": "kf_plus_plus(power_divergence(1/3))",
    "a term": KLTerm("k3", "reward", "sequence"),
    "a lambda": lambda logp, ref_logp: (ref_logp - logp).exp() - 1 - (ref_logp - logp),
    "a loss of a batch": normalized,
}


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy])
@pytest.mark.parametrize("name", LOSSES)
def test_the_copy_of_a_verdict_says_the_same(name, copied):
    verdict = audit(LOSSES[name], scale=1.0, off_policy=False)
    twice = copied(copied(verdict))
    assert twice == verdict
    assert (str(twice), twice.to_dict()) == (str(verdict), verdict.to_dict())
    assert card(twice, details=True) == card(verdict, details=True)
    assert twice.main.couples is (name == "a loss of a batch")
    assert "<pre" in twice._repr_html_()
    with pytest.raises(ValueError, match="without its loss"):
        twice.figure()


@pytest.mark.parametrize("step", [normalized, Recipe(kl=KLTerm("k3"), beta=0.05)])
@pytest.mark.filterwarnings("ignore:std")
def test_the_copy_of_the_verdict_on_an_update_says_the_same(step):
    verdict = audit_update(step, groups=(2,), group_size=2)
    again = pickle.loads(pickle.dumps(verdict))
    assert (str(again), again.to_dict()) == (str(verdict), verdict.to_dict())
    assert again.rest == verdict.rest
