"""unsloth-zoo's releases: defaults of the newest, older layouts as planted releases."""

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.frameworks.installed import Distribution, Unavailable, find, known
from kl_companion.frameworks.unsloth import grpo

NEWEST = find(*known("unsloth"))

_ONLY_REFERENCE = """
import torch

def grpo_compute_loss(old_logits, new_logits, input_ids, mask, beta, advantages):
    index = input_ids.unsqueeze(-1)
    old, new = (x.log_softmax(-1).gather(-1, index).squeeze(-1) for x in (old_logits, new_logits))
    each = beta * (old - new).square() - advantages.unsqueeze(1)
    return (each * mask).sum(), mask.sum()
"""

_LOGITS = """
import torch

def grpo_compute_loss(ref_logits, new_logits, old_logits, input_ids, mask, beta, advantages, **kwargs):
    loss_type = kwargs.get("loss_type", "bnpo")
    length = kwargs.get("max_completion_length", 8192)
    kwargs.get("rollout_logps_as_old")
    count = kwargs.get("num_items_in_batch", None)
    index = input_ids.unsqueeze(-1)
    ref, new, old = (
        x.gather(-1, index).squeeze(-1) - torch.logsumexp(x, -1) for x in (ref_logits, new_logits, old_logits)
    )
    each = beta * (new - old).exp() * (ref - new).square() - advantages.unsqueeze(1)
    total = (each * mask).sum()
    by = {"bnpo": mask.sum(), "dr_grpo": length, "dapo": count}[loss_type]
    return total / by, mask.sum()
"""


def _batch(scale=1.0):
    problem = prefix_tree(3, 3, seed=2, eos=True, off_policy=True, scale=scale)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def _planted(root, text):
    (root / "unsloth_zoo").mkdir()
    (root / "unsloth_zoo" / "rl_replacements.py").write_text(text, encoding="utf-8")
    return Distribution("unsloth-zoo", "2025.0.0", root)


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
    release, r = _planted(tmp_path, _ONLY_REFERENCE), _batch()
    squares = ((r.logp - r.ref_logp).square() * r.completion_mask).sum()
    assert grpo(release, {}).loss(r).item() == pytest.approx(squares.item(), rel=1e-12)
    with pytest.raises(ValueError, match="loss_type"):
        grpo(release, {"loss_type": "grpo"})


@pytest.mark.parametrize(("loss_type", "divided"), [(None, 7), ("dr_grpo", 3), ("dapo", 3)])
def test_logits_of_the_sampler_have_its_log_probs(tmp_path, loss_type, divided):
    """Seven tokens, three answers, at most three tokens each."""
    r = _batch()
    assert (int(r.completion_mask.sum()), *r.tokens.shape) == (7, 3, 3)
    shipped = grpo(_planted(tmp_path, _LOGITS), {} if loss_type is None else {"loss_type": loss_type})
    assert f"loss_type='{loss_type or 'bnpo'}'" in shipped.option
    weighted = (r.logp - r.sampled_from).exp() * (r.ref_logp - r.logp).square() * r.completion_mask
    assert shipped.loss(r).item() == pytest.approx(weighted.sum().item() / divided, rel=1e-12)


def test_a_release_without_the_loss_says_so(tmp_path):
    with pytest.raises(Unavailable, match=r"unsloth-zoo 2025\.0\.0 has no grpo_compute_loss"):
        grpo(_planted(tmp_path, "x = 1\n"), {})
    with pytest.raises(Unavailable, match=r"has no rl_replacements\.py") as caught:
        grpo(Distribution("unsloth-zoo", "2024.1.1", tmp_path / "nothing"), {})
    assert str(tmp_path) not in str(caught.value)
