"""Sentences as data: which text of a topic is chosen, what fills it in, and that no topic is left over."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from kl_companion.auditing.judgment import templates
from kl_companion.auditing.judgment.templates import filled

ROOM = Path(templates.__file__).parent


class Record(NamedTuple):
    short: str = "reward"
    rewards: bool = False
    regularizer: bool = True
    sampler: bool = False


@pytest.mark.parametrize(
    ("record", "facts", "text"),
    [
        (Record(rewards=True), {}, "minimizes the rewards (reward), which makes better answers less likely"),
        (Record(regularizer=False), {}, "lowers the entropy (reward)"),
        (Record(), {"pushes": False}, "maximizes reward"),
        (Record(), {"pushes": True}, "maximizes reward, which pushes the policy away from the reference"),
        (Record(), {"pushes": False, "short": "KL"}, "maximizes KL"),  # a fact comes before a record's own
    ],
)
def test_the_first_text_whose_condition_holds_is_filled_in(record, facts, text):
    assert filled("wrong_sign", record, **facts) == text


def test_a_name_in_a_text_may_be_a_topic_and_a_topic_may_say_nothing():
    facts = {"parts": "", "not_zero": "2, 3", "no_gradient": "", "fails": ""}
    assert filled("groups", gaps=(), **facts) == ""
    assert filled("groups", gaps=(1,), **facts).endswith(
        " In groups of 2, 3 the expected gradient is not zero."
    )


def test_a_name_that_is_no_fact_and_no_topic_is_an_error():
    with pytest.raises(KeyError, match="matches"):
        filled("does", zero=False)
    with pytest.raises(KeyError, match="nothing"):
        filled("nothing")


def test_every_topic_is_used():
    code = "".join(path.read_text() for path in ROOM.parent.rglob("*.py"))
    texts = (ROOM / "templates.toml").read_text()
    for topic in templates._TOPICS:
        assert f'"{topic}"' in code or re.search(rf"\{{{topic}\}}", texts), topic
