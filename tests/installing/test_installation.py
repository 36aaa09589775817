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

from tests.installing import distributions, extras, installation, lock

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return distributions.build(ROOT, tmp_path_factory.mktemp("a path with spaces") / "built here")


def test_sdist_and_wheel_hold_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    assert distributions.problems(ROOT, *built) == []
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
    data = ("py.typed", "frameworks/history/found.csv", "recommendations/recommendations.toml")
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
            name = member.name.replace("history/found.csv", "notes.txt")
            member.name = name
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    assert distributions.problems(ROOT, sdist, wheel) == [
        "the wheel lacks kl_companion/py.typed",
        "the wheel has no script kl-companion",
        "the wheel lacks the license",
        "the wheel holds tests/site/test_site.py",
        "the sdist lacks kl_companion/frameworks/history/found.csv",
        "the sdist holds kl_companion/frameworks/notes.txt",
    ]


def test_the_installed_packages_fit_together() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_each_missing_extra_is_named_with_its_command(tmp_path: Path) -> None:
    gone = "matplotlib seaborn transformers tokenizers safetensors accelerate trl"
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


# -- other releases ------------------------------------------------------------------------------------------
