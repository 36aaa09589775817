"""How one thing after another is tried, timed and printed, in environments that do not know the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
LOSS = "def my_loss(logp, ref_logp):\n    return 0.5 * (logp - ref_logp) ** 2\n"


class Outcome(NamedTuple):
    """One thing that was tried; `status` is passed, failed or not tried."""

    environment: str
    tried: str
    seconds: float
    status: str
    said: str


class Report:
    """What was tried so far; each line is printed when it is known."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def add(self, environment: str, tried: str, seconds: float, status: str, said: str = "") -> None:
        """Keep and print one outcome."""
        self.outcomes.append(Outcome(environment, tried, round(seconds, 1), status, said))
        first = said.strip().splitlines()[-1] if said.strip() else ""
        print(f"{environment:<18}{tried:<42}{seconds:>6.1f} s  {status:<10}{first[:200]}", flush=True)

    @contextmanager
    def trying(self, environment: str, tried: str) -> Iterator[list[str]]:
        """Time what is in the block; an exception is a failure. What is appended to the list is printed."""
        start, said = time.monotonic(), []
        try:
            yield said
        except (RuntimeError, AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            self.add(environment, tried, time.monotonic() - start, "failed", str(error))
            print(f"    {error}", flush=True)
        else:
            self.add(environment, tried, time.monotonic() - start, "passed", "; ".join(said))

    def counts(self) -> dict[str, int]:
        """How many were tried, failed, and could not be tried."""
        of = [outcome.status for outcome in self.outcomes]
        return {
            "tried": len(of) - of.count("not tried"),
            "failed": of.count("failed"),
            "not_tried": of.count("not tried"),
        }


def clean(home: Path) -> dict[str, str]:
    """The variables of a process that knows nothing of this checkout, with an empty home directory."""
    ours = ("PYTHON", "KL_COMPANION", "VIRTUAL_ENV", "MPL", "HF_")
    kernels = ("IPYTHON", "JPY_", "JUPYTER", "FORCE_COLOR")  # a table is made in one
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours + kernels)}
    cache = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True
    )
    home.mkdir(exist_ok=True)
    return {**kept, "HOME": str(home), "PIP_CACHE_DIR": cache.stdout.strip(), "OMP_NUM_THREADS": "1"}


def call(*command: str | Path, cwd: Path, env: dict[str, str], ok: int = 0, timeout: float = 900) -> str:
    """What a command printed; RuntimeError with the end of it, and what failed, at another status."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode != ok:
        shown, said = " ".join(str(word) for word in command[:6]), done.stdout + done.stderr
        failed = [line for line in said.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        raise RuntimeError(
            f"{shown} ended with {done.returncode}, expected {ok}: " + "\n".join([said[-3000:], *failed[:20]])
        )
    return done.stdout + done.stderr


def environment(python: str | Path, folder: Path, sees: Path | None, env: dict[str, str]) -> Path:
    """A new virtual environment, which also sees the packages of the folder `sees`; its python."""
    call(python, "-m", "venv", folder, cwd=folder.parent, env=env)
    if sees is not None:
        (packages(folder) / "core.pth").write_text(f"{sees}\n", encoding="utf-8")
    return folder / "bin" / "python"


def packages(folder: Path) -> Path:
    """Where an environment keeps its packages."""
    return next((folder / "lib").glob("python3*")) / "site-packages"


def install(python: Path, *what: str, work: Path, env: dict[str, str]) -> None:
    """Install in the versions of the lock; TORCH_INDEX, if set, is where torch comes from."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if index := os.environ.get("TORCH_INDEX"):
        pin = next(
            line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.startswith("torch==")
        )
        call(*pip, "--no-deps", "--index-url", index, pin, cwd=work, env=env)
    call(*pip, "--constraint", LOCK, *what, cwd=work, env=env)


def use_core(report: Report, name: str, python: Path, work: Path, env: dict[str, str]) -> None:
    """The command line, as someone uses it who has the package and nothing else."""
    script = python.with_name("kl-companion")
    with report.trying(name, "kl-companion --help"):
        assert "audit" in call(script, "--help", cwd=work, env=env)
    with report.trying(name, "kl-companion audit k3"):
        assert "forward_kl" in call(script, "audit", "k3", "--scale", "1", "--quiet", cwd=work, env=env)
    with report.trying(name, "kl-companion audit of one's own file"):
        (work / "my_file.py").write_text(LOSS, encoding="utf-8")
        asked = ["audit", "my_file.py:my_loss", "--scale", "1", "--quiet", "--want", "token_reverse_kl"]
        assert "descends it" in call(script, *asked, cwd=work, env=env)
    with report.trying(name, "nothing of the book is there"):
        code = "import importlib.util as u; from kl_companion import audit; audit('k3'); "
        code += "print([m for m in ('kl_book',) if u.find_spec(m)])"
        said = call(python, "-c", code, cwd=work, env=env)
        assert said.strip() == "[]", said
    with report.trying(name, "kl-companion list objectives"):
        assert "reverse_kl" in call(script, "list", "objectives", cwd=work, env=env)
