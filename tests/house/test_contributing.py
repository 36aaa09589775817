"""What guards a change: hooks that notice, hosted CI that runs .ci/run, and the page that names both."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from kl_companion import __version__
from kl_companion.frameworks.history.found import FILE
from kl_companion.frameworks.history.subjects import PROJECTS
from tests.run import GROUPS

ROOT = Path(__file__).resolve().parents[2]
HOOKS = {
    hook["id"]: hook
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]
}
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
RELEASES = ROOT / ".github/workflows/releases.yml"


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


def test_hosted_ci_runs_every_group_of_tests_and_keeps_the_pages():
    commands = [
        s["run"] for job in WORKFLOW["jobs"].values() for s in job["steps"] if "make" in s.get("run", "")
    ]
    groups = [name for said in re.findall(r'GROUPS="([^"]+)"', "\n".join(commands)) for name in said.split()]
    assert sorted([*groups, "quick"]) == sorted(GROUPS)
    assert {command.split()[1] for command in commands} == {"quick", "book", "test"}
    assert WORKFLOW["concurrency"]["cancel-in-progress"] is True
    (kept,) = (s for s in WORKFLOW["jobs"]["book"]["steps"] if "upload-artifact" in s.get("uses", ""))
    assert kept["with"]["path"] == "_build/html"
    assert "://" not in (ROOT / ".github/workflows/ci.yml").read_text()
    script = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in script if line.startswith("make ")] == ["make lint", "make book", "make test"]


def actions(workflow: dict) -> set[str]:
    return {step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step}


def test_once_a_week_every_project_is_looked_at_and_the_findings_are_kept():
    text = RELEASES.read_text()
    workflow = yaml.safe_load(text)
    assert "://" not in text
    assert actions(workflow) <= actions(WORKFLOW)
    # YAML reads "on" as a truth value
    assert [entry["cron"].split()[-1] for entry in workflow[True]["schedule"]] == ["1"]
    (job,) = workflow["jobs"].values()
    (look,) = (step for step in job["steps"] if "frameworks update" in step.get("run", ""))
    looked_at = re.search(r"for project in (.*); do", look["run"])
    assert looked_at is not None
    assert tuple(looked_at[1].split()) == PROJECTS
    (kept,) = (s for s in job["steps"] if s.get("uses", "").startswith("actions/upload-artifact"))
    assert kept["if"] == "always()"
    paths = kept["with"]["path"].split()
    assert paths[0] == FILE.relative_to(ROOT).as_posix()
    assert paths[1] in look["run"]


@pytest.mark.parametrize("codes", [(0, 0), (1, 0), (0, 1), (2, 0), (2, 1), (1, 2)])
def test_the_step_ends_with_the_highest_status_of_a_project_and_stops_at_none(tmp_path, codes):
    """The step itself, as hosted CI runs it, with a command that ends so for the second and third project."""
    (job,) = yaml.safe_load(RELEASES.read_text())["jobs"].values()
    (look,) = (step for step in job["steps"] if "frameworks update" in step.get("run", ""))
    command = tmp_path / ".venv/bin/kl-companion"
    command.parent.mkdir(parents=True)
    ends = "".join(
        f'test "$3" = {name} && exit {code}\n' for name, code in zip(PROJECTS[1:3], codes, strict=True)
    )
    command.write_text(f'#!/bin/sh\necho "$3"\n{ends}exit 0\n')
    command.chmod(0o755)
    assert look["shell"] == "bash"
    call = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", look["run"]]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == max(codes)
    assert (tmp_path / "releases.md").read_text().split() == list(PROJECTS)


def test_the_version_is_the_same_wherever_a_release_sets_it():
    """In the files that the first step of the page's list names."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (first_step,) = re.findall(r"^1\. Set the version.*?(?=^2\.)", text, re.M | re.S)
    files = re.findall(r"`([\w./]+\.(?:toml|py|cff))`", first_step)
    pattern = re.compile(r"""^(?:__)?version(?:__)?(?: =|:) "?([\d.]+)"?$""", re.M)
    versions = {name: pattern.findall((ROOT / name).read_text(encoding="utf-8")) for name in files}
    assert versions == {name: [__version__] for name in ("kl_companion/__init__.py", "CITATION.cff")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "kl_companion.__version__"}


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
    assert len(text.splitlines()) <= 125  # one page
