"""tinker-cookbook: a mean that RL subtracts, defaults, and an older client as a planted release."""

import sys

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.frameworks import setting, tinker
from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.history.subjects import subject
from kl_companion.frameworks.installed import Unavailable, find, known
from kl_companion.tabular.populations import large_batches, population_tree
from tests.support.frameworks.planted import plant


def samples():
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=True)
    return problem.rollout(problem.logits, torch.tensor([0, 5, 9, 12]))


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("distills", [False, True])
def test_one_datum_of_all_answers_is_one_datum_for_each(distills, discount):
    r = samples()
    assert len(set(r.completion_mask.sum(-1).tolist())) > 1
    data = [
        tinker._datum(i, *rows) for i, rows in enumerate(zip(r.sampled_from, r.completion_mask, strict=True))
    ]
    client = tinker.Client(r.ref_logp)
    each = tinker.added(tinker.installed(distills), discount, data, client, distills=distills)
    wanted = charged(-each, r, ahead=False)
    found = tinker.charge(r, discount=discount, distills=distills)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("discount", [0, 1])
def test_a_mean_is_subtracted_in_rl(discount, eos):
    """Of sums it is no baseline: minus the mean KL of a token, times the gradient of the mean length."""
    place = population_tree(3, 2, parts=9, seed=4, eos=eos)
    rl, distillation = (
        large_batches(setting(f"tinker.{name}kl_discount_{discount}").exact, place).gradient
        for name in ("", "distillation_")
    )
    logits = place.problem.logits.clone().requires_grad_()
    every = place.problem.rollout(logits)
    chance = (every.logp * every.completion_mask).sum(-1).exp()
    length = (chance * every.completion_mask.sum(-1)).sum()
    kl = (chance * ((every.logp - every.ref_logp) * every.completion_mask).sum(-1)).sum()
    (longer,) = torch.autograd.grad(length, logits, retain_graph=True)
    wanted = distillation - discount * (kl / length).detach() * longer
    torch.testing.assert_close(rl, wanted, rtol=0, atol=1e-12)
    assert (longer.norm() > 1e-3) == eos
    if discount:
        (per_token,) = torch.autograd.grad(kl / length, logits)
        torch.testing.assert_close(rl, length.detach() * per_token, rtol=0, atol=1e-12)


NEWEST = find(*known("tinker"))


def _ship(name, release, **options):
    return subject(name)[1].ship(release, options)


def _batch():
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9, 5]))


@pytest.mark.parametrize(("name", "beta"), [("tinker.rl", 0.0), ("tinker.distillation", 1.0)])
def test_defaults_are_those_of_the_two_loops(name, beta):
    shipped = _ship(name, NEWEST)
    assert shipped.beta == beta
    start = f"Config(kl_penalty_coef={beta}, kl_discount_factor=0.0, loss_fn='importance_sampling'"
    assert shipped.option.startswith(start)
    with pytest.raises(ValueError, match=r"Config of tinker-cookbook 0\.6\.1"):
        _ship(name, NEWEST, kl_loss_coef=1.0)


def test_an_older_client_is_asked_too_and_the_mean_over_the_batch_is_left_out(tmp_path):
    shipped, r = _ship("tinker.rl", plant(tmp_path, "tinker-cookbook 0.0.7")), _batch()
    assert (shipped.beta, shipped.option) == (0.5, "Config(kl_penalty_coef=0.5, kl_discount_factor=0.0)")
    each = (r.sampled_from - r.ref_logp) * (r.logp - r.sampled_from).exp() * r.completion_mask
    assert shipped.loss(r).item() == pytest.approx(each.sum().item() / 4, rel=1e-12)


def test_what_is_missing_is_named(tmp_path):
    release = plant(tmp_path, "tinker-cookbook 0.0.7")
    with pytest.raises(Unavailable, match="needs a_module_that_nobody_has"):
        _ship("tinker.rl", release, kl_discount_factor=1.0).loss(_batch())
    with pytest.raises(Unavailable, match=r"0\.0\.7 has no tinker_cookbook/distillation") as caught:
        _ship("tinker.distillation", release)
    assert str(tmp_path) not in str(caught.value)
    assert "a_module_that_nobody_has" not in sys.modules
