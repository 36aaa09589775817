"""What is known of a loss that is no known objective, from groups that are listed by hand."""

import itertools
import math

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.auditing.worlds.trees import Condition, worlds
from tests.oracles import worlds as oracle
from tests.support.objectives import world_of

FRESH = Condition(False, True, 1.0)


def grpo(logp, ref_logp, rewards, mask, beta=0.1):
    adv = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    per_token = -logp * adv.unsqueeze(-1) + beta * 0.5 * (logp - ref_logp) ** 2
    return (per_token * mask).sum(-1).mean()


def charged(logp, ref_logp, rewards, mask, beta=0.1):
    """The KL is in the reward, and so in its deviation: rewards and reference do not act apart."""
    cost = ((logp - ref_logp).detach() * mask).sum(-1)
    total = rewards - beta * cost
    adv = (total - total.mean()) / (total.std() + 1e-4)
    return -(adv * (logp * mask).sum(-1)).mean()


def in_groups(loss, size=4, **options):
    return audit(loss, group_size=size, scale=1.0, off_policy=False, **options)


def words(found):
    return " ".join(card(found, height=None).split())


def angles(size, sign):
    """Between the expected gradient of normalized advantages and that of minus the reward, world by world."""
    for w in worlds(FRESH, 2, longer=size <= 3):
        listed, p = world_of(w.problem), w.problem
        theta = p.logits.clone().requires_grad_()
        logp = {x: oracle.log_prob(listed, theta, x) for x in listed["leaves"]}
        rewards = dict(zip(listed["leaves"], listed["reward"], strict=True))
        part = expected = torch.zeros(())
        for group in itertools.product(listed["leaves"], repeat=size):
            chance = math.prod(logp[x].exp().item() for x in group)
            r = [rewards[x] for x in group]
            mean = sum(r) / size
            deviation = math.sqrt(sum((x - mean) ** 2 for x in r) / (size - 1)) + 1e-4
            each = (-sign * (rewards[x] - mean) / deviation * logp[x] for x in group)
            part = part + chance * sum(each) / size
        for x, r in rewards.items():
            expected = expected - logp[x].exp() * r
        a, b = (torch.autograd.grad(x, theta, retain_graph=True)[0].flatten() for x in (part, expected))
        yield math.degrees(math.acos((a @ b / a.norm() / b.norm()).item()))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("beta", [0.1, -3.0, 1e-6])
def test_the_kl_part_is_named_and_the_part_of_the_rewards_has_an_angle(size, beta):
    found = in_groups(grpo, size, options={"beta": beta})
    assert found.main.matches == ()
    kl, rewards, large = found.parts
    assert kl.finding.matches == ({"token_reverse_kl": pytest.approx(beta)},)
    turned = list(angles(size, 1))
    assert rewards.near[:2] == ("expected_reward", -1)
    assert rewards.near[2:] == pytest.approx((min(turned), max(turned)), abs=1e-6)
    assert large.finding.matches[0].keys() == {"token_reverse_kl", "expected_reward"}
    text = words(found)
    does = {0.1: "minimizes 0.1", -3.0: "maximizes 3", 1e-6: "minimizes 1e-06"}[beta]
    assert f"Its KL part {does} x reverse KL, next token. Its part of the rewards is turned by" in text
    assert f"{min(turned):.0f}° to {max(turned):.0f}° from that of - reward." in text
    assert ("Check the signs: grpo maximizes reverse KL, next token" in text) is (beta < 0)
    assert "In practice" not in text


def test_rewards_that_are_minimized_are_said_first_where_their_part_is_close_to_them():
    def lowers(logp, ref_logp, rewards, mask):
        adv = torch.tanh(rewards - rewards.mean())
        return ((logp * adv.unsqueeze(-1) + 0.1 * 0.5 * (logp - ref_logp) ** 2) * mask).sum(-1).mean()

    found = in_groups(lowers)
    rewards = found.parts[1].near
    assert (rewards.objective, rewards.sign) == ("expected_reward", 1)
    assert rewards.most < 30
    assert found.to_dict()["warning"] == (
        "Check the signs: lowers minimizes the rewards (reward), which makes better answers less likely."
    )


def test_parts_that_act_together_are_not_told_apart():
    found = in_groups(charged)
    assert found.main.matches == ()
    subjects = [p.subject for p in found.parts]
    assert "Its KL part" not in subjects
    assert "Its part of the rewards" not in subjects
    text = words(found)
    assert "Its gradient is nearest to that of " in text
    assert "In large batches it minimizes" in text


def test_a_part_that_is_no_objective_is_near_one():
    def token_mean(logp, ref_logp, advantages, mask, beta=0.1):
        per_token = -logp * advantages.unsqueeze(-1) + beta * 0.5 * (logp - ref_logp) ** 2
        return (per_token * mask).sum() / mask.sum()

    kl, rewards, _ = in_groups(token_mean).parts
    assert kl.near.objective == "token_reverse_kl"
    assert kl.near.sign == 1
    assert kl.near.most < 3
    assert rewards.near.objective == "expected_reward"
    assert rewards.near.most < 30


def test_a_kl_part_is_compared_with_distances_to_the_reference_only():
    def js_cost(logp, ref_logp, rewards, mask, kl_coef=0.05):
        r = ref_logp - logp
        js = (-(0.5 * (1 + r.exp())).log() + 0.5 * r).detach()
        return -((logp * mask).sum(-1) * (rewards - kl_coef * (js * mask).sum(-1))).mean()

    found = audit(js_cost, scale=1.0, off_policy=False)
    kl, rewards = found.parts
    assert OBJECTIVES[kl.near.objective].regularizer
    assert rewards.finding.matches == ({"expected_reward": -1.0},)
    assert "Its part of the rewards maximizes E[R]." in words(found)


def test_a_known_loss_has_no_parts():
    assert audit("k3", scale=1.0, off_policy=False).parts == ()
    assert audit("k1", scale=1.0, off_policy=False).parts == ()
