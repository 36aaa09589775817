"""Findings by the monitor's own columns, on both sides of their bounds, by the cases of recorded.yml."""

import pytest

from kl_companion.monitor import read_run, run_verdicts
from tests.support import monitored_runs as runs
from tests.support.data import data

CASES = [(group["topics"], case) for group in data(__file__) for case in group["cases"]]


def run_of(folder, case):
    """The run of a case."""
    rows, tokens = runs.rows_of(case), None
    if "tokens" in case:
        tokens = [
            {"step": row["step"], "tokens": [token(*pair) for pair in case["tokens"].get(i, [])]}
            for i, row in enumerate(rows)
        ]
    return read_run(runs.write(folder, rows, case.get("settings"), tokens))


def token(log_ratio, logp):
    where = {"answer": 2, "position": 9, "token": "<tool>", "before": "call "}
    return {**where, "log_ratio": log_ratio, "logp": logp, "ref_logp": logp - log_ratio}


@pytest.mark.parametrize(("topics", "case"), CASES, ids=str)
def test_what_the_columns_show(tmp_path, topics, case):
    verdicts = [x for x in run_verdicts(run_of(tmp_path, case)) if x.topic in topics.split()]
    found = next((x for x in verdicts if case.get("key", "") in x.says), None)
    assert (found and found.level) == case.get("level")
    for part in {"says", "why", "todo"} & case.keys():
        texts = [case[part]] if isinstance(case[part], str) else case[part]
        assert [text for text in texts if text not in getattr(found, part)] == []
    if "not" in case:
        assert case["not"] not in found.why
