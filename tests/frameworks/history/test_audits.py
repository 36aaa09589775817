"""What releases minimize and when that changed, on twelve planted releases."""

from functools import partial

import pytest

from kl_companion.frameworks.history import audits
from kl_companion.frameworks.history.audits import NOT_THERE, anchors, changes, entry, follow
from kl_companion.frameworks.installed import Unavailable
from tests.frameworks.history import planted

(SUBJECT,) = planted.PROJECT.subjects


def test_an_entry_says_what_is_shipped_and_what_it_minimizes(tmp_path):
    found = entry(SUBJECT, planted.unpacked(tmp_path, "0.3"))
    assert (found.subject, found.version, found.date, found.beta) == ("toy.kl", "0.3", "2025-01-01", "0.04")
    assert found.on_policy == "token_forward_kl"
    assert found.off_policy == "behavior_reference_ratio + behavior_log_likelihood (1, 1)"
    assert found.where == "toy/loss.py:1, kl_term"
    assert found.wheel == "0.3" * 3
    assert len(found.digest) == 16


def test_options_take_the_place_of_defaults(tmp_path):
    release = planted.unpacked(tmp_path, "0.3")
    assert SUBJECT.ship(release, {"beta": 1.0}).option == "Config(beta=1.0)"
    with pytest.raises(ValueError, match=r"option of Config of toy 0\.3 'bet'"):
        entry(SUBJECT, release, {"bet": 1.0})


def test_a_release_without_the_loss_says_why(tmp_path):
    def ship(release, options):
        raise Unavailable("toy 0.3 makes its rollouts elsewhere")

    found = entry(SUBJECT._replace(ship=ship), planted.unpacked(tmp_path, "0.3"))
    assert (found.on_policy, found.where, found.digest) == (
        NOT_THERE,
        "toy 0.3 makes its rollouts elsewhere",
        "",
    )


def test_the_last_of_every_minor_release_is_looked_at_first_or_all_of_few():
    assert anchors(planted.VERSIONS, "0.2") == planted.VERSIONS[1:]
    many = [f"0.{i}.{j}" for i in range(12) for j in range(3)]
    assert anchors(many, "0.3.1") == ("0.3.1", *(f"0.{i}.2" for i in range(3, 12)))


@pytest.mark.parametrize("size", [2, 3, 7, 64])
def test_bisection_finds_every_place_of_a_single_change(size):
    versions = [str(i) for i in range(size)]
    for place in range(1, size):
        asked = []

        def verdict(version, at=place, asked=asked):
            asked.append(version)
            return int(version) >= at

        ends = (versions[0], versions[-1])
        assert list(changes(versions, ends, verdict)) == [(str(place - 1), str(place))]
        assert len(set(asked)) <= 2 + size.bit_length()


def test_several_changes_between_two_that_were_looked_at_are_all_found():
    versions = [str(i) for i in range(32)]
    found = list(changes(versions, ("0", "31"), lambda v: (int(v) >= 5) + (int(v) >= 20)))
    assert found == [("4", "5"), ("19", "20")]
    assert list(changes(versions, ("0", "31"), lambda v: "same")) == []


def test_the_releases_in_which_a_verdict_changed_are_found_and_only_what_is_needed_is_fetched(
    tmp_path, monkeypatch
):
    quick = partial(audits.audit_shipped, scale=1.0, off_policy=False)
    monkeypatch.setattr(audits, "audit_shipped", quick)
    fetched = []

    def fetch(version):
        fetched.append(version)
        return planted.unpacked(tmp_path, version)

    # two were looked at: what lies between them is found by bisection
    project = planted.PROJECT._replace(first="0.3")
    look = ("0.3", "1.1")
    known = {("toy.kl", v): entry(SUBJECT, planted.unpacked(tmp_path, v)) for v in look}

    def verdict(version):
        if ("toy.kl", version) not in known:
            known["toy.kl", version] = entry(SUBJECT, fetch(version))
        return known["toy.kl", version].verdict

    pairs = list(changes(planted.VERSIONS, look, verdict))
    assert pairs == [("0.4.1", "0.4.2"), ("1.0", "1.1")]
    assert len(fetched) < 8
    every = follow(project, planted.VERSIONS, fetch, known)
    assert [e.version for e in every] == list(planted.VERSIONS[2:])
    assert len(set(fetched)) == len(fetched) == 8
    assert follow(project, planted.VERSIONS, fetch, {(e.subject, e.version): e for e in every}) == every
    assert len(fetched) == 8


def test_what_is_older_than_all_that_is_known_is_left_alone(tmp_path, monkeypatch):
    quick = partial(audits.audit_shipped, scale=1.0, off_policy=False)
    monkeypatch.setattr(audits, "audit_shipped", quick)
    known = {("toy.kl", v): entry(SUBJECT, planted.unpacked(tmp_path, v)) for v in ("0.6", "1.0")}
    fetched = []

    def fetch(version):
        fetched.append(version)
        return planted.unpacked(tmp_path, version)

    every = follow(planted.PROJECT._replace(first="0.1"), planted.VERSIONS, fetch, known)
    assert ([e.version for e in every], fetched) == (["0.6", "1.0", "1.1"], ["1.1"])
