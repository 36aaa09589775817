"""Projects that are followed by their adapters: the adapter's functions come from the release."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kl_companion.frameworks import framework, settings
from kl_companion.frameworks.history import adapted
from kl_companion.frameworks.history.audits import NOT_THERE, entry
from kl_companion.frameworks.history.found import found
from kl_companion.frameworks.history.subjects import ADAPTED, PROJECTS, project
from kl_companion.frameworks.installed import (
    Distribution,
    SourceLocation,
    Unavailable,
    find,
    in_place_of_installed,
    load,
    loaded_from,
)
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout
from tests.frameworks.history import planted

ROOT = Path(__file__).resolve().parents[3]


@loaded_from("toy", ("0.2",))
def functions(toy: Distribution) -> SimpleNamespace:
    return SimpleNamespace(**load(toy, "toy/loss.py", "kl_term"), version=toy.version)


def loss(rollout: Rollout) -> torch.Tensor:
    each = functions().kl_term(rollout.logp, rollout.ref_logp) * rollout.completion_mask
    return each.sum() / len(rollout.tokens)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adapter of the planted releases: one default, one other setting, and one that is a formula."""
    place = SourceLocation("toy/loss.py", "kl_term")
    common = {"loss": loss, "place": place, "placement": "loss", "level": "token", "aggregation": "sum"}
    known = Framework("toy", "Toy", "toy", ("0.2",), Remedy(None, None))
    settings = (
        Setting("toy.default", "kl: on", default="of the toy", framework=known, **common),
        Setting("toy.other", "kl: other", framework=known, **common),
        Setting("toy.formula", "kl: formula", default="x", read="commit 1", framework=known, **common),
    )
    monkeypatch.setattr(adapted, "framework", lambda name: known)
    monkeypatch.setattr(adapted, "settings", lambda name: settings)


def test_the_default_is_audited_with_the_functions_of_each_release(toy: None, tmp_path: Path) -> None:
    followed = adapted.project_of("toy")
    assert (followed.distribution, followed.first) == ("toy", "0.2")
    (default,) = followed.subjects
    assert (default.name, default.promise) == ("toy.default", "reverse_kl")
    findings = {v: entry(default, planted.unpacked(tmp_path, v)) for v in ("0.1", "0.4.0", "0.5")}
    assert {v: e.on_policy for v, e in findings.items()} == {
        "0.1": "token_reverse_kl",
        "0.4.0": "token_forward_kl",
        "0.5": "token_reverse_kl",
    }
    assert {e.option for e in findings.values()} == {"kl: on"}
    assert {e.where for e in findings.values()} == {"toy/loss.py:1, kl_term"}
    with pytest.raises(Unavailable, match="toy is not installed"):  # again, outside of an audit
        functions()


def test_a_release_without_the_function_has_no_such_loss(toy: None, tmp_path: Path) -> None:
    (default,) = adapted.project_of("toy").subjects
    release = planted.unpacked(tmp_path, "0.3")
    (release.root / "toy/loss.py").write_text("def renamed(logp, ref_logp):\n    return logp\n")
    finding = entry(default, release)
    assert finding.on_policy == NOT_THERE
    assert "toy 0.3 has no kl_term in toy/loss.py" in finding.where


def test_options_are_refused(toy: None, tmp_path: Path) -> None:
    (default,) = adapted.project_of("toy").subjects
    with pytest.raises(ValueError, match=r"toy\.default got the options beta, expected none"):
        default.ship(planted.unpacked(tmp_path, "0.3"), {"beta": 0.1})


def test_releases_take_the_place_of_one_distribution_and_are_loaded_once(tmp_path: Path) -> None:
    calls = []

    @loaded_from("toy", ("9",))
    def version(release: Distribution) -> str:
        calls.append(release.version)
        return release.version

    old, new = (planted.unpacked(tmp_path, v) for v in ("0.1", "0.2"))
    for _ in range(2):
        with in_place_of_installed(old):
            assert version() == "0.1"
            with in_place_of_installed(new), in_place_of_installed(Distribution("another", "7", tmp_path)):
                assert version() == "0.2"
            assert version() == "0.1"
    assert calls == ["0.1", "0.2"]


def test_every_framework_of_the_lock_is_followed() -> None:
    lock = (ROOT / "requirements-audit.lock").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", lock, re.M))
    frameworks = set(pinned) - {"polgrad", "axe-playwright-python", "cosmic-ray"}  # tools
    assert len(frameworks) == 13
    assert frameworks <= {project(name).distribution for name in PROJECTS}
    for name in ADAPTED:
        of = project(name)
        assert of.first == pinned[of.distribution]
        assert of.subjects
        assert all(s.name.startswith(f"{name}.") for s in of.subjects)


@pytest.mark.parametrize("name", ADAPTED)
def test_the_first_findings_are_those_of_the_table_of_frameworks(name: str) -> None:
    """Made by two programs from two copies of the sources: on fresh and on stale samples, near and far."""
    with (ROOT / "tables/framework_audit/table.csv").open(encoding="utf-8", newline="") as stream:
        table = {(r["setting"], r["sampling"], r["scale"]): r["objective"] for r in csv.DictReader(stream)}
    first = [e for e in found(name) if e.version == project(name).first]
    assert [e.subject for e in first] == [s.name for s in project(name).subjects]
    for e in first:
        for sampling, verdict in (("on-policy", e.on_policy), ("off-policy", e.off_policy)):
            verdicts = [part.partition(" (")[0] for part in verdict.split("; at large log-ratios ")]
            audited = [table[e.subject, sampling, scale] for scale in ("1.0", "4.0")]
            assert list(dict.fromkeys(audited)) == verdicts, e


@pytest.mark.parametrize("name", ADAPTED)
def test_the_installed_release_is_found_to_do_what_its_adapter_does(name: str, tmp_path: Path) -> None:
    """One loss of each, on the installed files in the place of a release, to the last digit."""
    from kl_companion.tabular import prefix_tree

    of, adapter = project(name), framework(name)
    installed = find(adapter.distribution, adapter.versions)
    world = prefix_tree(3, 2, seed=1)
    rollout = world.rollout(world.logits)
    for subject in of.subjects[:1]:
        (setting,) = (s for s in settings(name) if s.name == subject.name)
        shipped = subject.ship(installed._replace(version="newer"), {})
        assert torch.equal(shipped.loss(rollout), setting.loss(rollout))
