"""Updates in the forms of trainers, against verdicts derived by hand in tests/support/wild_steps.py."""

import pytest

from kl_companion import audit_update
from kl_companion.auditing.updates.effective import DISTORTED, IDLE, LOWERS, OTHER, REPELS, SPREAD, WRITTEN
from tests.support import wild_steps

WHOLE, NEXT, FORWARD = "sequence_reverse_kl", "token_reverse_kl", "token_forward_kl"


def none(n):
    return None


WHOLE_WORDS = "maximizes E[R] - beta x reverse KL, whole answer."


def one(n):
    return 1.0


def centered(n):
    """The mean of the group holds 1 / n of the answer itself."""
    return n / (n - 1)


# Of every step: its kind, its penalty, beta in groups of n over beta as written (None: no one number), and a
# part of the card.
STEPS = {
    "reinforce_kl_reward": (WRITTEN, WHOLE, one, WHOLE_WORDS),
    "grpo_std_k3": (SPREAD, FORWARD, none, "beta x the reward spread x forward KL, next token"),
    "rloo_groups": (WRITTEN, WHOLE, one, WHOLE_WORDS),
    "dr_grpo": (DISTORTED, FORWARD, centered, "b is beta in large groups, and 1.3 beta in groups of 4"),
    "ppo_adaptive": (WRITTEN, WHOLE, one, WHOLE_WORDS),
    "minimized": (LOWERS, NEXT, centered, "minimized minimizes E[R] + b x reverse KL, next token"),
    "kl_maximized": (REPELS, NEXT, lambda n: -centered(n), "maximizes E[R] + b x reverse KL, next token"),
    "no_beta": (OTHER, NEXT, lambda n: 0.05 * centered(n), "E[R] - b x reverse KL, next token: b is"),
    "wants_advantages": (WRITTEN, NEXT, one, "It takes advantages, and was given rewards as they are"),
    "no_eps": (SPREAD, NEXT, none, "no update in groups of 2, groups of 4, large groups on some prompts"),
    "kl_divided_again": (OTHER, NEXT, lambda n: 1 / n, "The coefficient shrinks with the number of answers"),
    "rewards_divided_again": (OTHER, NEXT, none, "The coefficient grows with the number of answers in the"),
    "kl_summed": (OTHER, NEXT, lambda n: float(n), "The coefficient grows with the number of answers in the"),
    "groups_in_code": (WRITTEN, NEXT, one, "It has no update in groups of 2, large groups: "),
    "padding_in_kl": (OTHER, WHOLE, none, "With zeros there it minimizes 0.1 x reverse KL, whole answer - r"),
    "constant_ratio": (IDLE, FORWARD, none, "The rewards have no effect on the update of constant_ratio"),
}


@pytest.fixture(scope="module", params=STEPS)
def verdict(request):
    size = None if request.param == "groups_in_code" else 4
    step = getattr(wild_steps, request.param)
    return request.param, audit_update(step, groups=(2, 4), group_size=size)


def test_kind_penalty_and_sentences(verdict):
    name, found = verdict
    kind, penalty, _, words = STEPS[name]
    text = " ".join(str(found).split())
    assert found.headline == kind
    assert found.penalties == {penalty: 1.0}
    assert found.named is (name != "padding_in_kl")
    assert ("about" in found.sentence) is (name == "padding_in_kl")
    assert words in text


def test_coefficient_in_groups(verdict):
    name, found = verdict
    by_hand = STEPS[name][2]
    if by_hand(2) is None:
        return
    judged = [s for s in found.seen if s.group and s.deviation > 0]
    assert judged
    for seen in judged:
        assert found.effective(seen) / (found.beta or 1.0) == pytest.approx(by_hand(seen.group), rel=1e-6)


def test_rewards_that_are_divided_again_in_large_batches():
    """n answers of mean length T: the rewards have 1 / (n T), and the KL 1, so that b is n T beta."""
    found = audit_update(wild_steps.rewards_divided_again, groups=(2,), group_size=2)
    assert (found.order, found.reward) == (1, "expected_reward")
    for seen in found.seen:
        if seen.group is None and seen.deviation > 0:
            p = 0.5 if seen.prompt == "graded" else float(seen.prompt.removesuffix(" %")) / 100
            # answers of 1, 2, 3 and 3 tokens with chances .4 (1 - p), .4 p, .6 (1 - p) and .6 p
            length = 0.4 * (1 - p) + 0.8 * p + 1.8 * (1 - p) + 1.8 * p
            assert found.ratio(seen) == pytest.approx(length, rel=1e-6)


def test_a_clip_on_the_wrong_side_comes_first():
    found = audit_update(wild_steps.wrong_clip, groups=(2,), group_size=2)
    text = str(found).split("\n\n")[1]
    assert text.startswith("Check the clip, which is on the wrong side: good answers stop below 0.8")
    assert found.to_dict()["warnings"] == list(found.warnings)
    assert audit_update(wild_steps.grpo_std_k3, groups=(2,), group_size=2).warnings == ()


def test_groups_of_one_size():
    found = audit_update(wild_steps.groups_in_code)
    assert {s.group for s in found.seen} == {4}
    assert found.group_size == 4
    assert "by their place" in found.refused[8]
    with pytest.raises(ValueError, match="invalid for input of size 2"):
        audit_update(wild_steps.groups_in_code, group_size=2)


def test_a_kl_term_that_is_not_known_has_no_name():
    """The update without rewards is E[ref(a) score(a)], at no prompt along a divergence that is known."""
    found = audit_update(wild_steps.weighted_by_reference, groups=(2,), group_size=2)
    assert not found.named
    assert found.off > 30
    assert "a KL term that is not known here" in found.sentence
    assert "Effective beta" not in str(found)


def test_a_leak_into_the_ratio_is_no_exact_sentence():
    found = audit_update(wild_steps.unmasked_ratio, groups=(2,), group_size=2)
    assert "about E[(R - mean) / length], and up to" in found.sentence
    assert "Numbers outside the mask change the update" in " ".join(str(found).split())


def test_what_is_not_known_has_no_name():
    """Squares of centered rewards are p**2 or (1 - p)**2: one number where p is one half."""
    found = audit_update(wild_steps.squared_rewards, groups=(2,), group_size=2)
    assert "KL" not in found.sentence.replace("no KL term acts on it", "").replace("a KL that is known", "")


def test_advantages_that_are_made_before():
    found = audit_update(wild_steps.wants_advantages, advantage="group_std", groups=(2,), group_size=2)
    assert found.headline == SPREAD
    assert "It takes advantages" not in str(found)
