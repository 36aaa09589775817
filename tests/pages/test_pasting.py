"""What the build does for the page of pasted losses: Python copied, code turned into links."""

from __future__ import annotations

import base64
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.extensions import extension

page = extension("kl_paste")


def test_without_python_the_built_pages_have_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page.kl_npm.Package, "present", lambda self: False)
    there = tmp_path / "html" / "_python"
    there.mkdir(parents=True)
    app = SimpleNamespace(
        outdir=str(tmp_path / "html"), builder=SimpleNamespace(format="html"), env=SimpleNamespace()
    )
    page.copy_python(app)
    assert app.env.kl_python == (0, "")
    assert not there.exists()


def test_the_package_is_packed_again_only_when_a_source_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, packed = tmp_path / "a.py", []
    source.write_text("x = 1")

    def pack(target: Path) -> None:
        packed.append(target.name)
        target.write_bytes(b"zip")

    monkeypatch.setattr(page, "sources", lambda: [source])
    monkeypatch.setattr(page, "write_bundle", pack)
    first = page.bundle(tmp_path / "cache")
    assert page.bundle(tmp_path / "cache") == first
    source.write_text("x = 2")
    second = page.bundle(tmp_path / "cache")
    assert packed == [first.name, second.name]
    assert list((tmp_path / "cache").iterdir()) == [second]


def test_pages_are_written_again_when_they_name_another_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SimpleNamespace(metadata={"book/paste": {"kl_paste": True}, "book/intro": {}})
    app = SimpleNamespace(env=env)
    for found, pages in (((9, "a.zip"), ["book/paste"]), ((9, "a.zip"), []), ((9, "b.zip"), ["book/paste"])):
        monkeypatch.setattr(page, "python_files", lambda app, found=found: found)
        page.copy_python(app)
        assert page.outdated(app, env, set(), set(), set()) == pages


def decoded(address: str) -> Any:
    text = address.partition("#code=")[2].removesuffix("&run=1")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def test_code_becomes_a_link_that_runs_it() -> None:
    code = "kl = (logp - ref_logp) ** 2  # π > ½\nloss = kl.mean()"
    link = page.link_to(code, "book/part1/chapter")
    assert link.startswith("../../book/paste.html#code=")
    assert decoded(link) == code + "\n"
    assert set(link.partition("#code=")[2]) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_&=?"
    )


def test_of_a_cell_that_holds_a_program_as_text_it_is_the_text() -> None:
    assert page.pastable('SOURCE = """\ndef f(logp):\n    return logp\n"""\nprint(SOURCE)').startswith(
        "\ndef f"
    )
    for code in ('name = "f"\nloss = 1', "def f(logp):\n    return logp", ""):
        assert page.pastable(code) == code
