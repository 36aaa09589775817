"""unsloth-zoo's releases: defaults of the newest, older layouts as planted releases."""

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.frameworks.installed import Unavailable, find, known
from kl_companion.frameworks.unsloth import grpo
from tests.support.frameworks.planted import plant

NEWEST = find(*known("unsloth"))


def _batch(scale=1.0):
    problem = prefix_tree(3, 3, seed=2, eos=True, off_policy=True, scale=scale)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def test_what_it_takes_where_it_is_not_told_otherwise():
    shipped = grpo(NEWEST, {})
    assert shipped.option == (
        "grpo_compute_loss(loss_type='grpo', importance_sampling_level='token', use_bias_correction_kl=False)"
    )
    assert (shipped.beta, shipped.sampled) == (None, True)


def test_an_option_that_the_release_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"of unsloth-zoo 2026\.10\.9"):
        grpo(NEWEST, {"kl_loss_type": "k3"})


def test_in_the_first_releases_the_old_logits_are_those_of_the_reference(tmp_path):
    release, r = plant(tmp_path, "unsloth-zoo 2025.0.0"), _batch()
    squares = ((r.logp - r.ref_logp).square() * r.completion_mask).sum()
    assert grpo(release, {}).loss(r).item() == pytest.approx(squares.item(), rel=1e-12)
    with pytest.raises(ValueError, match="loss_type"):
        grpo(release, {"loss_type": "grpo"})


@pytest.mark.parametrize(("loss_type", "divided"), [(None, 7), ("dr_grpo", 3), ("dapo", 3)])
def test_logits_of_the_sampler_have_its_log_probs(tmp_path, loss_type, divided):
    """Seven tokens, three answers, at most three tokens each."""
    r = _batch()
    assert (int(r.completion_mask.sum()), *r.tokens.shape) == (7, 3, 3)
    shipped = grpo(plant(tmp_path, "unsloth-zoo 2025.0.1"), {"loss_type": loss_type} if loss_type else {})
    assert f"loss_type='{loss_type or 'bnpo'}'" in shipped.option
    weighted = (r.logp - r.sampled_from).exp() * (r.ref_logp - r.logp).square() * r.completion_mask
    assert shipped.loss(r).item() == pytest.approx(weighted.sum().item() / divided, rel=1e-12)


def test_a_release_without_the_loss_says_so(tmp_path):
    with pytest.raises(Unavailable, match=r"unsloth-zoo 2025\.0\.0 has no grpo_compute_loss"):
        grpo(plant(tmp_path, "unsloth-zoo 2025.0.0", **{"unsloth_zoo/rl_replacements.py": "x = 1\n"}), {})
    with pytest.raises(Unavailable, match=r"has no rl_replacements\.py") as caught:
        grpo(plant(tmp_path / "nothing", "unsloth-zoo 2024.1.1"), {})
    assert str(tmp_path) not in str(caught.value)
