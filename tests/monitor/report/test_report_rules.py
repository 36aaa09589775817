"""Every rule on both sides of its bounds, by the cases of rules.yml."""

from pathlib import Path

import pytest
import yaml

from kl_companion.monitor.report import drift, engine, logged_number, outliers, read_run
from tests.support import monitored_runs as runs

MODULES = {"drift": drift, "engine": engine, "logged_number": logged_number, "outliers": outliers}
GROUPS = yaml.safe_load(Path(__file__).with_name("rules.yml").read_text(encoding="utf-8"))
CASES = [(group["rule"], case) for group in GROUPS for case in group["cases"]]


def run_of(folder, case):
    """The healthy run with what a case changes."""
    logging = runs.logging(*case["logging"]) if "logging" in case else lambda i, row: {}

    def change(i, row):
        found = {**row, **logging(i, row)}
        for changes in (case.get("rows", {}), case.get("at", {}).get(i, {})):
            for name, x in changes.items():
                found[name] = eval(x, {"i": i, **found}) if isinstance(x, str) else x
        return found

    rows, tokens = runs.changed(change, count=case.get("count", 40)), None
    if "tokens" in case:
        tokens = [
            {"step": row["step"], "tokens": [token(*pair) for pair in case["tokens"].get(i, [])]}
            for i, row in enumerate(rows)
        ]
    return read_run(runs.write(folder, rows, case.get("settings"), tokens))


def token(log_ratio, logp):
    where = {"answer": 2, "position": 9, "token": "<tool>", "before": "call "}
    return {**where, "log_ratio": log_ratio, "logp": logp, "ref_logp": logp - log_ratio}


@pytest.mark.parametrize(("name", "case"), CASES, ids=str)
def test_what_a_rule_says(tmp_path, name, case):
    module, _, rule = name.partition(".")
    found = getattr(MODULES[module], rule)(run_of(tmp_path, case))
    assert (found and found.level) == case.get("level")
    for part in {"says", "why", "todo"} & case.keys():
        texts = [case[part]] if isinstance(case[part], str) else case[part]
        assert [text for text in texts if text not in getattr(found, part)] == []
    if "not" in case:
        assert case["not"] not in found.why


def test_what_is_usual_leaves_the_observation_itself_out(tmp_path):
    usual = outliers.usual(run_of(tmp_path, {"rows": {"kl": "float(i)"}, "count": 13}), "kl")
    assert (usual[0], usual[6], usual[12]) == (3.0, 7.0, 9.0)
