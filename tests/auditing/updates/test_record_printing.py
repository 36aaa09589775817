"""`str`, `to_dict` and `met` of a verdict on an update never raise, whatever its numbers are."""

import itertools
import json
import math

import pytest

from kl_companion.auditing.judgment.card import HEIGHT, WIDTH, card
from kl_companion.auditing.updates import UpdateAudit
from kl_companion.auditing.updates.effective import REWARDS, OnPrompt, Share
from kl_companion.auditing.updates.step import Step
from kl_companion.auditing.updates.wanted import wanted_of

NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.3, 1.0)
BETAS = (None, 0.0, -0.1, 0.1, math.nan, math.inf)
PENALTIES = ({}, {"token_reverse_kl": 1.0}, {"token_reverse_kl": 1.0, "token_forward_kl": -2.0})
WANTED = (None, "E[R]", "E[R] - beta * reverse_kl", "E[R] - 0.1 * sequence_reverse_kl")


def fails(rollout):
    raise ValueError("no such group")


def not_a_number(rollout):
    return rollout.logp.sum() * math.nan


def verdict(beta=0.1, penalties=PENALTIES[1], share=(1.0, 0.1, 0.0, 1.0), prompts=True, loss=fails, **more):
    """On two prompts with groups of 8 and large ones, or where these were refused."""
    seen = [
        OnPrompt(name, group, deviation, Share(*share), more.get("grows", math.nan), more.get("sign", 1.0))
        for name, deviation in (("50 %", 0.5), ("equal", 0.0))
        for group in (8, None)
        if prompts is True or group in prompts
    ]
    step = Step("step", loss, beta, "beta" if beta is not None else "", None)
    want = None if more.get("want") is None else wanted_of(more["want"])
    reward = more.get("reward", "expected_reward")
    return UpdateAudit(step, reward, penalties, more.get("named", True), tuple(seen), (), want)


def check(found):
    for details in (False, True):
        text = card(found, details=details)
        assert details or len(text.splitlines()) <= HEIGHT
        assert details or max(map(len, text.splitlines())) <= WIDTH
    assert str(found) == card(found)
    assert found.sentence.endswith(".")
    assert found.met in (None, True, False)
    json.dumps(found.to_dict(), allow_nan=False)
    assert found._repr_html_().startswith("<pre")


@pytest.mark.parametrize(("beta", "penalties"), [*itertools.product(BETAS, PENALTIES)])
def test_any_coefficient(beta, penalties):
    for want in WANTED:
        check(verdict(beta, penalties, want=want))


@pytest.mark.parametrize(("gain", "charge"), [*itertools.product(NUMBERS, NUMBERS)])
def test_any_share(gain, charge):
    for rest, size, sign, named in itertools.product((math.nan, 0.0, 60.0), (0.0, 1.0), (-1, 0, 1), (0, 1)):
        check(verdict(share=(gain, charge, rest, size), sign=float(sign), named=bool(named), want=WANTED[2]))


@pytest.mark.parametrize("prompts", [(), (8,), (None,)])
def test_prompts_that_were_refused(prompts):
    for penalties, want in itertools.product(PENALTIES, WANTED):
        check(verdict(penalties=penalties, prompts=prompts, want=want))


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("grows", [math.nan, 0.0, 1.0, 10.0, math.inf])
def test_any_reward_and_growth(reward, grows):
    share = (math.nan, 0.1, 0.0, 1.0)
    check(verdict(reward=reward, grows=grows, share=share))


@pytest.mark.parametrize("loss", [fails, not_a_number])
def test_a_loss_that_cannot_be_followed_to_rest(loss):
    found = verdict(loss=loss)
    assert found.rest is None
    assert "nats" not in str(found)
    assert found.to_dict()["rest"] is None
