"""What guards a change: hooks that notice, hosted CI that runs .ci/run, and the page that names both."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {
    hook["id"]: hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
}
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())


def hook(name: str, path: Path) -> subprocess.CompletedProcess[str]:
    """The hook's own command on one file, by the tools of the environment that runs this test."""
    program, *arguments = HOOKS[name]["entry"].split()
    program = str(Path(sys.executable).with_name(Path(program).name))
    return subprocess.run(
        [program, *arguments, str(path)], cwd=ROOT, capture_output=True, text=True, check=False
    )


def notebook(path: Path, *, count: int | None = None, output: str = "", source: str = "x = 1") -> Path:
    cell = nbformat.v4.new_code_cell(source, execution_count=count)
    if output:
        cell.outputs = [nbformat.v4.new_output("stream", text=output)]
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return path


@pytest.mark.parametrize(
    ("options", "status"),
    [({}, 0), ({"output": "1\n"}, 1), ({"count": 3}, 1)],
    ids=["clean", "output", "count"],
)
def test_a_notebook_with_outputs_is_stopped(tmp_path, options, status):
    done = hook("notebooks-without-outputs", notebook(tmp_path / "some.ipynb", **options))
    assert done.returncode == status, done.stderr
    assert ("some.ipynb: cells [0] hold outputs" in done.stdout) == bool(status)


@pytest.mark.parametrize(
    ("name", "bad"), [("ruff-check", "import os\n\nx = 1\n"), ("ruff-format", "x   =  1\n")]
)
def test_code_out_of_style_is_stopped(tmp_path, name, bad):
    path = tmp_path / "some.py"
    for text, status in (('"""Text."""\n', 0), (bad, 1)):
        path.write_text(text)
        assert hook(name, path).returncode == status
    assert hook(name, notebook(tmp_path / "some.ipynb", source=bad.strip())).returncode == 1


def test_hooks_use_the_environment_and_fetch_nothing():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "://" not in text
    assert all(h["language"] == "system" and h["entry"].startswith(".venv/bin/") for h in HOOKS.values())


def test_hosted_ci_runs_the_one_script_and_keeps_the_pages():
    (job,) = WORKFLOW["jobs"].values()
    assert [step["run"] for step in job["steps"] if ".ci/run" in step.get("run", "")] == [".ci/run"]
    (kept,) = (s for s in job["steps"] if s.get("uses", "").startswith("actions/upload-artifact"))
    assert kept["with"]["path"] == "_build/html"
    assert "://" not in (ROOT / ".github/workflows/ci.yml").read_text()
    script = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in script if line.startswith("make ")] == ["make lint", "make book", "make test"]


def test_the_page_names_what_a_contributor_runs():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for wanted in (
        "make quick",
        "make test",
        "pre-commit install",
        ".ci/run",
        "CHANGELOG.md",
        "CITATION.cff",
    ):
        assert wanted in text
    assert len(text.splitlines()) <= 120  # one page
