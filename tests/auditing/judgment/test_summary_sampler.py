"""Terms that hold the policy near the one that sampled: what the card says of them, and when it is tried."""

import pytest

from kl_companion import audit
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.worlds.objectives import OBJECTIVES, by_the_sampler, objectives
from tests.support.corpus import FOLDER, load

PENALTY = "squared log-ratio / 2 to the sampler, next token"
LOSSES = load(FOLDER / "trust_region.py")
HELD = "The policy is held near the one that sampled: a step size and no regularizer"


def text_of(name, **options):
    return " ".join(card(audit(getattr(LOSSES, name), scale=1.0, **options), height=None).split())


def test_the_headline_does_not_hide_what_acts_on_stale_samples():
    text = text_of("ppo_penalty")
    assert f"ppo_penalty maximizes E[R]; on stale samples it also minimizes 0.1 x {PENALTY}." in text
    assert HELD in text
    assert f"fresh samples - reward stale samples 0.1 x {PENALTY} - reward x token ratio" in text


def test_a_term_that_is_alone_acts_on_stale_samples_only():
    text = text_of("approx_kl_old_new")
    assert "minimizes [forward KL to the sampler] / mean answer length: on stale samples only" in text
    assert "Check the signs" not in text
    assert "noise alone" not in text
    assert "made more likely" in text


def test_rounding_of_an_exact_kl_to_the_sampler_is_no_gradient():
    assert audit(LOSSES.ppo_adaptive_kl, scale=1.0).distances == ()


def test_a_distance_that_is_maximized_is_a_wrong_sign():
    found = audit(LOSSES.approx_kl_new_old, scale=1.0)
    assert "Check the signs: on stale samples approx_kl_new_old maximizes" in str(found)
    assert "pushes the policy away from the one that sampled" in found.to_dict()["warning"]


def test_an_advantage_that_is_frozen_is_no_wrong_sign():
    """E_pi[log(mu/q)] is KL(pi||q) - KL(pi||mu)."""
    text = text_of("opd_penalized_advantages")
    assert "on stale samples it also minimizes - 0.1 x reverse KL to the sampler, next token." in text
    assert "The policy is pushed away from the one that sampled by reverse KL" in text
    assert "Check the signs" not in text


def test_a_clip_without_a_name_does_not_hide_the_penalty():
    text = text_of("ppo_clip_and_penalty")
    assert f"On stale samples where all rewards are 0 it minimizes 0.02 x {PENALTY}." in text
    assert "; on stale samples it also minimizes 0.02 x squared log-ratio / 2 to the sampler" in text
    assert audit(LOSSES.drpo_loss, scale=1.0).unrewarded is None


def test_a_regularizer_keeps_its_headline():
    found = audit(LOSSES.reference_and_sampler, scale=1.0)
    assert found.headline == "forward KL"
    assert audit(LOSSES.reference_and_sampler, want="forward_kl", scale=1.0, off_policy=True).met


def test_a_name_may_mean_the_sampler():
    def reverse_kl_to_old(logprobs, old_logprobs, mask):
        log_ratio = logprobs - old_logprobs
        return (log_ratio.exp() * log_ratio.detach() * mask).sum(-1).mean()

    def forward_kl_to_old(logprobs, old_logprobs, mask):
        return reverse_kl_to_old(logprobs, old_logprobs, mask)

    right, wrong = audit(reverse_kl_to_old, scale=1.0), audit(forward_kl_to_old, scale=1.0)
    assert (right.as_meant, right.remedy) == (True, None)
    assert (wrong.as_meant, wrong.remedy) == (False, None)  # a KL to the reference would be another loss
    assert audit(reverse_kl_to_old, want="reverse_kl", scale=1.0).met is False


def test_it_is_tried_only_for_losses_that_read_the_sampler():
    assert not any(o.sampler for o in objectives(off_policy=True, sampler=False).values())

    def likelihood(logprobs, mask):
        return -(logprobs * mask).sum(-1).mean()

    (stale,) = (f for f in audit(likelihood, scale=1.0, off_policy=True).findings if f.condition.eos)
    assert stale.matches == ({"behavior_log_likelihood": pytest.approx(-1.0)},)


@pytest.mark.parametrize(
    ("match", "wanted"),
    [
        ({"behavior_log_likelihood": -0.5}, {"forward_kl_to_sampler": 0.5}),
        ({"behavior_log_likelihood": 0.5}, {"forward_kl_to_sampler": -0.5}),
        ({"behavior_log_likelihood": 1.0, "behavior_reference_ratio": 1.0}, None),
        (
            {"behavior_log_likelihood": -1.0, "behavior_reference_ratio": 1.0},
            {"forward_kl_to_sampler": 1.0, "behavior_reference_ratio": 1.0},
        ),
        ({"behavior_log_likelihood": float("nan")}, None),
        ({"token_reverse_kl": 1.0}, None),
    ],
)
def test_the_likelihood_of_old_samples_is_minus_the_forward_kl_to_the_sampler(match, wanted):
    units = dict.fromkeys(match, "tokens")
    found, found_units = by_the_sampler(match, units)
    assert found is match if wanted is None else found == wanted
    assert found_units == dict.fromkeys(found, "tokens")
    assert all(n in OBJECTIVES for n in found)
