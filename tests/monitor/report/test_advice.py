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
    assert runs.TROUBLES[topic]["says"] in first.says
    assert first.level != "fine"
    assert first.why
    assert first.todo
    assert [v.topic for v in others if v.level != "fine"] == []
    assert headline(run, (first, *others)) == first.says


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_has_no_trouble(seed, tmp_path):
    run = read_run(runs.write(tmp_path, runs.healthy(seed)))
    verdicts = run_verdicts(run)
    topics = {v.topic for v in verdicts}
    assert topics >= {"price", "unit", "noise", "logged", "plateau", "engine_normal", "engine_kl"}
    assert worst(verdicts) == "fine"
    assert not any(v.todo for v in verdicts)
    assert headline(run, verdicts).startswith("The KL costs 0.1")


def test_a_run_that_knows_little_is_judged_too(tmp_path):
    rows = [{"step": 5, "answers": 2, "tokens": 30, "entropy": 0.5}]
    run = read_run(runs.write(tmp_path, rows, {"estimator": None, "beta": None}, []))
    (only,) = run_verdicts(run)
    assert (only.level, only.topic) == ("fine", "no_kl_at_all")
    assert headline(run, (only,)) == "No key of this log is a KL."


def test_the_gravest_comes_first(tmp_path):
    names = ("equal_groups", "entropy_collapse")
    rows = {name: x for topic in names for name, x in runs.TROUBLES[topic]["rows"].items()}
    case = {"rows": rows, "at": runs.TROUBLES["not_a_number"]["at"]}
    verdicts = run_verdicts(read_run(runs.write(tmp_path, runs.rows_of(case))))
    assert [v.topic for v in verdicts][:3] == ["not_a_number", "equal_groups", "entropy_collapse"]
    assert [v.level for v in verdicts][:4] == ["wrong", "attention", "attention", "fine"]
