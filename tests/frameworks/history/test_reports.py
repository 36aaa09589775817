"""Reports on planted releases: what they say is computed, and their scripts run without this package."""

import math
import re
import subprocess
import sys
from functools import partial

import pytest

from kl_companion.frameworks.history import audits, reports
from kl_companion.frameworks.history.audits import entry
from kl_companion.frameworks.history.found import found
from kl_companion.frameworks.history.reports import keeps_promise, report
from kl_companion.frameworks.history.subjects import PROJECTS, project
from tests.frameworks.history import planted
from tests.support.data import data

DATA = data(__file__)

(SUBJECT,) = planted.PROJECT.subjects


@pytest.fixture
def near(monkeypatch):
    """One size of log-ratios, which is quicker."""
    monkeypatch.setattr(reports, "audit_shipped", partial(audits.audit_shipped, scale=1.0))


def planted_as(monkeypatch, folder, term, version="0.3"):
    """A release whose KL term is another one."""
    monkeypatch.setattr(planted, "term_of", lambda _: term)
    return planted.unpacked(folder, version)


def test_a_release_that_disagrees_has_a_report_whose_script_shows_it(tmp_path, near):
    text = report(SUBJECT, planted.unpacked(tmp_path, "0.3"))
    assert text.splitlines()[0] == (
        "# Gradient of the forward KL, not of the reverse KL: the KL term of toy (toy 0.3)"
    )
    for fact in (
        f"Release: toy 0.3, wheel built 2025-01-01, SHA-256 `{'0.3' * 3}`",
        "Option: `Config(beta=0.04)`",
        "Coefficient as shipped: 0.04",
        "Code: `toy/loss.py:1`, `kl_term`; the SHA-256 of the file begins with `",
        "Minimized on fresh samples: forward KL, next token",
        "Minimized on stale samples: mean of ref/policy on the old samples + log-likelihood of the old ",
    ):
        assert f"\n- {fact}" in text
    said = (
        "the expected gradient of this term is that of the forward KL, KL(reference || policy), of each next"
    )
    assert f"\n> On samples of the current policy, {said}" in text
    assert "its value is an unbiased estimate of the reverse KL." in text
    (script,) = re.findall(r"## Reproduction\n.*?```python\n(.*?)```", text, re.S)
    (output,) = re.findall(r"```text\n(.*?)```", text, re.S)
    call = [sys.executable, "-I", "-c", script]
    assert subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == output
    of_loss = [float(x) for x in re.findall(r"gradient of the loss: \[(.*)\]", output)[0].split(", ")]
    policy, reference = ([math.exp(x) for x in logits] for logits in ([1, 0, -1], [-0.5, 0.5, 0]))
    wanted = [a / sum(policy) - b / sum(reference) for a, b in zip(policy, reference, strict=True)]
    assert of_loss == pytest.approx(wanted, abs=5e-5)
    ours = r"token_|sequence_|behavior_re|behavior_log_|_kl\b|k[123]\b"
    assert not re.search(ours, text)


def test_a_release_that_agrees_has_none(tmp_path):
    assert report(SUBJECT, planted.unpacked(tmp_path, "0.5")) == ""


def test_a_promise_of_something_else_is_judged_by_that(tmp_path, near):
    release = planted.unpacked(tmp_path, "0.3")
    assert report(SUBJECT._replace(promise="forward_kl"), release) == ""
    text = report(SUBJECT._replace(promise="jensen_shannon"), release)
    assert text.startswith("# Gradient of the forward KL, not of the Jensen-Shannon divergence: ")
    assert "There is no short reproduction" in text


def test_a_loss_without_a_gradient_is_said_to_be_so(tmp_path, near, monkeypatch):
    text = report(SUBJECT, planted_as(monkeypatch, tmp_path, "-x"))
    assert text.startswith("# Expected gradient is zero, not that of the reverse KL: ")
    assert "expected gradient of the loss: [0.0, 0.0, 0.0]\n" in text


def test_without_a_formula_file_and_line_are_named(tmp_path, near, monkeypatch):
    text = report(SUBJECT, planted_as(monkeypatch, tmp_path, "x**4"))
    assert "There is no short reproduction: no formula of one line that we know is this loss." in text
    assert "The code is `toy/loss.py:1`, `kl_term`." in text
    assert "not that of the reverse KL, nor of another divergence known to us." in text
    assert "import torch" not in text


def test_a_clamp_far_from_the_reference_is_a_report_of_its_own(tmp_path, monkeypatch):
    release = planted_as(monkeypatch, tmp_path, "(x**2 / 2).clamp(-10, 10)")
    text = report(SUBJECT, release)
    assert text.startswith("# Gradient differs from that of the reverse KL: ")
    assert "fresh samples, near: reverse KL, next token\n" in text
    assert "fresh samples, far: no divergence known to us, because of the clamp\n" in text
    assert "torch.tensor([0.0, -1.0, -5.0]" in text
    assert not keeps_promise(entry(SUBJECT, release), SUBJECT.promise)


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (planted.K3, "In longer answers the tokens of each are averaged"),
        (planted.K2, "answers of one token have the gradient of the reverse KL, and longer ones another"),
    ],
)
def test_a_mean_over_each_answer_is_told_from_its_formula(tmp_path, near, monkeypatch, term, said):
    def loss(function, rollout):
        mask = rollout.completion_mask
        each = (function(rollout.logp, rollout.ref_logp) * mask).sum(-1) / mask.sum(-1)
        return each.mean()

    monkeypatch.setattr(planted, "_loss", loss)
    text = report(SUBJECT, planted_as(monkeypatch, tmp_path, term))
    assert text.startswith("# Gradient differs from that of the reverse KL: ")
    assert said in text


def test_an_option_is_named_only_where_it_keeps_the_promise(tmp_path, near):
    def ship(release, options):
        if options.get("like") == "none":
            raise ValueError("unknown option")
        return planted.ship(planted.unpacked(tmp_path, options.get("like", release.version)), {})

    release = planted.unpacked(tmp_path, "0.3")
    subject = SUBJECT._replace(ship=ship, instead=({"like": "none"}, {"like": "0.4.1"}, {"like": "0.5"}))
    assert "An option has it already: with `like=0.5` the expected gradient" in report(subject, release)
    assert "An option" not in report(subject._replace(instead=subject.instead[:2]), release)


@pytest.mark.parametrize(
    ("minimized", "kept"),
    DATA["minimized"],
)
def test_what_was_found_is_held_against_the_promise(minimized, kept):
    row = found("trl")[0]._replace(on_policy=minimized)
    assert keeps_promise(row, "reverse_kl") is kept


def test_what_is_known_of_the_newest_releases():
    last = {e.subject: e for name in PROJECTS for e in found(name)}
    promises = {s.name: s.promise for name in PROJECTS for s in project(name).subjects}
    assert set(last) == set(promises)
    broken = {name for name, e in last.items() if not keeps_promise(e, promises[name])}
    assert {"verl.loss", "openrlhf.loss"} <= broken
    assert broken.isdisjoint({"trl.grpo", "trl.gkd", "verl.reward", "liger.jsd"})
