"""Every sentence of the report of a log: a log that earns it, and one beside it that does not."""

import json

import pytest

from kl_companion.auditing.judgment.card import card
from kl_companion.monitor.logs import LogOptions, log_report
from kl_companion.monitor.logs import sentences as texts
from kl_companion.monitor.logs.conclusions import metric_lines
from tests.support.data import data
from tests.support.small_logs import small_log

CASES = data(__file__)


def found(case, columns, options):
    log = small_log(columns, case.get("config"), case.get("first", 1))
    report = log_report(log, LogOptions(**options))
    json.dumps(report.to_dict(), allow_nan=False)
    assert card(report, height=None, details=True)
    return [x for x in report.verdicts if x.topic == case["topic"]]


@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{x['topic']}" for i, x in enumerate(CASES)])
def test_a_sentence_and_its_absence(case):
    options = case.get("options", {})
    verdicts = found(case, case["columns"], options)
    matching = [x for x in verdicts if case["says"] in x.says]
    assert matching, [x.says for x in verdicts]
    assert case.get("why", "") in matching[0].why
    assert matching[0].level == case.get("level", matching[0].level)
    other = found(case, {**case["columns"], **case.get("not", {})}, case.get("not_options", options))
    if not case.get("still"):
        assert [x.says for x in other if case["says"] in x.says] == []


def test_every_sentence_has_a_case():
    """Those of prose are in the next test, and those of the logged number in one of its own."""
    topics = {row.get("topic", key) for key, row in texts._TEXTS.items()}
    known = {case["topic"] for case in CASES}
    known |= {topic for group in data(__file__, "recorded") for topic in group["topics"].split()}
    assert topics - known == {"one_token_mean", "turned_sign", "another_number"}


def test_numbers_in_the_prose_of_a_thread():
    log = small_log(
        {"median train/kl": "5, 20.5, 32.1"}, {"k1": 1.9, "kl mean": 1568987.96, "kl max": 6.82e9}
    )
    says = {x.topic: x.says for x in log_report(log).verdicts}
    assert "is 1 + K3 − K1 = 31" in says["mean_ratio"]
    assert "4,347 tokens" in says["one_token_mean"]


def test_a_token_that_no_policy_samples():
    columns = {"critic/kl/mean": 0.1, "kl/mean": 0.1}
    log = small_log({**columns, "vllm_kl": 0.1, "kl": 0.1, "kl_min": -40.0})
    says = {x.topic: x.says for x in log_report(log).verdicts}
    assert "reaches −40 in 1 of 1 rows" in says["impossible_token"]
    calm = small_log({"vllm_kl": 0.1, "kl": 0.1, "kl_min": -9.0})
    assert "impossible_token" not in {x.topic for x in log_report(calm).verdicts}


def test_never_what_a_log_does_not_show():
    """A zero column and a KL of old and new never make a pinned policy, and no advice raises beta."""
    for case in CASES:
        log = small_log(case["columns"], case.get("config"))
        report = log_report(log, LogOptions(**case.get("options", {})))
        text = " ".join(f"{x.says} {x.why} {x.todo}" for x in report.verdicts).lower()
        assert "pinned" not in text
        assert "raise β" not in text.replace("do not raise β", "")


def test_what_is_open_and_whether_it_fails():
    report = log_report(small_log({"kl": "0.1 x 3", "completions/mean_length": "100 x 3"}))
    assert [x.partition(":")[0] for x in report.open] == [
        "Which release it is",
        "What the KL costs",
        "What the KL costs beside the reward",
        "Whether the KL is many tokens or a few",
        "The noise of a row",
        "Whether the term reaches the gradient, with which sign",
        "Any trend",
    ]
    assert not report.fails("attention")
    grave = log_report(small_log({"kl": "inf, 0.1"}))
    assert grave.fails("wrong")
    assert grave.fails("attention")
    assert grave.fails("infinite")
    assert not grave.fails("cut")


def test_the_keys_that_are_known():
    assert any(
        x.startswith("open-instruct 2025-12+  objective/kl1_avg: K2") for x in metric_lines(["kl1_avg"])
    )
    assert len(metric_lines()) > 90


@pytest.mark.parametrize("release", ["", "0.6.1", "0.7.0"])
def test_no_price_of_a_number_with_an_unknown_factor(release):
    """verl 0.6 and 0.7 log actor/kl_loss too small or too large by a number of batches."""
    columns = {"actor/kl_loss": "0.0123456 x 9", "actor/kl_coef": "0.001 x 9", "actor/entropy": "0.3 x 9"}
    log = small_log({**columns, "response_length/mean": "700 x 9", "critic/advantages/max": "1.5 x 9"})
    assert {x.topic for x in log_report(log, LogOptions(release=release)).verdicts} & {
        "unit",
        "idle_term",
    } == set()
    topics = {x.topic for x in log_report(log, LogOptions(release="0.9")).verdicts}
    assert topics >= {"unit", "idle_term"}
