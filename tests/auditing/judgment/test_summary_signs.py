"""Wrong signs in a plain audit: rewards or an entropy that are minimized, a divergence that is maximized."""

import itertools
import json

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.judgment.verdict import Audit
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.cli import main

RED = "\033[31m"


def loss_of(reward=-1.0, kl=0.0, entropy=0.0):
    """The loss as a sum; a policy gradient has -1 for the reward, a penalty +, an entropy bonus -."""

    def term(logits, logp, old_logp, ref_logp, rewards, mask):
        policy = logits.log_softmax(-1)
        spread = -(policy.exp() * policy).sum(-1)
        penalty = 0.5 * (logp - ref_logp) ** 2
        each = reward * torch.exp(logp - old_logp) * rewards.unsqueeze(-1) + kl * penalty + entropy * spread
        return (each * mask).sum(-1).mean()

    return term


def verdict(want=None, **signs):
    return audit(loss_of(**signs), want=want, off_policy=False, scale=1.0)


@pytest.mark.parametrize(
    ("signs", "words"),
    [
        ({"reward": 1.0}, ["minimizes the rewards"]),
        ({"reward": 1.0, "kl": 0.05}, ["minimizes the rewards"]),
        ({"kl": -0.05}, ["maximizes reverse KL"]),
        ({"reward": 1.0, "kl": -0.05}, ["minimizes the rewards", "maximizes reverse KL"]),
        ({"entropy": 0.01}, ["lowers the entropy"]),
        ({"reward": 1.0, "entropy": 0.01}, ["minimizes the rewards", "lowers the entropy"]),
    ],
)
def test_a_wrong_sign_comes_first_and_in_the_color_of_an_error(signs, words):
    found = verdict(**signs)
    lines = card(found, color=True).splitlines()
    start = next(i for i, line in enumerate(lines) if "Check the signs" in line)
    assert lines[start].startswith(f"{RED}Check the signs: term ")
    assert start < next(i for i, line in enumerate(lines) if "minimizes " in line and RED not in line)
    warning = found.to_dict()["warning"]
    positions = [warning.index(word) for word in words]
    assert positions == sorted(positions)
    assert warning.count(";") == len(words) - 1


@pytest.mark.parametrize("signs", [{}, {"kl": 0.05}, {"entropy": -0.01}, {"kl": 0.05, "entropy": -0.01}])
def test_right_signs_have_no_warning(signs):
    found = verdict(**signs)
    assert found.to_dict()["warning"] == ""
    assert "Check the signs" not in str(found)


NEUTRAL = ("expected_inverse_length", "behavior_log_likelihood", "sampled_mean_log_likelihood")


def wrong(name, sign):
    """Whether nobody wants that, by the name alone."""
    if name in NEUTRAL or name.endswith("_mass"):  # of no reward and of no distance to the reference
        return False
    return sign > 0 if "reward" in name or name.endswith("_entropy") else sign < 0


def of_sum(units, **coefficients):
    found = Finding(Condition(False, True, 1.0), (coefficients,), 0.0, False, dict, lambda: 0.0, (units,))
    return Audit("it", (found,)).to_dict()["warning"]


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_every_objective_with_both_signs_alone_and_in_a_sum(name):
    short, beside = OBJECTIVES[name].short, "token_entropy" if "reward" in name else "expected_reward"
    for sign, unit in itertools.product((1e-6, -1e-6, 3.0, -3.0), ("", "tokens", "batch")):
        alone = of_sum({name: unit}, **{name: sign})
        assert ("Check the signs: it " in alone and short in alone) is wrong(name, sign)
        assert bool(alone) is wrong(name, sign)
        in_sum = of_sum({name: unit, beside: unit}, **{name: sign, beside: -1.0})
        assert in_sum == ("" if name == beside else alone)


@pytest.mark.parametrize(
    ("coefficients", "said"),
    [
        ({"token_reverse_kl": 1.0, "token_forward_kl": -1.0}, ""),  # K3 in the reward: of second order
        ({"token_reverse_kl": 1.0, "token_forward_kl": -0.5}, ""),
        ({"token_reverse_kl": 1.0, "token_forward_kl": -1.5}, "it maximizes forward KL, next token"),
        ({"token_reverse_kl": -1.0, "token_jensen_shannon": 3.0}, "it maximizes reverse KL"),  # 3/4 - 1
        ({"token_reverse_kl": -1.0, "token_jensen_shannon": 5.0}, ""),
        ({"token_reverse_kl": -1.0, "token_pearson": -1.0}, "reference; it maximizes Pearson"),
    ],
)
def test_what_is_subtracted_may_not_outweigh_the_rest_near_the_reference(coefficients, said):
    found = of_sum(dict.fromkeys(coefficients, ""), **coefficients)
    assert said in found
    assert bool(found) is bool(said)


def test_a_loss_that_minimizes_the_rewards_is_not_what_was_wanted():
    found = verdict("reverse_kl", reward=1.0, kl=0.05)
    assert found.met is False
    assert "policy_loss = -(ratio * advantages)" in found.remedy
    assert verdict("reverse_kl", kl=0.05).met is True


FILE = """
import torch

def loss(logp, old_logp, ref_logp, advantages, mask):
    policy = {sign}torch.exp(logp - old_logp) * advantages.unsqueeze(-1)
    return ((policy + 0.5 * (logp - ref_logp) ** 2) * mask).sum(-1).mean()
"""


@pytest.mark.parametrize(("sign", "status"), [("-", 0), ("", 1)])
def test_the_exit_status(tmp_path, capsys, sign, status):
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(sign=sign))
    arguments = ["audit", f"{path}:loss", "--want", "reverse_kl", "--scale", "1", "--json", "--quiet"]
    assert main(arguments) == status
    assert bool(json.loads(capsys.readouterr().out)["warning"]) is bool(status)
