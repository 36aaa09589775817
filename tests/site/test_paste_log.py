"""Paste your log, in a browser: the command line's report, of a text and of a file, and when it fails."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kl_companion.auditing.judgment.card import card
from kl_companion.monitor.logs import LogOptions, log_report
from tests.support.extensions import extension
from tests.support.site import accessibility, paste
from tests.support.site import browser as browsers

PAGE = extension("kl_paste")
EXAMPLES = PAGE.examples(PAGE.LOG)
SHOWN = "return document.querySelector('#verdict').textContent"
DROP = """
const files = new DataTransfer();
files.items.add(new File([arguments[0]], arguments[1]));
document.querySelector(".kl-paste").dispatchEvent(
  new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
"""


@pytest.fixture(scope="module")
def base(base: str) -> str:
    paste.needs_python()
    return base


def by_command_line(folder: Path, text: str, **options: Any) -> tuple[str, dict[str, Any]]:
    """The report of a text, as words and as data."""
    path = folder / "a.log"
    path.write_text(text, encoding="utf-8")
    report = log_report(path, LogOptions(**options))
    return card(report, height=None), report.to_dict()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_has_the_report_of_the_command_line(
    session: Any, base: str, tmp_path: Path, number: int
) -> None:
    from selenium.webdriver.support.ui import Select

    session.get("about:blank")
    session.get(f"{base}/{paste.LOG_PAGE}")
    session.get_log("performance")
    Select(session.find_element("css selector", ".kl-paste [name=example]")).select_by_value(f"{number}")
    paste.submit(session)
    data = paste.finished(session)
    text, report = by_command_line(tmp_path, EXAMPLES[number]["log"])
    assert (data["text"], json.loads(data["card"])) == (text, report)
    assert data["headline"] == report["headline"]
    assert "".join(session.execute_script(SHOWN).split()) == "".join(text.split())
    assert [x for x in browsers.requests(session) if not browsers.inside(x, base)] == []


def test_a_file_takes_the_place_of_a_text_and_a_text_that_of_a_file(
    session: Any, base: str, tmp_path: Path
) -> None:
    log = EXAMPLES[0]["log"]
    path = tmp_path / "console.log.gz"
    path.write_bytes(gzip.compress(log.encode()))
    data = paste.report(session, base, text="nothing of this", file=path)
    assert data["text"] == by_command_line(tmp_path, log)[0]
    area = session.find_element("css selector", "#kl-log")
    assert area.get_property("value") == ""
    area.send_keys("not a log")
    assert session.execute_script("return document.querySelector('[name=file]').files.length") == 0
    session.execute_script(DROP, EXAMPLES[1]["log"], "b.log")
    assert area.get_property("value") == ""
    paste.submit(session)
    assert paste.finished(session)["text"] == by_command_line(tmp_path, EXAMPLES[1]["log"])[0]


def test_what_the_log_does_not_say_can_be_added(session: Any, base: str, tmp_path: Path) -> None:
    lines = "".join(f"{{'kl': 0.0{i}, 'reward': 0.{i}, 'reward_std': 0.2}}\n" for i in range(1, 10))
    fields = {"framework": "TRL GRPO", "release": "1.9", "beta": "0.04", "group": "8"}
    data = paste.report(session, base, lines, **fields)
    text, _ = by_command_line(tmp_path, lines, framework="TRL GRPO", release="1.9", beta=0.04, group=8.0)
    assert data["text"] == text
    assert text != by_command_line(tmp_path, lines)[0]


@pytest.mark.parametrize("log", ["", "hello\n"])
def test_what_is_no_log_ends_in_the_sentence_of_the_command_line(
    session: Any, base: str, tmp_path: Path, log: str
) -> None:
    path = tmp_path / "a.log"
    path.write_text(log)
    with pytest.raises(ValueError, match="expected") as refused:
        log_report(path)
    data = paste.report(session, base, log)
    assert data["error"] == str(refused.value).replace(str(path), "pasted text")
    assert session.find_element("css selector", "#verdict .kl-refused").text == data["error"]


@pytest.mark.parametrize("width", browsers.SIZES)
def test_a_report_fits_its_page_and_is_read_aloud(session: Any, base: str, width: str) -> None:
    browsers.resize(session, browsers.SIZES[width])
    paste.report(session, base, EXAMPLES[2]["log"])
    session.execute_script("document.querySelector('.kl-paste details').open = true")
    inner = "const box = document.querySelector('#verdict'); return box.scrollWidth <= box.clientWidth"
    assert session.execute_script(inner)
    assert accessibility.in_both_themes(session) == []
    browsers.resize(session, browsers.SIZES["desktop"])


def test_without_a_server_the_page_says_what_to_do(session: Any) -> None:
    session.get((paste.SITE / paste.LOG_PAGE).as_uri())
    paste.submit(session)
    error = paste.answered(session)["error"]
    assert "python -m http.server" in error
    assert error.endswith("or run kl-companion report on your machine.")
