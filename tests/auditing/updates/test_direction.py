"""The sign of an update: whether better answers become more likely, and the policy is held to the reference.

Every loss here is written with two signs, that of its policy part and that of its KL, so that what it does is
plain from the text: a step down ``-r * l`` raises the log-prob l of an answer whose reward r is above 0.
"""

import json
from dataclasses import replace

import pytest
import torch

from kl_companion import audit_update
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.updates.effective import IDLE, LOWERS, REPELS
from kl_companion.auditing.updates.record import UpdateAudit
from kl_companion.auditing.updates.wanted import wanted_of
from kl_companion.cli import main

PAIRS = {"groups": (2,), "group_size": 2}


@pytest.fixture(autouse=True)
def few_prompts(monkeypatch):
    from kl_companion.auditing.updates import audit

    monkeypatch.setattr(audit, "SUCCESS", (0.1, 0.5))


def centered(r):
    return (r - r.mean()).unsqueeze(-1)


def divided(r):
    return ((r - r.mean()) / (r.std() + 1e-6)).unsqueeze(-1)


def against_others(r):
    return (r - (r.sum() - r) / (len(r) - 1)).unsqueeze(-1)


def reinforce(logp, old_logp, a):
    return -a * logp


def ratio(logp, old_logp, a):
    return -a * torch.exp(logp - old_logp)


def clipped(logp, old_logp, a):
    rho = torch.exp(logp - old_logp)
    return -torch.min(rho * a, rho.clamp(0.8, 1.2) * a)


def clipped_on_the_wrong_side(logp, old_logp, a):
    rho = torch.exp(logp - old_logp)
    return -torch.max(rho * a, rho.clamp(0.8, 1.2) * a)


def of_whole_answers(logp, old_logp, a):
    return -a * (logp - old_logp).mean(-1, keepdim=True).exp()


FORMS = [reinforce, ratio, clipped, clipped_on_the_wrong_side]


def loss_of(form, policy=1.0, kl=1.0, advantages=centered, beta=0.05):
    def step(logp, old_logp, ref_logp, rewards, mask):
        penalty = 0.5 * (logp - ref_logp) ** 2
        x = policy * form(logp, old_logp, advantages(rewards)) + kl * beta * penalty
        return (x * mask).sum(-1).mean()

    return step


def verdict(step, want=None) -> UpdateAudit:
    return audit_update(step, want=want, **PAIRS)


@pytest.mark.parametrize("advantages", [centered, divided])
@pytest.mark.parametrize("form", FORMS)
def test_four_signs(form, advantages):
    """Right, without the minus of the policy loss, with a KL that is subtracted, and negated as one."""
    right = verdict(loss_of(form, advantages=advantages))
    at = right.at("50 %", None)
    assert right.to_dict()["fault"] is None
    assert "maximizes E[R" in right.to_dict()["sentence"]
    assert at.reward_sign == 1
    sizes = at.share.gain, abs(right.effective(at))
    for policy, kl, headline, text in (
        (-1.0, 1.0, LOWERS, "step minimizes E[R"),
        (1.0, -1.0, REPELS, "step maximizes E[R"),
        (-1.0, -1.0, LOWERS, "step minimizes E[R"),
    ):
        found = verdict(loss_of(form, policy, kl, advantages))
        here, data = found.at("50 %", None), found.to_dict()
        assert (data["headline"], data["fault"]) == (headline, headline)
        assert data["sentence"].startswith(text)
        assert here.reward_sign == policy
        assert here.share.gain == pytest.approx(policy * sizes[0], rel=1e-9)
        assert found.effective(here) == pytest.approx(kl * sizes[1], rel=1e-9)  # no double negative
        row = next(x for x in data["fresh"] if (x["prompt"], x["group"]) == ("50 %", "large"))
        assert (row["reward_sign"], row["effective_beta"] > 0) == (policy, kl > 0)


@pytest.mark.parametrize(("policy", "headline"), [(1.0, None), (-1.0, LOWERS)])
def test_a_form_whose_update_is_no_sum_of_known_gradients(policy, headline):
    """The ratio of whole answers, padding included: its sign is measured and not fitted."""
    data = verdict(loss_of(of_whole_answers, policy)).to_dict()
    assert (data["exact"], data["fault"]) == (False, headline)


@pytest.mark.parametrize("kl", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("form", FORMS)
def test_a_policy_loss_without_its_minus_is_never_what_was_wanted(form, kl):
    found = verdict(loss_of(form, -1.0, kl))
    for want in ("E[R]", "E[R] - 0.05 * token_reverse_kl", "E[R] - 0 * token_reverse_kl"):
        assert replace(found, want=wanted_of(want)).met is False


@pytest.mark.parametrize("form", [reinforce, ratio, clipped])
def test_what_is_right_is_what_was_wanted(form):
    """In groups of two the mean of all halves the gain, and the reward of the other does not."""
    wanted = "E[R] - 0.05 * token_reverse_kl"
    assert verdict(loss_of(form, advantages=against_others), wanted).met is True
    assert verdict(loss_of(form, kl=0.0), "E[R]").met is True
    assert verdict(loss_of(form, kl=-1.0, advantages=against_others), wanted).met is False


@pytest.mark.parametrize(("sign", "headline"), [(1.0, None), (-1.0, LOWERS)])
@pytest.mark.parametrize("advantages", [centered, divided])
def test_a_penalty_in_the_reward(advantages, sign, headline):
    """A negated loss negates the penalty that is in the reward with it."""

    def step(logp, ref_logp, rewards, mask, beta=0.1):
        shaped = rewards - beta * ((logp - ref_logp) * mask).sum(-1).detach()
        return -(sign * advantages(shaped) * logp * mask).sum(-1).mean()

    found = verdict(step)
    assert found.to_dict()["fault"] == headline
    assert found.effective(found.at("50 %", None)) == pytest.approx(sign * 0.1, rel=1e-3)


def test_a_sign_that_is_wrong_on_some_prompts():
    """Below a mean reward of .3 the advantages have the wrong sign."""

    def step(logp, rewards, mask):
        sign = (rewards.mean() - 0.3).sign()
        return -(sign * centered(rewards) * logp * mask).sum(-1).mean()

    found = verdict(step, "E[R]")
    assert (found.to_dict()["fault"], found.met) == (LOWERS, False)
    assert found.at("10 %", None).reward_sign == -1
    assert found.at("50 %", None).reward_sign == 1
    assert "on the prompts 10 %" in found.to_dict()["sentence"]


def ones(logp, old_logp, a):
    return -a * torch.exp(logp - logp)


def without_gradient(logp, old_logp, a):
    return -a * torch.exp(logp - old_logp).detach()


def times_zero(logp, old_logp, a):
    return -0.0 * a * logp


@pytest.mark.parametrize("kl", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("form", [ones, without_gradient, times_zero])
def test_rewards_without_an_effect(form, kl):
    found = verdict(loss_of(form, kl=kl), "E[R]")
    data = found.to_dict()
    assert (data["fault"], data["met"]) == (IDLE, False)
    assert data["sentence"].startswith("The rewards have no effect on the update of step")
    assert "maximizes E[R]" not in str(found)
    assert "nan" not in str(found)
    assert {s.reward_sign for s in found.seen if s.group is None and s.deviation > 0} == {0.0}


@pytest.mark.parametrize("beta", [0.01, 1.0])
@pytest.mark.parametrize("squared", [True, False])
def test_a_kl_that_pulls_along_the_rewards_is_no_effect_of_theirs(beta, squared):
    """Without a ratio the KL of stale samples has a part along E[R] that a fit takes for the rewards'."""

    def step(logp, old_logp, ref_logp, advantages, mask):
        x = ref_logp - logp
        kl = 0.5 * x**2 if squared else torch.exp(x) - x - 1
        policy = -torch.exp(logp.detach() - old_logp) * advantages.unsqueeze(-1)
        return ((policy + beta * kl) * mask).sum(-1).mean()

    assert verdict(step, "E[R]").to_dict()["fault"] == IDLE


def test_a_loss_that_reads_no_rewards_is_refused():
    def step(logp, ref_logp, mask):
        return (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()

    with pytest.raises(
        ValueError, match="step minimizes token_reverse_kl and no rewards, expected a loss that reads"
    ):
        verdict(step)


def test_the_sign_comes_first_and_in_the_color_of_an_error():
    red, bold = "\033[1;31m", "\033[1m"
    assert f"{red}step minimizes E[R" in card(verdict(loss_of(clipped, -1.0)), color=True)
    assert f"{red}step maximizes E[R] + " in card(verdict(loss_of(clipped, kl=-1.0)), color=True)
    assert f"{red}The rewards have no effect" in card(verdict(loss_of(ones)), color=True)
    right = card(verdict(loss_of(clipped)), color=True)
    assert f"{bold}step maximizes E[R] - " in right
    assert red not in right


def test_a_card_never_raises_for_what_was_wanted():
    for form in (ratio, ones, times_zero):
        found = verdict(loss_of(form, kl=0.0), "E[R] - 0.05 * token_reverse_kl")
        assert hasattr(found, "met")
        assert "That is not what was wanted" in str(found)


FILE = """
import torch

def loss(logp, old_logp, advantages, mask):
    return ({sign}torch.exp(logp - old_logp) * advantages.unsqueeze(-1) * mask).sum(-1).mean()

def idle(logp, old_logp, advantages, mask):
    return -(torch.exp(logp - logp) * advantages.unsqueeze(-1) * mask).sum(-1).mean()
"""


@pytest.mark.parametrize(
    ("sign", "name", "status", "headline"),
    [("-", "loss", 0, "no KL that acts"), ("", "loss", 1, LOWERS), ("", "idle", 1, IDLE)],
)
def test_the_exit_status(tmp_path, capsys, sign, name, status, headline):
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(sign=sign))
    arguments = ["audit", f"{path}:{name}", "--update", "--want", "E[R]", "--quiet"]
    assert main(arguments) == status
    assert ("That is what was wanted" in capsys.readouterr().out) is (status == 0)
    assert main([*arguments, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["headline"] == headline


def negative_beta(logp, ref_logp, rewards, mask, beta=-0.05):
    cost = beta * 0.5 * (logp - ref_logp) ** 2 - logp * (rewards - rewards.mean())[:, None]
    return (cost * mask).sum(-1).mean()


def test_a_negative_beta_has_no_optimum_and_is_said_to_be_one():
    verdict = audit_update(negative_beta, groups=(2,), group_size=2)
    assert verdict.rest is None
    text = " ".join(str(verdict).split())
    assert "pushes the policy away from the reference" in text
    assert verdict.to_dict()["fault"] == "the KL is maximized"


def reward_times_kl(logp, ref_logp, rewards, mask):
    return ((0.5 * (logp - ref_logp) ** 2 * mask).sum(-1) * rewards).mean()


def test_an_update_that_is_mostly_rest_maximizes_nothing_that_is_named():
    verdict = audit_update(reward_times_kl, groups=(2,), group_size=2)
    large = [s.share.rest for s in verdict.seen if s.group is None and s.deviation > 0]
    assert min(large) > 45
    text = " ".join(str(verdict).split())
    assert f"known here: {min(large):.0f}° or more of its update are neither" in text
    assert "minimizes E[R]" not in text
    assert "Instead" not in text
