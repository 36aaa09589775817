"""Each planted trouble is found and comes first, and a healthy run has none."""

import pytest

from kl_companion.monitor import read_run, run_verdicts
from kl_companion.monitor.advice import headline, worst
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
