"""pytest with the plugin: what is collected, what a failure shows, what a start costs."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kl_companion.auditing.judgment.card import card
from kl_companion.testing import plugin
from tests.support.warm import command

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "tests/support/example_project"
PLUGIN = ("-p", plugin.__name__, "-p", "no:cacheprovider")
K2 = "def k2(logp, ref_logp):\n    return 0.5 * (logp - ref_logp) ** 2\n"
pytest_plugins = ["pytester"]


@pytest.fixture(scope="module")
def loaded():
    """All that an audit imports: what pytester's own run imports first, it forgets, and torch loads once."""
    from kl_companion import audit

    def k3(logp, ref_logp):
        return (ref_logp - logp).exp() - 1 - ref_logp + logp

    assert "Details" in card(audit(k3, want="reverse_kl", scale=1.0), details=True)


@pytest.fixture
def files(loaded, pytester, monkeypatch):
    """A folder for test files, and pytest in this process with this plugin alone."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source, *arguments):
        pytester.makepyfile(test_losses=f"from kl_companion.testing import minimizes\n\n{source}")
        return pytester.runpytest_inprocess(*PLUGIN, *arguments)

    return run


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """What pytest says about the example, in another process, which finds the plugin by its entry point."""
    folder = tmp_path_factory.mktemp("example")
    project = shutil.copytree(EXAMPLE, folder / "project", ignore=shutil.ignore_patterns("__pycache__"))
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = folder / "site/kl_companion_here-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: kl-companion-here\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    path = os.pathsep.join([str(installed.parent), str(ROOT)])
    done = subprocess.run(
        [*command(), "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:nbmake", "-rA"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_the_example_has_five_tests_of_which_two_fail(example):
    outcomes = {n: o for o, n in re.findall(r"^(PASSED|FAILED) tests/test_losses.py::(\S+)", example, re.M)}
    assert outcomes == {
        "k2_penalty[token_reverse_kl]": "PASSED",
        "k3_penalty[token_reverse_kl]": "FAILED",
        "grpo_with_k2[token_reverse_kl]": "PASSED",
        "test_the_default_of_the_trainer_is_known_to_be_a_forward_kl": "PASSED",
        "test_the_default_of_the_trainer_minimizes_the_reverse_kl": "FAILED",
    }


def test_a_failure_of_the_example_is_the_card_and_no_stack(example):
    _, text = example.split("k3_penalty[token_reverse_kl] ___", 1)
    card = text.split("\n___", 1)[0]
    assert "k3_penalty minimizes [forward KL, next token] / mean answer length." in card
    assert "That is not what was wanted (token_reverse_kl)." in card
    assert re.search(r"^  \+     .*0\.5 \* \(logps - ref_logps\) \*\* 2", card, re.M)
    for ours in ("Traceback", "plugin.py", "auditor.py", "runtest", "def _judged", "see --details"):
        assert ours not in example
    assert "def test_the_default_of_the_trainer_minimizes" not in example
    assert "GRPOLoss minimizes [0.04 x forward KL, next token - reward] / mean answer" in example
    assert re.search(
        r"^FAILED .*k3_penalty\[.*\] - Failed: not token_reverse_kl: k3_penalty minimizes \[forward KL",
        example,
        re.M,
    )


def test_a_loss_that_passes_is_one_test_for_each_line_in_the_order_of_the_page(files):
    source = (
        '@minimizes("reverse_kl", scale=1.0)\n@minimizes("token_reverse_kl", scale=1.0)\n'
        '@minimizes("reverse_kl", scale=4.0)\n@minimizes("token_reverse_kl", stale=True)\n' + K2
    )
    result = files(source, "-v")
    said = re.findall(r"test_losses.py::(\S+) (\w+)", result.stdout.str())
    assert said == [
        ("k2[reverse_kl]", "PASSED"),
        ("k2[token_reverse_kl]", "PASSED"),
        ("k2[reverse_kl-2]", "PASSED"),
        ("k2[token_reverse_kl-stale]", "FAILED"),
    ]


def test_a_decorated_test_is_an_audit_and_what_is_not_decorated_is_left_to_pytest(files):
    source = '@minimizes("reverse_kl", scale=1.0)\n' + K2.replace("k2", "test_k2")
    result = files(source + "\n\ndef helper(logp):\n    return logp\n\n\ndef test_plain():\n    pass\n", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_k2?reverse_kl? PASSED*", "*::test_plain PASSED*"])


def test_names_and_options_reach_the_audit(files):
    source = (
        '@minimizes("reverse_kl", scale=1.0, roles={"x": "logp", "y": "ref_logp"}, options={"c": -1.0})\n'
        "def f(x, y, c):\n    return c * 0.5 * (x - y) ** 2\n\n\n"
        '@minimizes("reverse_kl", scale=1.0, roles={"x": "logp", "y": "ref_logp"}, options={"c": 1.0})\n'
        "def g(x, y, c):\n    return c * 0.5 * (x - y) ** 2\n"
    )
    result = files(source)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*_ f?reverse_kl? _*", "*c = -1.0*"])


def test_verbose_adds_every_condition(files):
    source = '@minimizes("forward_kl", scale=1.0)\n' + K2
    assert "Details" not in files(source).stdout.str()
    assert "fresh, near, one length: " in files(source, "-v").stdout.str()


def test_a_refusal_is_its_own_words(files):
    broken = "def broken(logp, ref_logp):\n    return logp @ ref_logp.unknown\n"
    source = (
        f'@minimizes("reverse_kl")\n{broken}\n\n@minimizes("revers_kl")\n{K2}\n\n'
        '@minimizes("reverse_kl")\ndef unread(logp, zebra):\n    return logp * zebra\n'
    )
    result = files(source)
    result.assert_outcomes(failed=3)
    text = result.stdout.str()
    assert "broken raised AttributeError: 'Tensor' object has no attribute 'unknown'" in text
    assert "unknown wanted objective 'revers_kl'" in text
    assert "zebra" in text
    assert "plugin.py" not in text
    assert "Traceback" not in text


@pytest.mark.parametrize("leaves", ["sys.exit(0)", "os._exit(0)"])
def test_a_loss_that_exits_fails_its_test(files, leaves):
    outcome = files(f"import os, sys\n\n@minimizes('reverse_kl')\ndef k2(logp, ref_logp):\n    {leaves}\n")
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*k2 called sys.exit(0)*"])


def test_marks_above_a_loss_count(files):
    mark = 'import pytest\n\n\n@pytest.mark.xfail(reason="known", strict=True)\n'
    files(mark + '@minimizes("forward_kl", scale=1.0)\n' + K2).assert_outcomes(xfailed=1)


def test_the_marker_chooses_audits(files):
    source = (
        f'@minimizes("reverse_kl", scale=1.0)\n{K2}\n\ndef test_plain():\n    pass\n\n\n'
        "def test_asks(kl_audit):\n    found = kl_audit(k2, scale=1.0)\n"
        "    assert found.met is None and not any(f.condition.off_policy for f in found.findings)\n"
    )
    files(source, "-m", "kl_audit", "--strict-markers").assert_outcomes(passed=2, deselected=1)
    files(source, "-m", "not kl_audit").assert_outcomes(passed=1, deselected=2)


def test_the_fixture_returns_the_verdict_or_fails_with_it(files):
    source = (
        K2 + '\n\ndef test_good(kl_audit):\n    found = kl_audit(k2, want="reverse_kl", scale=1.0)\n'
        "    assert found.met and found.matches and len(found.findings) == 2\n\n\n"
        'def test_stale(kl_audit):\n    kl_audit(k2, "reverse_kl", stale=True, scale=1.0)\n\n\n'
        "def test_both(kl_audit):\n"
        '    assert len(kl_audit(k2, "reverse_kl", stale=None, scale=1.0).findings) == 4\n'
    )
    result = files(source)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*That is not what was wanted (reverse_kl).", "*stale samples*"])
    assert "kl_audit(k2" not in result.stdout.str()


def test_the_number_of_threads_is_as_before(files):
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        files(f'@minimizes("forward_kl", scale=1.0)\n{K2}').assert_outcomes(failed=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_loss_says_where_it_stands(files):
    source = f'@minimizes("forward_kl", scale=1.0)\n{K2}'
    files(source, "--junitxml=found.xml", "-o", "junit_family=xunit1").assert_outcomes(failed=1)
    assert 'file="test_losses.py" line="2"' in Path("found.xml").read_text()


def test_collecting_loads_no_torch(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest("def pytest_unconfigure():\n    import sys; print('torch' in sys.modules)\n")
    pytester.makepyfile(f'from kl_companion.testing import minimizes\n\n@minimizes("reverse_kl")\n{K2}')
    result = pytester.runpytest_subprocess(*PLUGIN, "--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::k2?reverse_kl?", "1 test collected*", "False"])


def test_a_whole_update_is_a_test_too(files):
    source = (
        "from kl_companion.testing import maximizes\n\n\n"
        '@maximizes("E[R] - beta * sequence_reverse_kl", groups=(2,), group_size=2)\n'
        "def rloo(logp, ref_logp, rewards, mask, kl_coef=0.1):\n"
        "    shaped = rewards - kl_coef * ((logp - ref_logp) * mask).sum(-1).detach()\n"
        "    baseline = (shaped.sum() - shaped) / (len(shaped) - 1)\n"
        "    return -((shaped - baseline) * (logp * mask).sum(-1)).mean()\n\n\n"
        "def test_asks(kl_audit_update):\n"
        "    found = kl_audit_update(rloo, groups=(2,), group_size=2)\n"
        "    assert (found.beta, found.met) == (0.1, None)\n"
        '    kl_audit_update(rloo, "E[R] - 0.2 * sequence_reverse_kl", groups=(2,), group_size=2)\n'
    )
    result = files(source, "-m", "kl_audit")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*not E?R? - 0.2 * sequence_reverse_kl: rloo maximizes E?R? - beta x reverse*"]
    )
