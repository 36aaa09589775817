"""The browser that the tests of the pages need is installed once, whoever asks for it first."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.site.browser import printing


def test_two_that_miss_the_browser_install_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool: Any = printing()
    ran: list[str] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        ran.append(command[1])
        time.sleep(0.05)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(tool.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tool.os, "geteuid", lambda: 0)
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(tool.subprocess, "run", run)
    # half of it is there before all of it is
    monkeypatch.setattr(tool, "find_browser", lambda: "chromium" if len(ran) >= 2 else None)
    found: list[str | None] = []
    both = [threading.Thread(target=lambda: found.append(tool.install_browser())) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert found == ["chromium", "chromium"]
    assert ran == ["update", "install"]
