"""The page's archive, and its Python with nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kl_book.paste.bundle import write_bundle

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "in_page.py"


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "package.zip"
    write_bundle(path)
    return path


@pytest.fixture(scope="session")
def ask_page(archive: Path) -> Any:
    """A function of named requests that returns what the page's Python makes of each."""

    def ask(requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-I", "-S", PROGRAM, archive],
            input="".join(f"{json.dumps(request)}\n" for request in requests.values()),
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(zip(requests, map(json.loads, done.stdout.splitlines()), strict=True))

    return ask
