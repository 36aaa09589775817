"""Whole updates as trainers write them: what beta means in each, against verdicts derived by hand."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch

from kl_companion import KLTerm, Recipe, audit_update
from kl_companion.auditing.updates import audit
from kl_companion.auditing.updates.effective import OTHER, WRITTEN
from kl_companion.auditing.updates.meaning import advice
from kl_companion.auditing.updates.step import as_step
from kl_companion.auditing.updates.wanted import wanted_of
from tests.support.steps import STEPS, dapo_with_kl, kl_in_reward, rloo

FAST = {"groups": (2,), "group_size": 4}
PAIRS = {"groups": (2,), "group_size": 2}


@pytest.fixture
def few_prompts(monkeypatch):
    """Of the prompts whose rewards are 0 and 1, only that with half of its answers right."""
    monkeypatch.setattr(audit, "SUCCESS", (0.5,))


@cache
def verdict(name):
    hand = STEPS[name]
    return audit_update(hand.step, **FAST, **hand.options)


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_maximizes(name):
    found, hand = verdict(name), STEPS[name]
    assert found.headline == hand.kind
    assert found.penalties == pytest.approx(hand.penalties)
    assert (found.reward, found.named) == (hand.reward, True)


@pytest.mark.parametrize("name", STEPS)
def test_beta_in_large_groups(name):
    found, hand = verdict(name), STEPS[name]
    for seen in found.seen:
        if seen.group is None and seen.deviation > 0:
            # an eps is added to the standard deviation
            assert found.ratio(seen) == pytest.approx(hand.large(seen.deviation), rel=2e-3, abs=1e-9)
            assert seen.share.rest < 1e-6


def test_the_spread_of_rewards_of_0_and_1():
    found = verdict("dapo_with_kl")
    for p in (0.01, 0.1, 0.5, 0.9, 0.99):
        assert found.at(f"{100 * p:g} %", None).deviation == pytest.approx(math.sqrt(p * (1 - p)))
    assert found.at("equal", None).deviation == 0


@pytest.mark.parametrize("name", STEPS)
def test_groups_of_equal_rewards(name):
    """A penalty divided by its own spread has one size; one beside it grows with beta; K1 is noise."""
    found = verdict(name)
    wanted = {"kl_in_reward": 1.0, "k1_in_loss": math.nan}.get(name, 10.0)
    for group in (2, 4, None):
        seen = found.at("equal", group)
        assert seen.grows == pytest.approx(wanted, rel=1e-3, nan_ok=True)
        assert seen.ignores_beta is (name == "kl_in_reward")


def test_small_groups_inflate_a_penalty_that_is_normalized():
    """At 1 right answer in 100 nearly all groups of 4 have equal rewards, and their penalty has size one."""
    found = verdict("kl_in_reward")
    ratios = [found.ratio(found.at(f"{p} %", 4)) for p in (1, 10, 50)]
    assert all(r > 1.5 for r in ratios)
    assert ratios[0] > ratios[1] > ratios[2]
    assert found.ratio(found.at("1 %", 2)) > ratios[0]


def test_a_recipe_is_what_its_function_is():
    term = KLTerm("k1", "reward")
    recipe = Recipe("group_std", term, 0.1, "before", "reinforce", aggregate="sum", eps=1e-8)
    ours, theirs = audit_update(recipe, **FAST), verdict("kl_in_reward")
    for mine, other in zip((*ours.seen, *ours.stale), (*theirs.seen, *theirs.stale), strict=True):
        assert mine.share.gain == pytest.approx(other.share.gain, rel=1e-6, nan_ok=True)
        assert mine.share.charge == pytest.approx(other.share.charge, rel=1e-6)


@pytest.mark.usefixtures("few_prompts")
def test_several_updates_on_one_batch():
    """Small steps change nothing; larger ones leave the clip range, and the reward with it."""
    recipe = Recipe("mean", KLTerm("k2", importance=None), 0.1, eps=0.0, updates=3, rate=1e-6)
    once, small, large = (
        audit_update(r, **PAIRS).at("50 %", None).share
        for r in (replace(recipe, updates=1), recipe, replace(recipe, rate=10.0))
    )
    assert small.gain == pytest.approx(once.gain, rel=1e-4)
    assert small.charge == pytest.approx(once.charge, rel=1e-4)
    assert large.gain < 0.9 * once.gain


@pytest.mark.parametrize(
    ("choices", "coefficient", "remedy"),
    [
        ({"lam": 0.95, "critic": "exact"}, WRITTEN, ""),
        (
            {"lam": 0.95},
            OTHER,
            "set lam = 1: below it a return ends early in the critic's value, and zero is",
        ),
        (
            {"lam": 0.5, "critic": "reward"},
            OTHER,
            "fit the critic to returns that contain the penalty, or set lam = 1: below it",
        ),
        (
            {"gamma": 0.9, "critic": "exact"},
            OTHER,
            "set gamma = 1: below it the reward at the end of an answer counts less for",
        ),
    ],
)
@pytest.mark.usefixtures("few_prompts")
def test_advantages_of_a_critic(choices, coefficient, remedy):
    """With the exact critic and gamma = 1 the coefficient is beta for every lam; else it is not."""
    recipe = Recipe("none", KLTerm("k1", "reward"), 0.05, aggregate="sum", **choices)
    found = audit_update(recipe, **PAIRS)
    assert (found.coefficient, found.penalties) == (coefficient, {"sequence_reverse_kl": 1.0})
    assert advice(found)[:1] == ([remedy] if remedy else [])
    several = audit_update(replace(recipe, updates=2, rate=1e-6), **PAIRS)
    assert several.at("50 %", 2).share.charge == pytest.approx(found.at("50 %", 2).share.charge, rel=1e-4)


def test_an_exact_critic_follows_the_policy_to_rest():
    recipe = Recipe("none", KLTerm("k1", "reward"), 0.3, aggregate="sum", lam=0.0, critic="exact")
    end, best = audit_update(recipe, **PAIRS).rest
    assert end.settled
    assert (end.reward, end.kl) == pytest.approx((best.reward, best.kl), abs=1e-6)


def of_tokens(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    shaped = (rewards / mask.sum(-1)).unsqueeze(-1) - kl_coef * (logprobs - ref_logprobs).detach()
    std = (shaped * mask).std(0, keepdim=True)  # the wrong axis: over answers, one token at a time
    advantages = (shaped - shaped.mean(0, keepdim=True)) / (std + 1e-8)
    return -(advantages * logprobs * mask).sum(-1).mean()


def pays(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    return kl_in_reward(logprobs, ref_logprobs, rewards, mask, -kl_coef)


def charged_after(logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    advantages = advantages - kl_coef * ((logprobs - ref_logprobs) * mask).sum(-1).detach()
    return -(advantages.unsqueeze(-1) * logprobs * mask).sum(-1).mean()


def without_a_mask(logprobs, ref_logprobs, rewards, kl_coef=0.1):
    shaped = rewards - kl_coef * (logprobs - ref_logprobs).detach()[:, 0]
    advantages = (shaped - shaped.mean()) / (shaped.std() + 1e-8)
    return -(advantages.unsqueeze(-1) * logprobs).sum(-1).mean()


def of_the_sampler(logprobs, old_logprobs, ref_logprobs, rewards, mask, kl_coef=0.1):
    shaped = rewards - kl_coef * ((old_logprobs - logprobs) * mask).sum(-1).detach()
    advantages = (shaped - shaped.mean()) / (shaped.std() + 1e-8)
    return -(advantages.unsqueeze(-1) * logprobs * mask).sum(-1).mean()


@pytest.mark.parametrize("mutant", [of_tokens, pays, charged_after, without_a_mask, of_the_sampler])
def test_a_slip_changes_the_verdict(mutant):
    """Each is `kl_in_reward` with one slip: the wrong axis, sign, order, mask, or policies of the ratio."""
    found, right = audit_update(mutant, **PAIRS), verdict("kl_in_reward")
    right = replace(right, seen=tuple(s for s in right.seen if s.group != 4), group_size=2)
    numbers = [
        torch.tensor([(s.share.gain, s.share.charge) for s in x.seen]).nan_to_num() for x in (found, right)
    ]
    assert (numbers[0] - numbers[1]).norm() > 0.05 * numbers[1].norm()
    assert (found.headline, found.penalties) != (right.headline, right.penalties)


def test_what_was_wanted():
    def met(name, text):
        return replace(verdict(name), want=wanted_of(text)).met

    wanted = "E[R] - 0.1 * sequence_reverse_kl"
    assert met("rloo", wanted) is True
    assert met("rloo", "E[R] - beta * reverse_kl") is True
    assert met("rloo", "E[R] - 0.2 * sequence_reverse_kl") is False
    assert met("rloo", "E[R] - beta * token_reverse_kl") is False
    assert met("rloo", "E[R]") is False
    assert met("k1_in_loss", "E[R]") is True
    assert verdict("rloo").met is None
    missed = replace(verdict("kl_in_reward"), want=wanted_of(wanted))
    assert missed.met is False
    assert "equal" in {s.prompt for s in missed.misses}
    assert {s.group for s in missed.misses} == {4}


@pytest.mark.usefixtures("few_prompts")
def test_a_coefficient_that_is_set_or_not_known():
    assert audit_update(rloo, options={"kl_coef": 0.3}, **PAIRS).beta == 0.3

    def no_number(logprobs, ref_logprobs, rewards, mask):
        return rloo(logprobs, ref_logprobs, rewards, mask, 0.2)

    found = audit_update(no_number, **PAIRS)
    assert (found.beta, found.rest) == (None, None)
    assert found.effective(found.at("50 %", 2)) == pytest.approx(0.2)
    assert replace(found, want=wanted_of("E[R] - 0.2 * sequence_reverse_kl")).met
    assert replace(found, want=wanted_of("E[R] - beta * sequence_reverse_kl")).met is False
    with pytest.raises(
        ValueError, match=r"want is 'E\[R\] - beta \* reverse_kl', and the coefficient of no_number"
    ):
        audit_update(no_number, want="E[R] - beta * reverse_kl", **PAIRS)


def test_where_it_comes_to_rest():
    """Sound steps end at the optimum; where rewards are divided, beta is smaller than it says."""

    def of(name, **strong):
        return replace(verdict(name), step=as_step(STEPS[name].step, options=strong)).rest

    end, best = of("rloo", kl_coef=1.0)
    assert end.settled
    assert (end.reward, end.kl) == pytest.approx((best.reward, best.kl), abs=1e-7)
    end, best = of("dapo_with_kl", kl_loss_coef=1.0)
    assert abs(end.reward - best.reward) > 0.01


def test_progress_and_stale_samples():
    lines = []
    found = audit_update(dapo_with_kl, progress=lines.append, **FAST)
    assert len(lines) == 14
    assert lines[0] == "fresh samples, rewards: 1 %"
    assert lines[-1] == "stale samples, rewards: equal"
    assert {s.group for s in found.stale} == {None}
    # a clip takes tokens out of the reward and leaves them in the KL
    assert max(s.share.rest for s in found.stale) > 5
    assert torch.tensor([s.share.size for s in found.stale]).isfinite().all()


def test_an_update_without_a_kl_term_is_given_none(few_prompts):
    def cubed(logprobs, rewards, mask):
        apart = (rewards - rewards.mean()) ** 3  # the gradient of no objective that is registered
        return -(logprobs * apart.unsqueeze(-1) * mask).sum(-1).mean()

    assert audit_update(cubed, **PAIRS).penalties == {}
