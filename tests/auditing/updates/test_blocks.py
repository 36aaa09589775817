"""The verdict on a whole update on one screen, in words and as data."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from kl_companion import audit_update
from kl_companion.auditing.judgment.card import HEIGHT, WIDTH, card
from kl_companion.auditing.updates import audit
from kl_companion.auditing.updates.effective import KINDS
from kl_companion.auditing.updates.stationary import Rest
from kl_companion.auditing.updates.wanted import wanted_of
from tests.support.steps import STEPS, grpo_per_answer

AWAY = (Rest(False, 0.123, 12.34), Rest(True, 0.5, 0.1))  # has the longest sentence


def resting(found, rest):
    """With the place where it comes to rest, which takes longest to find."""
    vars(found)["rest"] = rest
    return found


@cache
def verdict(name):
    hand = STEPS[name]
    found = audit_update(hand.step, groups=(2,), group_size=4, **hand.options)
    return found if name == "rloo" or not found.penalties else resting(found, AWAY)


def wanting(name, text):
    return resting(replace(verdict(name), want=wanted_of(text)), verdict(name).rest)


@cache
def said(name):
    return " ".join(str(verdict(name)).split())


@pytest.mark.parametrize("name", STEPS)
def test_it_fits_a_screen(name):
    lines = str(verdict(name)).splitlines()
    assert len(lines) <= HEIGHT
    assert max(map(len, lines)) <= WIDTH
    assert "nan" not in str(verdict(name)).lower()
    details = card(verdict(name), details=True)
    assert len(re.findall(r"\ba = ", details)) == len(verdict(name).seen) + len(verdict(name).stale)


SENTENCES = yaml.safe_load(Path(__file__).with_name("sentences.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "sentences"), SENTENCES.items())
def test_what_it_says(name, sentences):
    text = said(name)
    for sentence in sentences:
        assert sentence in text
    assert ("Instead" in text) is ("Instead" in " ".join(sentences))


def test_what_was_wanted_and_where_it_is_missed():
    wanted = "E[R] - 0.1 * sequence_reverse_kl"
    assert f"That is what was wanted ({wanted})." in str(wanting("rloo", wanted))
    missed = " ".join(str(wanting("kl_in_reward", wanted)).split())
    assert f"That is not what was wanted ({wanted}), by groups of 4 on: 1 %" in missed
    assert card(wanting("rloo", wanted), color=True).count("\033[32m") == 1


def test_given_advantages_are_a_warning(monkeypatch):
    monkeypatch.setattr(audit, "SUCCESS", (0.5,))
    bare = resting(audit_update(grpo_per_answer, groups=(2,), group_size=2), AWAY)
    assert "It takes advantages, and was given rewards as they are" in " ".join(str(bare).split())
    assert "Where all rewards of a group are equal, they still move the policy" in " ".join(str(bare).split())
    assert "It takes advantages" not in said("grpo_per_answer, advantages divided")


@pytest.mark.parametrize("name", ["kl_in_reward", "k1_in_loss", "rloo"])
def test_it_is_data_too(name):
    found = verdict(name)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (data["schema"], data["audit"], data["name"]) == (1, "update", name)
    assert data["headline"] == STEPS[name].kind
    assert data["headline"] in KINDS
    assert data["penalties"] == STEPS[name].penalties
    assert len(data["fresh"]) == len(found.seen)
    first = data["fresh"][0]
    assert first["prompt"] == "1 %"
    if name == "rloo":
        assert first["effective_beta"] == pytest.approx(0.1)
        assert data["rest"]["optimum"]["reward"] == pytest.approx(data["rest"]["reward"], abs=1e-3)
    equal = next(s for s in data["fresh"] if s["prompt"] == "equal" and s["group"] == "large")
    assert (equal["gain"], equal["effective_beta"]) == (None, None if found.penalties else 0.0)


def test_every_field_of_the_data_is_documented():
    from kl_companion.auditing.updates import data

    found = verdict("rloo").to_dict()
    names = {*found, *found["fresh"][0], *found["rest"]}
    assert names <= {*re.findall(r"``(\w+)``", data.__doc__)} | {"parameters", "constants", "result"}


def test_a_coefficient_that_does_not_vary_is_one_number():
    def step(logp, ref_logp, rewards, mask):
        kl = 0.5 * (logp - ref_logp) ** 2
        return ((0.1 * kl - logp * rewards[:, None]) * mask).sum(-1).mean()

    text = " ".join(str(audit_update(step, groups=(2,), group_size=2)).split())
    assert "step maximizes E[R] - b x reverse KL, next token: b is 0.1 in groups of 2." in text
