"""A file is written completely or not at all; the sources' folder is found from below or by its name."""

from pathlib import Path

import pytest

from kl_companion.files import find_root, write_atomically, write_together


def test_bytes_and_text_arrive_as_they_are(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new/folder/text", "a\nb\r\n\u03bb")
    write_atomically(tmp_path / "new/folder/bytes", b"\xff\n")
    assert (tmp_path / "new/folder/text").read_bytes() == "a\nb\r\n\u03bb".encode()
    assert (tmp_path / "new/folder/bytes").read_bytes() == b"\xff\n"
    assert len(list((tmp_path / "new/folder").iterdir())) == 2


def test_when_one_cannot_be_written_all_stay_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_together({first: "old", second: "old"}, tmp_path / "staging")
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "second" in path.name:
            write(path, content[:1])
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_together({first: "new", second: "new"}, tmp_path / "staging")
    assert [path.read_text() for path in (first, second)] == ["old", "old"]
    assert list((tmp_path / "staging").iterdir()) == []


def test_the_root_is_above_or_named_or_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KL_COMPANION_ROOT", raising=False)
    project = tmp_path / "project"
    (project / "tables").mkdir(parents=True)
    (project / "_toc.yml").touch()
    monkeypatch.chdir(tmp_path)
    assert find_root() is None
    monkeypatch.chdir(project / "tables")
    assert find_root() == project
    monkeypatch.setenv("KL_COMPANION_ROOT", str(tmp_path))
    assert find_root() is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KL_COMPANION_ROOT", "project")
    assert find_root() == project
