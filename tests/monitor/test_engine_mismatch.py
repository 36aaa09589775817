"""The engine's log-probs: the cause decides what to do, and the size whether anything is to do."""

import pytest

from kl_companion.monitor import engine_mismatch, read_run
from tests.support import monitored_runs as runs


def judged(tmp_path, change):
    return engine_mismatch.mismatch(read_run(runs.write(tmp_path, runs.changed(change))))


def parts(temperature=0.0, truncation=0.0, rounding=0.008, **more):
    values = {
        "mismatch": temperature + truncation + rounding,
        "mismatch_temperature": temperature,
        "mismatch_truncation": truncation,
        "mismatch_rounding": rounding,
        **more,
    }
    return lambda _i, _r: values


def test_rounding_alone_is_normal(tmp_path):
    assert judged(tmp_path, parts(rounding=0.03)) is None


@pytest.mark.parametrize(
    ("change", "level", "says", "todo"),
    [
        (
            parts(temperature=0.02, engine_temperature=0.8),
            "attention",
            "by another temperature.",
            "samples fit 0.8",
        ),
        (parts(truncation=0.02, engine_kept=0.95), "attention", "by a truncated distribution.", "keeps 95 %"),
        (parts(rounding=0.06), "attention", "by rounding or other weights.", "ratio of trainer to engine"),
        (parts(rounding=0.4), "wrong", "by rounding or other weights.", "current weights"),
        (parts(truncation=0.1, mismatch_kl=0.05), "wrong", "by a truncated distribution.", "Set top-p to 1"),
    ],
)
def test_each_cause_has_its_repair(tmp_path, change, level, says, todo):
    found = judged(tmp_path, change)
    assert found.level == level
    assert found.says.endswith(says)
    assert todo in found.todo


def test_two_causes_have_two_repairs(tmp_path):
    found = judged(tmp_path, parts(temperature=0.02, truncation=0.01))
    assert "one temperature" in found.todo
    assert "top-p" in found.todo
    assert "0.02 by another temperature, 0.01 by a truncated distribution, 0.008 by the rest" in found.why


def test_a_rest_that_grows_is_weights_that_are_stale(tmp_path):
    found = judged(tmp_path, lambda i, _: {"mismatch": 0.001 * (i + 1), "mismatch_rounding": 0.001 * (i + 1)})
    assert "gets the new weights" in found.todo
    assert "The rest has grown by a factor of 13 over the run." in found.why or "12.7" in found.why
