"""Known losses have known verdicts, and mutants of them have others."""

import pytest

from kl_companion import ESTIMATORS, audit, bandit, prefix_tree
from kl_companion.auditing.fit.recognition import recognize
from kl_companion.auditing.reading.subject import as_loss
from kl_companion.auditing.worlds.plan import single_tokens
from kl_companion.divergences import DIVERGENCES
from kl_companion.kl_term import KLTerm
from kl_companion.losses import kl_loss
from kl_companion.rollout import leave_one_out

TOKEN_REVERSE, TOKEN_FORWARD = {"token_reverse_kl": 1.0}, {"token_forward_kl": 1.0}
SEQUENCE_REVERSE = {"sequence_reverse_kl": 1.0}


def quick(loss, **options):
    return audit(loss, off_policy=options.pop("off_policy", False), **options)


def all_match(found, wanted):
    return all(
        any(m == pytest.approx(wanted) for m in c.matches) and c.residual < 1e-10 for c in found.findings
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("k2", TOKEN_REVERSE),
        ("k3_plus_plus", TOKEN_REVERSE),
        ("k4", TOKEN_REVERSE),
        ("exact_kl", TOKEN_REVERSE),
        ("k3", TOKEN_FORWARD),
        ("k5", TOKEN_FORWARD),
        ("exact_forward_kl", TOKEN_FORWARD),
    ],
)
def test_token_level_losses_descend_a_field_with_curl(name, wanted):
    found = quick(name)
    assert all_match(found, wanted)
    assert len(found.findings) == 4
    assert all(c.curl > 0.01 for c in found.findings)
    assert len(found.findings[0].matches) == 1


def test_k1_in_the_loss_descends_nothing():
    found = quick("k1")
    assert all(c.zero and c.residual == 0 for c in found.findings)
    assert found.matches == {}
    assert found.headline == "no expected gradient"
    assert "minimizes nothing: its expected gradient is zero" in str(found)


@pytest.mark.parametrize("name", ["k2", "k3_plus_plus", "k4"])
def test_sequence_level_losses_descend_reverse_kl_without_curl(name):
    found = quick(name, level="sequence")
    assert all_match(found, SEQUENCE_REVERSE)
    assert all(c.curl < 1e-5 for c in found.findings)


def test_k1_in_the_reward_descends_the_sequence_reverse_kl():
    found = quick("k1", placement="reward")
    assert all_match(found, SEQUENCE_REVERSE)
    assert all(c.curl < 1e-5 for c in found.findings)


def test_k3_in_the_reward_descends_reverse_minus_forward():
    found = quick("k3", placement="reward")
    assert all_match(found, {"sequence_reverse_kl": 1.0, "token_forward_kl": -1.0})
    one_step = audit("k3", placement="reward", problems=[prefix_tree(4, 1, seed=s) for s in range(3)])
    assert {"sequence_reverse_kl": 1.0, "sequence_forward_kl": -1.0} in list(one_step.findings[0].matches)


@pytest.mark.parametrize("divergence", list(DIVERGENCES))
def test_kf_plus_plus_descends_its_divergence(divergence):
    found = quick(f"kf_plus_plus({divergence})", scale=1.0)
    assert all_match(found, {f"token_{divergence}": 1.0})


def test_value_and_gradient_may_belong_to_different_objectives():
    found = quick("k3", scale=1.0)
    assert found.value_matches == pytest.approx({"sequence_reverse_kl": 1.0, "token_reverse_kl": 1.0})
    assert found.matches == TOKEN_FORWARD


def clamped_k3(logp, ref_logp):
    log_w = (ref_logp - logp).clamp(-20, 20)
    return (log_w.exp() - 1 - log_w).clamp(-10, 10)


def test_a_clamp_is_forward_kl_at_small_ratios_and_nothing_named_at_large_ones():
    found = quick(clamped_k3)
    small = [c for c in found.findings if c.condition.scale == 1.0]
    large = [c for c in found.findings if c.condition.scale == 4.0]
    assert all(c.matches == (TOKEN_FORWARD,) for c in small)
    assert any(c.matches == () and c.residual > 0.01 for c in large)
    assert "fresh samples, near" in str(found)
    assert "fresh samples, far" in str(found)


def grpo(rollout):
    advantages = (rollout.rewards - rollout.rewards.mean()).detach()
    policy = -(advantages[:, None] * rollout.logp)
    total = policy + 0.1 * ESTIMATORS["k3"].fn(rollout.logp, rollout.ref_logp)
    return (total * rollout.completion_mask).sum(-1).mean()


def test_group_centering_shrinks_the_reward_and_not_the_kl():
    found = quick(grpo, group_size=2, scale=1.0)
    assert all_match(found, {"expected_reward": -0.5, "token_forward_kl": 0.1})


def test_leave_one_out_keeps_the_sequence_kl():
    def loss(rollout):
        cost = ((rollout.logp - rollout.ref_logp) * rollout.completion_mask).sum(-1).detach()
        baselined = leave_one_out(cost, rollout.group_index)
        return (baselined * (rollout.logp * rollout.completion_mask).sum(-1)).mean()

    assert all_match(quick(loss, group_size=2, scale=1.0), SEQUENCE_REVERSE)


def mutant_detached(logp, ref_logp):
    return (logp - ref_logp).detach() * (logp - ref_logp)  # k2 with a detach: the same again


def mutant_swapped(logp, ref_logp):
    return ESTIMATORS["k3"].fn(ref_logp, logp)


def test_a_swapped_argument_and_a_dropped_mask_change_the_verdict():
    assert TOKEN_FORWARD not in list(quick(mutant_swapped, scale=1.0).findings[0].matches)

    def unmasked(rollout):
        return (ESTIMATORS["k2"].fn(rollout.logp, rollout.ref_logp) * 1.0).sum(-1).mean()

    found = quick(unmasked, scale=1.0)
    assert [c.matches == (TOKEN_REVERSE,) for c in found.findings] == [True, False]  # without and with EOS


@pytest.mark.parametrize(("discount", "name"), [(0.5, {}), (1.0, SEQUENCE_REVERSE), (0.0, TOKEN_REVERSE)])
def test_a_discount_is_no_mixture_of_token_and_sequence(discount, name):
    """On two tokens it is: credit c is c times the sequence's gradient and 1 - c times the token's."""

    def discounted(rollout):
        return kl_loss(rollout, "k1", credit=discount)

    pair = audit(discounted, problems=[prefix_tree(3, 2, seed=s) for s in range(3)])
    assert len(pair.matches) == (2 if discount == 0.5 else 1)
    found = quick(discounted, off_policy=False)
    assert [case.matches for case in found.findings] == [(name,) if name else ()] * 4
    assert discount != 0.5 or all(case.residual > 1e-4 for case in found.findings)


def test_what_happens_to_the_third_token_is_seen():
    def first_two(rollout):
        return kl_loss(rollout, "k2") - third(rollout)

    def third(rollout):
        squares = ESTIMATORS["k2"].fn(rollout.logp, rollout.ref_logp) * rollout.completion_mask
        return squares[:, 2:].sum(-1).mean()

    assert quick(first_two, scale=1.0).findings[0].matches == ()
    late = quick(third, scale=1.0).findings[0]
    assert (late.zero, late.matches, late.residual) == (False, (), 1.0)
    assert quick(lambda rollout: kl_loss(rollout, "k2"), scale=1.0).findings[0].matches == (TOKEN_REVERSE,)


def test_large_groups_are_looked_at_on_two_tokens():
    def centered(rollout):
        cost = ESTIMATORS["k2"].fn(rollout.logp, rollout.ref_logp).sum(-1)
        return (cost - cost[:1].detach()).mean()

    for size in (3, 4):
        found = audit(centered, group_size=size, off_policy=False, scale=1.0)
        assert found.findings[0].matches == (TOKEN_REVERSE,)


def test_two_problems_show_whose_value_a_loss_estimates_and_one_does_not():
    def found(count):
        return audit("k1", problems=[bandit(3, seed=s) for s in range(count)]).value_matches

    assert found(1) == {}
    assert found(2)["sequence_reverse_kl"] == pytest.approx(1.0)


def test_want_accepts_rewards_beside_the_regularizer_and_both_levels():
    assert audit("k2", want="reverse_kl", off_policy=False).met
    assert not audit("k2", want="sequence_reverse_kl", off_policy=False, scale=1.0).met
    assert not audit(
        lambda logp, ref_logp: -((logp - ref_logp) ** 2) / 2, want="reverse_kl", off_policy=False, scale=1.0
    ).met
    assert not audit("k2", want="reverse_kl", off_policy=True, scale=1.0).met
    assert not audit("k1", want="reverse_kl", off_policy=False, scale=1.0).met

    def with_reward(rollout):
        reward = -(rollout.rewards * (rollout.logp * rollout.completion_mask).sum(-1))
        kl = ESTIMATORS["k2"].fn(rollout.logp, rollout.ref_logp) * rollout.completion_mask
        return (reward + 0.3 * kl.sum(-1)).mean()

    found = audit(with_reward, want="token_reverse_kl", off_policy=False, scale=1.0)
    assert found.met
    assert found.matches == pytest.approx({"expected_reward": -1.0, "token_reverse_kl": 0.3})


def test_recognition():
    def mine(logp, ref_logp):
        return 0.02 * ESTIMATORS["k3"].fn(logp, ref_logp)

    assert recognize(single_tokens(as_loss(mine))) == ("k3", 0.02)
    assert recognize(single_tokens(as_loss(clamped_k3))) == ("k3", 1.0)  # no clamp is reached where it looks
    assert recognize(single_tokens(as_loss(mutant_detached))) is None  # k2's gradient with twice its value

    def with_reward(logp, ref_logp, rewards):
        return 0.02 * ESTIMATORS["k3"].fn(logp, ref_logp) - rewards[:, None] * logp

    assert recognize(single_tokens(as_loss(with_reward))) is None
    assert quick(mine, scale=1.0).same_as == ("k3", 0.02)
    assert "That is not what k3 estimates (reverse KL)." in str(quick(mine, scale=1.0))


def test_progress_is_told_for_every_condition():
    lines = []
    audit("k1", progress=lines.append)
    assert len(lines) == 8
    assert lines[-1].startswith("8/8")


def test_a_small_beta_is_not_taken_for_none():
    def tiny(logp, ref_logp):
        return 1e-9 * ESTIMATORS["k2"].fn(logp, ref_logp)

    assert quick(tiny, scale=1.0).matches == {"token_reverse_kl": 1e-9}

    def nothing(logp, ref_logp):
        return 1e-9 * (logp - ref_logp)

    def only_a_score(logp):
        return logp - logp.detach()  # its value is zero too

    assert quick(nothing, scale=1.0).zero
    assert quick(only_a_score, scale=1.0).zero


@pytest.mark.parametrize(
    ("term", "title", "wanted"),
    [
        (KLTerm("k2"), "k2 in the loss", TOKEN_REVERSE),
        (KLTerm("k2", level="sequence"), "k2 in the loss", SEQUENCE_REVERSE),
        (KLTerm("k1", "reward"), "k1 in the reward", SEQUENCE_REVERSE),
        (KLTerm("k1", "reward", credit=0.0), "k1 in the reward", TOKEN_REVERSE),
        (KLTerm("k1", "score"), "k1 in the loss by its score", SEQUENCE_REVERSE),
        (KLTerm("exact_kl", "both"), "exact_kl in the loss and in the reward", SEQUENCE_REVERSE),
        (KLTerm("top_k_reverse_kl(1)"), "top_k_reverse_kl(1) in the loss", TOKEN_REVERSE),
    ],
)
def test_a_term_is_audited_where_it_says_that_it_is(term, title, wanted):
    found = quick(term, scale=1.0)
    assert found.name == title
    assert all_match(found, wanted)
    # what a loss in the reward, or its score, has for a value is nobody's estimate
    assert (found.meant is None) == (term.placement != "loss")


def test_the_samples_of_a_function_are_drawn_once():
    seen = []

    def mine(logp, ref_logp):
        seen.append(logp.numel())
        return (logp - ref_logp) ** 2 / 2

    assert quick(mine, scale=1.0).same_as == ("k2", 1.0)
    assert seen.count(1) == 8  # four tokens of two bandits, one after the other


def test_all_properties_are_of_the_condition_of_the_headline():
    def each(logp, ref_logp, mask):
        return ((0.5 * (logp - ref_logp) ** 2 * mask).sum(-1) / mask.sum(-1)).mean()

    found = audit(each, scale=1.0, off_policy=False)
    assert found.matches == {"sampled_mean_squared_log_ratio": 1.0}
    assert "squared log-ratio / 2, mean over each answer" in str(found)
    assert (found.residual, found.curl) == (found.main.residual, found.main.curl)
    assert (found.zero, found.value_matches) == (found.main.zero, found.main.value_matches)
    assert found.findings[0].matches != found.main.matches  # of one length
