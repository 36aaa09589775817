"""Each planted trouble is found and comes first, and a healthy run has none."""

import pytest

from kl_companion.monitor import read_run, run_verdicts
from kl_companion.monitor.report.advice import headline, worst
from tests.support import monitored_runs as runs


@pytest.mark.parametrize("topic", runs.TROUBLES)
def test_a_planted_trouble_is_found_and_nothing_else(topic, tmp_path):
    run = read_run(runs.troubled(tmp_path, topic))
    first, *others = run_verdicts(run)
    assert first.topic == topic
    assert runs.TROUBLES[topic][2] in first.says
    assert first.level != "fine"
    assert first.why
    assert first.todo
    assert [v.topic for v in others if v.level != "fine"] == []
    assert headline(run, (first, *others)) == first.says


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_has_no_trouble(seed, tmp_path):
    run = read_run(runs.write(tmp_path, runs.healthy(seed)))
    verdicts = run_verdicts(run)
    assert [v.topic for v in verdicts] == ["size", "logged"]
    assert worst(verdicts) == "fine"
    assert not any(v.todo for v in verdicts)
    said = headline(run, verdicts)
    assert said.startswith("All is normal: KL 0.0")
    assert "groups of equal rewards 20 % (means of the last 5 observations)." in said


def test_the_logged_number_is_taken_apart(tmp_path):
    row = runs.healthy(count=1)[0] | {
        "kl": 0.029,
        "logged": 0.031,
        "logged_expected": 0.0295,
        "logged_bias": 0.0005,
        "logged_noise": 0.0015,
        "logged_error": 0.003,
        "kl_low": 0.027,
        "kl_high": 0.031,
        "tokens": 8192,
    }
    (logged,) = [v for v in run_verdicts(read_run(runs.write(tmp_path, [row]))) if v.topic == "logged"]
    assert logged.says == "Your logged 0.031 is 0.002 too high: noise (step 10)."
    assert logged.why == (
        "It is K3 of 8,192 tokens, the exact KL is 0.029. Of the difference, 0.0005 is bias and 0.0015 is "
        "noise, whose standard error is "
        "0.003."
    )


def test_a_run_that_knows_little_is_judged_too(tmp_path):
    rows = [{"step": 5, "answers": 2, "tokens": 30, "entropy": 0.5}]
    run = read_run(runs.write(tmp_path, rows, {"estimator": None, "beta": None}, []))
    (only,) = run_verdicts(run)
    assert (only.level, only.topic) == ("fine", "nothing")
    assert headline(run, (only,)) == "All is normal: entropy 0.5 nats (means of the last 1 observations)."


def test_the_gravest_comes_first(tmp_path):
    def change(i, row):
        return {
            **runs.TROUBLES["equal_groups"][0](i, row),
            **runs.TROUBLES["entropy"][0](i, row),
            **runs.TROUBLES["not_a_number"][0](i, row),
        }

    verdicts = run_verdicts(read_run(runs.write(tmp_path, runs.changed(change))))
    assert [v.topic for v in verdicts][:3] == ["not_a_number", "entropy", "equal_groups"]
    assert [v.level for v in verdicts] == ["wrong", "wrong", "attention", "fine", "fine"]


def test_no_beta_is_said_and_is_no_trouble(tmp_path):
    run = read_run(runs.write(tmp_path, runs.healthy(), {"beta": 0}))
    verdicts = run_verdicts(run)
    assert [v.topic for v in verdicts] == ["no_beta", "size", "logged"]
    assert worst(verdicts) == "fine"
    assert "no KL term (β is 0)" in headline(run, verdicts)
