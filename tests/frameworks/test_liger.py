"""Liger's releases: defaults of the newest, older layouts as small planted releases."""

import re

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import setting
from kl_companion.frameworks.installed import Unavailable, find, known
from kl_companion.frameworks.liger import grpo, jsd
from tests.support.frameworks.planted import plant

NEWEST = find(*known("liger"))


def _batch(seed=0):
    problem = prefix_tree(3, 3, seed=seed, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def test_defaults_are_those_of_the_adapter():
    shipped = grpo(NEWEST, {})
    assert (shipped.beta, shipped.sampled) == (setting("liger.grpo").beta, True)
    for word in ("beta=0.04", "use_bias_correction_kl=False", "importance_sampling_level='token'"):
        assert word in shipped.option
    soft = jsd(NEWEST, {"temperature": 2.0})
    assert (soft.beta, soft.sampled) == (None, False)
    assert soft.option.endswith("(weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, temperature=2.0)")


@pytest.mark.parametrize("ship", [grpo, jsd])
def test_an_option_that_the_release_does_not_have_is_refused(ship):
    with pytest.raises(ValueError, match=r"of liger-kernel 0\.8\.5"):
        ship(NEWEST, {"kl_loss_coef": 1.0})


def test_a_loss_that_is_divided_by_a_length_that_nobody_gave_is_divided_by_the_longest():
    loss = exactly(grpo(NEWEST, {"loss_type": "dr_grpo"}).loss)(_batch())
    whole = exactly(setting("liger.grpo").loss)(_batch())
    assert loss.item() == pytest.approx(whole.item() / _batch().tokens.shape[1], rel=1e-12)


def test_before_sampled_tokens_were_handed_in_the_most_likely_ones_are_taken(tmp_path):
    """Half of each is the same sequence again, so that the standard deviation of rewards exists."""
    shipped = grpo(plant(tmp_path, "liger-kernel 0.0.5"), {})
    assert (shipped.beta, shipped.sampled) == (0.25, False)
    assert shipped.place.function == "LigerFusedLinearGRPOFunction.rlhf_loss_fn"
    r = _batch()
    p, q = r.logits.log_softmax(-1), r.ref_logits.log_softmax(-1)
    best = p.max(-1)
    ratio = q.gather(-1, best.indices.unsqueeze(-1)).squeeze(-1) - best.values
    kept = [
        (ratio[i, t].exp() - ratio[i, t] - 1).item() for i, t in r.completion_mask.bool().nonzero().tolist()
    ]
    assert shipped.loss(r).item() == pytest.approx(sum(kept) / len(kept), rel=1e-12)
    one = prefix_tree(3, 3, eos=True).rollout(prefix_tree(3, 3, eos=True).logits, torch.tensor([1]))
    assert torch.isfinite(shipped.loss(one))


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_token_by_token_the_loss_is_called_once_and_its_beta_is_what_the_release_does_with_it(tmp_path, beta):
    release = plant(tmp_path, "liger-kernel 0.0.7")
    r = _batch()
    squares = (r.logits.softmax(-1) - r.ref_logits.softmax(-1)).square().sum(-1)
    total = sum(squares[i, t].item() for i, t in r.completion_mask.bool().nonzero().tolist())
    loss = jsd(release, {"beta": beta}).loss(r)
    assert loss.item() == pytest.approx(0.5 * total / len(r.tokens), rel=1e-12)


@pytest.mark.parametrize(("ship", "file"), [(grpo, "grpo_loss.py"), (jsd, "jsd_loss.py")])
def test_a_release_without_the_loss_says_so(tmp_path, ship, file):
    with pytest.raises(Unavailable, match=re.escape(f"liger-kernel 0.0.1 has no {file}")) as caught:
        ship(plant(tmp_path, "liger-kernel 0.0.1"), {})
    assert str(tmp_path) not in str(caught.value)
