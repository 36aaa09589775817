"""The file of findings."""

import re
from itertools import pairwise

import pytest

from kl_companion.frameworks.history.audits import NOT_THERE, ReleaseFinding
from kl_companion.frameworks.history.found import found, in_plain_words, moved, stretches, versions_of, write
from kl_companion.frameworks.history.subjects import PAST, PROJECTS, project
from kl_companion.frameworks.history.wheels import key


def made(subject, version, verdict="token_reverse_kl", beta="0.1"):
    return ReleaseFinding(
        subject, version, "2025-01-01", "a, b", beta, verdict, "unnamed", "f.py:1, f", "0" * 16, "1" * 64
    )


def test_what_is_written_is_read_and_other_projects_stay(tmp_path):
    file = tmp_path / "found.csv"
    trl = [made("trl.grpo", "0.9"), made("trl.grpo", "0.10", 'a "quoted", thing')]
    write("trl", trl, file)
    write("verl", [made("verl.loss", "0.1")], file)
    assert found("trl", file) == tuple(trl)
    write("trl", trl[:1], file)
    assert [e.subject for e in found(file=file)] == ["trl.grpo", "verl.loss"]
    assert [p.name for p in tmp_path.iterdir()] == ["found.csv"]


def test_a_verdict_moves_where_coefficient_or_objective_differ():
    same = [made("trl.grpo", "1"), made("trl.grpo", "2")]
    assert list(moved(same)) == []
    beta = made("trl.grpo", "3", beta="0")
    other = made("trl.grpo", "4", "token_forward_kl", beta="0")
    assert list(moved([*same, beta, other, made("trl.rloo", "1")])) == [(same[1], beta), (beta, other)]


@pytest.mark.parametrize("name", PROJECTS)
def test_findings_of_a_project_are_in_order_and_name_what_was_audited(name):
    entries = found(name)
    subjects = [s.name for s in project(name).subjects]
    places = [(subjects.index(e.subject), key(e.version)) for e in entries]
    assert places == sorted(set(places))
    assert {e.subject for e in entries} == set(subjects)
    for e in entries:
        assert re.fullmatch(r"[0-9a-f]{64}", e.wheel)
        assert re.fullmatch(r"(20\d\d-\d\d-\d\d)?", e.date)
        there = e.on_policy != NOT_THERE
        assert bool(re.fullmatch(r"[0-9a-f]{16}", e.digest)) == there
        assert bool(re.search(r"\.py:\d+, ", e.where)) == there
        assert bool(e.option) == there


def test_at_least_eight_past_releases_of_every_project_with_a_past():
    for name in PAST:
        assert len({e.version for e in found(name) if e.on_policy != NOT_THERE}) >= 9, name


def test_registered_names_become_words() -> None:
    said = in_plain_words("token_forward_kl (1 / mean answer length); at large log-ratios unnamed")
    assert said == "[forward KL, next token] / mean answer length; at large log-ratios no known objective"
    both = in_plain_words("token_forward_kl + token_entropy (1 / mean answer length, 1 / mean answer length)")
    assert both == "[forward KL, next token + entropy, next token] / mean answer length"
    assert in_plain_words("behavior_log_likelihood (1, 1)") == "log-likelihood of the old samples"


def test_stretches_are_releases_with_one_verdict() -> None:
    of_trl = [s for s in stretches(found("trl")) if s[0].subject == "trl.grpo"]
    assert [versions_of(s) for s in of_trl][-2:] == ["0.22.0 to 1.9.2", "1.10.0 to 1.16.0"]
    assert sum(map(len, of_trl)) == len([f for f in found("trl") if f.subject == "trl.grpo"])
    assert all(len({f.verdict for f in s}) == 1 for s in of_trl)
    assert all(old[-1].verdict != new[0].verdict for old, new in pairwise(of_trl))
    assert versions_of(of_trl[-1][-1:]) == "1.16.0"
