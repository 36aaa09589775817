"""The engine's log-probs: the cause decides what to do, and the size whether anything is to do."""

import pytest

from kl_companion.monitor.report import engine, read_run
from tests.support import monitored_runs as runs


def judged(tmp_path, change):
    return engine.mismatch(read_run(runs.write(tmp_path, runs.changed(change))))


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


@pytest.mark.parametrize(("size", "found"), [(0.004, False), (0.006, True)])
def test_another_setting_counts_from_a_hundredth_of_the_temperature(tmp_path, size, found):
    assert (judged(tmp_path, parts(temperature=size)) is not None) == found


@pytest.mark.parametrize(("power", "found"), [(1.02, False), (1.05, True)])
def test_growth_counts_from_a_factor_of_three(tmp_path, power, found):
    seen = judged(tmp_path, lambda i, _: {"mismatch_rounding": 0.006 * power**i})
    assert (seen is not None) == found


def test_without_a_kl_the_mismatch_stands_alone(tmp_path):
    change = parts(temperature=0.02, kl=None, mismatch_kl=None, engine_temperature=None)
    found = judged(tmp_path, change)
    assert "KL(engine, trainer)" not in found.why
    assert "Give engine and trainer one temperature: the trainer" in found.todo
    both = judged(tmp_path, parts(temperature=0.02, engine_temperature=0.9, mismatch_kl=0.001))
    assert "KL(engine, trainer) is 0.001 nats per token, beside 0.028 to the reference." in both.why
    assert "(its samples fit 0.9, the trainer takes 1)" in both.todo
