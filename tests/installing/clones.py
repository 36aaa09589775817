"""A fresh clone under a path with spaces, used by an ordinary user whose home directory is empty."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.installing.trying import ROOT, Report, call

NOBODY = 65534
# of each kind of test a quick one: arithmetic, the map of the package, a table, the command line
SELECTION = [
    "tests/test_ops.py",
    "tests/house/test_floors.py",
    "tests/book/tables/test_store.py",
    "tests/cli/test_cli.py",
]
LONG = 3600.0  # seconds for the book, and for all tests: three times what they may take


def ordinary(env: dict[str, str]) -> tuple[list[str], dict[str, str], Path | None]:
    """What an ordinary user's commands begin with, their variables, and their Python or None."""
    if os.geteuid() != 0:
        return [], env, Path("python3")
    if not shutil.which("setpriv"):
        return [], env, None
    before = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    folders = ["/usr/local/bin", "/usr/bin", "/bin"]  # root's own Python may lie where others cannot look
    env = {**env, "PATH": ":".join(folders)}
    for path in (
        Path(folder) / name for folder in folders for name in ("python3.11", "python3.12", "python3")
    ):
        code = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))"
        if path.exists() and not subprocess.run([*before, path, "-c", code], env=env, check=False).returncode:
            return before, env, path
    return before, env, None


def clone(report: Report, folder: Path, env: dict[str, str], *, whole: bool) -> None:
    """Clone, let make set up .venv, use what is there; if `whole`, build the book and run every test."""
    place, name = folder / "a path with spaces", "fresh clone"
    before, env, python = ordinary(env)
    if python is None or not (ROOT / ".git").exists() or not shutil.which("git"):
        report.add(
            name, "everything", 0, "not tried", "needs git, and a Python 3.11 that an ordinary user can run"
        )
        return
    with report.trying(name, "git clone, into a path with spaces"):
        call("git", "clone", "--quiet", "--no-hardlinks", ROOT, place / "clone", cwd=folder, env=env)
        home = place / "home"
        home.mkdir()
        env = {**env, "HOME": str(home)}
        env.pop("PIP_CACHE_DIR")  # it belongs to another user
        if before:
            for path in (place, *place.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    if report.outcomes[-1].status == "failed":
        return
    here = {"cwd": place / "clone", "env": env}
    with report.trying(name, "make lint, which sets up .venv by itself"):
        call(*before, "make", "lint", f"PYTHON={python}", timeout=1800, **here)
    if report.outcomes[-1].status == "failed":
        return
    with report.trying(name, "pip check"):
        call(*before, ".venv/bin/python", "-m", "pip", "check", **here)
    with report.trying(name, "a selection of the tests") as said:
        asked = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTION]
        said.append(call(*before, *asked, **here).strip().splitlines()[-1])
    with report.trying(name, "kl-companion audit k3"):
        assert "forward_kl" in call(*before, ".venv/bin/kl-companion", "audit", "k3", "--scale", "1", **here)
    if whole:
        with report.trying("whole clone", "make book"):
            call(*before, "make", "book", timeout=LONG, **here)
        with report.trying("whole clone", "make test") as said:
            groups = call(*before, "make", "test", timeout=LONG, **here).rpartition("\ngroup ")[2]
            said.append("; ".join(" ".join(line.split()) for line in groups.splitlines()[1:]))
    for target in ("tables",) if whole else ("book", "test", "tables"):
        with report.trying(name, f"make -n {target}"):
            call(*before, "make", "-n", target, **here)
    with report.trying(name, "make clean"):
        call(*before, "make", "clean", **here)
        assert not (place / "clone" / "_build").exists()
