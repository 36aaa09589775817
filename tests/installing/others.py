"""The newer Pythons of this machine that the lock may serve: does every pin resolve, does the core work?"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.installing.trying import LOCK, Report, call, environment, install, use_core

NEWER = (12, 13, 14)  # minor versions for which torch's pin has builds


def found() -> dict[int, Path]:
    """Pythons 3.12 and newer that run here, by minor version: on the path, or kept by pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    there = {}
    for minor in NEWER:
        named = shutil.which(f"python3.{minor}")
        for path in [*sorted(pyenv.glob(f"3.{minor}.*/bin/python3")), *([Path(named)] if named else [])]:
            code = "import ensurepip, sys, venv; print(sys.version_info[1])"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == str(minor):
                there.setdefault(minor, path)
    return there


def pythons(report: Report, wheel: Path, folder: Path, env: dict[str, str]) -> None:
    """Resolve the lock for every newer Python, and use the core where torch's build for CPUs is at hand."""
    here = {minor: path for minor, path in found().items() if minor > sys.version_info[1]}
    for minor in NEWER:
        if minor not in here and minor > sys.version_info[1]:
            report.add(
                f"python 3.{minor}", "everything", 0, "not tried", f"no Python 3.{minor} on this machine"
            )
    for minor, path in here.items():
        name, work = f"python 3.{minor}", folder / f"work 3.{minor}"
        work.mkdir()
        with report.trying(name, "every pin of the lock has a wheel") as said:
            python = environment(path, folder / f"on 3.{minor}", None, env)
            pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            call(*pip, "--upgrade", "pip", cwd=work, env=env)  # an old one downloads what it only looks at
            dry = ["--dry-run", "--ignore-installed", "--report", "report.json"]
            call(*pip, *dry, "--no-deps", "--only-binary", ":all:", "-r", LOCK, cwd=work, env=env)
            items = json.loads((work / "report.json").read_text(encoding="utf-8"))["install"]
            said.append(f"{len(items)} pins")
        if report.outcomes[-1].status == "failed":
            continue
        with report.trying(name, "the wheel and every extra resolve"):
            asked = f"kl-companion[book,llm,trl,cluster,test] @ {wheel.as_uri()}"
            call(*pip, *dry, "--constraint", LOCK, asked, cwd=work, env=env)
            resolved = json.loads((work / "report.json").read_text(encoding="utf-8"))["install"]
        if report.outcomes[-1].status == "failed":
            continue
        cuda = any(item["metadata"]["name"].startswith("nvidia-") for item in resolved)
        if cuda and not os.environ.get("TORCH_INDEX"):
            reason = (
                "the index has torch for CUDA only, several gigabytes; TORCH_INDEX=<address> names another"
            )
            report.add(name, "the core, installed and used", 0, "not tried", reason)
            continue
        with report.trying(name, "pip install the wheel"):
            install(python, str(wheel), work=work, env=env)
        if report.outcomes[-1].status == "passed":
            use_core(report, name, python, work, env)
