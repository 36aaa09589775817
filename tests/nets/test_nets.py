"""The nets themselves: a change is seen, what is gone is removed, and rounding is no change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nets import __main__ as command
from tests.nets import nets


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(command, "FROZEN", tmp_path)
    return tmp_path


def test_a_changed_a_new_and_a_lost_line_are_differences() -> None:
    before, now = {"a.txt": "one\ntwo\n", "b.txt": "lost\n"}, {"a.txt": "one\nthree\n", "c.txt": "new\n"}
    lines = [line for line in command.differences(before, now) if line[:2] not in ("@@", "--", "++")]
    assert lines == ["-two", "+three", "-lost", "+new"]
    assert command.differences(now, now) == []


def test_a_net_is_torn_until_it_is_frozen(
    monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {"a.txt": "one\n"}
    monkeypatch.setitem(nets.NETS, "tables", lambda: texts)
    assert command.main(["tables"]) == 1
    assert "+one" in capsys.readouterr().out
    assert command.main(["tables", "--freeze"]) == 0
    assert command.main(["tables"]) == 0
    texts.clear()
    assert command.main(["tables"]) == 1
    assert command.main(["tables", "--freeze"]) == 0
    assert list((folder / "tables").iterdir()) == []


def test_an_unknown_net_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["fishing"])
    assert "unknown net 'fishing', expected one of: tables" in capsys.readouterr().err


def test_a_digit_of_rounding_is_no_change_and_a_number_is() -> None:
    card = {"terms": [{"coefficient": 1.0 + 1e-12, "residual": 3e-16}], "versions": "any"}
    assert nets._rounded(card) == {"terms": [{"coefficient": 1.0, "residual": 0.0}]}
    assert nets._rounded([1.001]) != nets._rounded([1.0])


def test_text_of_an_article_is_kept_and_what_surrounds_it_is_not() -> None:
    reader = nets._Article()
    reader.feed("<nav>x</nav><article><p>KL  is\n<b>4</b></p><script>y()</script></article><p>z</p>")
    assert reader.pieces == ["KL is", "4"]
