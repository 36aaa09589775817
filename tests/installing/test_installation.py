"""The quick part of `make install-check`: what is packed, what is said where an extra is missing, the lock.

The slow part, which installs into empty environments, is tests/installing/installation.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.installing import clones, distributions, extras, installation, lock, versions
from tests.installing.trying import Report

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return distributions.build(ROOT, tmp_path_factory.mktemp("a path with spaces") / "built here")


def test_sdist_and_wheel_hold_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    assert distributions.problems(ROOT, *built) == []
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    data = ("py.typed", "book/claims/register.csv", "recommendations/recommendations.toml")
    assert {f"kl_companion/{name}" for name in data} <= set(names)


def test_what_is_lost_or_does_not_belong_there_is_named(built: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = tmp_path / built[1].name, tmp_path / built[0].name
    with zipfile.ZipFile(built[1]) as old, zipfile.ZipFile(wheel, "w") as new:
        for name in old.namelist():
            if not name.endswith(("py.typed", "LICENSE", "entry_points.txt")):
                new.writestr(name, old.read(name))
        new.writestr("tests/site/test_site.py", "")
    with tarfile.open(built[0]) as old, tarfile.open(sdist, "w:gz") as new:
        for member in old.getmembers():
            name = member.name.replace("claims/register.csv", "notes.txt")
            member.name = name
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    assert distributions.problems(ROOT, sdist, wheel) == [
        "the wheel lacks kl_companion/py.typed",
        "the wheel has no script kl-companion",
        "the wheel lacks the license",
        "the wheel holds tests/site/test_site.py",
        "the sdist lacks kl_companion/book/claims/register.csv",
        "the sdist holds kl_companion/book/notes.txt",
    ]


def test_the_installed_packages_fit_together() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_each_missing_extra_is_named_with_its_command(tmp_path: Path) -> None:
    gone = "yaml papermill joblib matplotlib seaborn bokeh distributed"
    gone += " transformers tokenizers safetensors accelerate trl"
    code = f"""
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {gone.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Gone())
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.installing import extras
asked, said = extras.unclear(Path({str(tmp_path)!r}))
print("\\n".join(said) or asked)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(len(extras.ASKED))
    assert {extra for extra, _, _ in extras.ASKED} == set(EXTRAS) - {"test"}


def test_every_extra_is_tried_and_those_that_are_named_exist() -> None:
    assert set(installation.USED) == set(EXTRAS)
    assert set(extras.BRINGS) == set(EXTRAS) - {"test"}
    texts = [ROOT / "README.md", *(ROOT / "book").glob("*.md"), *(ROOT / "kl_companion").rglob("*.py")]
    named = re.compile(r"(?:kl-companion|'\.|install \.)\[([\w,]+)\]")
    found = {n for path in texts for names in named.findall(path.read_text()) for n in names.split(",")}
    assert found == set(EXTRAS)


# -- the lock ------------------------------------------------------------------------------------------------


def test_the_lock_is_written_as_it_stands() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert len(lock.header(text)) == 2
    names = [line.split("==") for line in lock.pins(text)]
    report = {"install": [{"metadata": {"name": name, "version": version}} for name, version in names[::-1]]}
    for name, version in (("nvidia-cublas", "13.1"), ("triton", "3.7"), ("cuda-toolkit", "13.0")):
        report["install"].append({"metadata": {"name": name, "version": version}})
    torch = next(item for item in report["install"] if item["metadata"]["name"] == "torch")
    torch["metadata"]["version"] += "+cpu"
    assert "\n".join([*lock.header(text), *lock.lines_of(report)]) + "\n" == text


def test_changes_of_the_lock_are_named() -> None:
    assert lock.changes(["a==1", "b==1", "d==1"], ["a==2", "c==1", "d==1"]) == [
        "a: 1 -> 2",
        "b: 1 -> absent",
        "c: absent -> 1",
    ]


def test_the_lock_holds_what_pyproject_asks_for_with_all_that_needs_and_no_more() -> None:
    """As `lock.py --check` does with an index, but from what is installed."""
    from importlib import metadata

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    todo = [Requirement(line) for line in lock.wanted()]
    seen: set[tuple[str, str]] = set()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if (name, extra) in seen or lock.OF_CUDA.fullmatch(name):
                continue
            seen.add((name, extra))
            needed = [Requirement(line) for line in metadata.requires(name) or []]
            todo += [r for r in needed if r.marker is None or r.marker.evaluate({"extra": extra})]
    locked = {canonicalize_name(line.split("==")[0]) for line in lock.pins(lock.LOCK.read_text())}
    assert {name for name, _ in seen} == locked


def test_a_failure_is_counted_and_what_was_not_tried_is_no_success(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report()
    with report.trying("here", "what works") as said:
        said.append("well")
    with report.trying("here", "what fails"):
        raise RuntimeError("because")
    report.add("there", "everything", 0, "not tried", "no Python there")
    assert report.counts() == {"tried": 2, "failed": 1, "not_tried": 1}
    lines = capsys.readouterr().out.splitlines()
    assert [next(w for w in ("passed", "failed", "not tried") if w in lines[i]) for i in (0, 1, 3)] == [
        "passed",
        "failed",
        "not tried",
    ]


def test_the_whole_clone_is_tried_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(installation.distributions, "build", lambda *_: (Path(__file__), Path(__file__)))
    monkeypatch.setattr(installation.distributions, "problems", lambda *_: [])
    monkeypatch.setattr(installation.clones, "clone", lambda *_, whole: asked.append(whole))
    for part in ("clone", "whole clone"):
        installation.main(["--only", part])
    assert asked == [False, True]


def test_the_whole_clone_tells_the_seconds_of_each_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done = []

    def call(*command: object, **_: object) -> str:
        done.append(" ".join(str(word) for word in command))
        if "git" in command:
            (tmp_path / "a path with spaces" / "clone").mkdir(parents=True)
        if "test" in command:
            return "1 passed\n\ngroup  seconds   budget\nunit       200      240\ntotal      200      240\n"
        return "forward_kl\n"

    monkeypatch.setattr(clones, "call", call)
    monkeypatch.setattr(clones, "ordinary", lambda env: ([], env, Path("python3")))
    report = Report()
    clones.clone(report, tmp_path, {"PIP_CACHE_DIR": ""}, whole=True)
    assert report.counts()["failed"] == 0
    whole = [outcome for outcome in report.outcomes if outcome.environment == "whole clone"]
    assert [outcome.tried for outcome in whole] == ["make book", "make test"]
    assert whole[1].said == "unit 200 240; total 200 240"
    assert done[-2:] == ["make -n tables", "make clean"]


# -- other releases ------------------------------------------------------------------------------------------


def test_the_rows_are_the_oldest_releases_those_of_rented_gpus_and_a_newer_python() -> None:
    rows = {row.name: row for row in versions.rows()}
    assert rows["lowest"].install == versions.lower_bounds()
    assert rows["lowest"].install[0] == "torch==2.7.*"
    locked = {line.split("==")[0]: line for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert rows["newer Python"].install == [locked["torch"].rpartition(".")[0] + ".*"]
    assert [row.python for row in rows.values()] == ["3.11", "3.12", "3.13"]
    assert not {*rows, installation.VERSIONS} & set(installation.PARTS)


@pytest.mark.parametrize("row", versions.rows(), ids=lambda row: row.name)
def test_what_is_installed_and_tried_of_a_row(row: versions.Row, tmp_path: Path, monkeypatch) -> None:
    calls, made = [], []

    def record(*command, **options):
        calls.append([str(word) for word in command])
        return "3 passed in 1 s"

    def environment(python, *_):
        made.append(python)
        return tmp_path / "python"

    monkeypatch.setattr(versions, "call", record)
    monkeypatch.setattr(versions, "environment", environment)
    monkeypatch.setattr(versions.others, "found", lambda: {n: Path(f"/3.{n}") for n in (11, 12, 13)})
    monkeypatch.setenv("TORCH_INDEX", "https://cpu")
    report = Report()
    versions.try_row(report, row, tmp_path / "a.whl", tmp_path, {})
    assert [outcome.status for outcome in report.outcomes] == ["passed", "passed"]
    assert report.outcomes[-1].said.endswith("3 passed in 1 s")
    own = row.python == f"3.{sys.version_info[1]}"
    assert made == [Path(sys.executable) if own else Path(f"/{row.python}")]
    torch, others, tests = calls
    assert torch[-3:] == ["--index-url", "https://cpu", row.install[0]]
    assert {*row.install, str(tmp_path / "a.whl")} <= set(others)
    assert any(word.startswith("pytest==") for word in others)
    assert tests[1:3] == ["tests/run.py", "quick"]


def test_a_row_whose_python_is_missing_is_not_tried(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(versions.others, "found", dict)
    report = Report()
    versions.try_row(report, versions.Row("old", "3.10", ["torch"]), tmp_path / "a.whl", tmp_path, {})
    assert [(outcome.status, outcome.said) for outcome in report.outcomes] == [
        ("not tried", "no Python 3.10 on this machine")
    ]


def test_one_row_or_all_of_them_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(
        installation.distributions, "build", lambda *_: (ROOT / "README.md", ROOT / "LICENSE")
    )
    monkeypatch.setattr(installation.distributions, "problems", lambda *_: [])
    monkeypatch.setattr(versions, "try_row", lambda report, row, *_: tried.append(row.name))
    assert installation.main(["--only", "lowest"]) == 0
    assert tried == ["lowest"]
    installation.main(["--only", installation.VERSIONS])
    assert tried[1:] == [row.name for row in versions.rows()]
