"""Run in place, in a browser: every core chapter has a cell whose numbers a reader can change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.data import data
from tests.support.site import accessibility, paste
from tests.support.site import browser as browsers

ROOT = Path(__file__).resolve().parents[2]
CHANGES: dict[str, list[str]] = data(__file__)
PARTS = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))["parts"]
CORE = [
    f"{chapter['file']}.html" for part in PARTS if part["caption"] == "Core" for chapter in part["chapters"]
]
SHORT, TWO = CORE[0], "book/part3_sequences/01_token_or_sequence.html"  # the second has two buttons
SHOWN = """
return [...document.querySelectorAll('.kl-here')].map((root) => ({
  code: root.closest('.cell').querySelector('.cell_input pre').textContent,
  printed: root.closest('.cell').querySelector('.cell_output pre').textContent.trim(),
}))"""
CLEAR = """
const box = document.querySelectorAll('.kl-here')[arguments[0]].querySelector('.kl-verdict-of-loss');
for (const key of Object.keys(box.dataset)) delete box.dataset[key];"""
ANSWER = """
const root = document.querySelectorAll('.kl-here')[arguments[0]];
return root.hasAttribute('aria-busy') ? {} : {...root.querySelector('.kl-verdict-of-loss').dataset}"""
WRITE = """
const area = document.querySelectorAll('.kl-here')[arguments[0]].querySelector('textarea');
area.value = arguments[1];
area.dispatchEvent(new Event('input'));"""
COUNTING = """
window.klStarted = 0;
const Plain = Worker;
window.Worker = class extends Plain {
  constructor(...given) { super(...given); window.klStarted += 1; }
};"""
VISIBLE = "return [...document.querySelectorAll(arguments[0])].map((e) => e.checkVisibility())"


@pytest.fixture(scope="module")
def base(base: str) -> str:
    paste.needs_python()
    return base


def answer(session: Any, number: int = 0, seconds: float = 60) -> dict[str, str]:
    """What the element under a cell carries, once the cell has run."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found: dict[str, str] = session.execute_script(ANSWER, number)
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"cell {number} has not answered after {seconds} s")


def run(session: Any, number: int = 0, code: str = "") -> dict[str, str]:
    """Click a cell's button, after other code was written into its editor, and wait for the answer."""
    if code:
        session.execute_script(WRITE, number, code)
    session.execute_script(CLEAR, number)
    button = session.find_elements("css selector", ".kl-here [type=submit]")[number]
    session.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    return answer(session, number)


@pytest.mark.parametrize("page", CORE, ids=lambda page: Path(page).stem)
def test_a_cell_prints_what_its_page_shows_until_a_number_is_changed(
    session: Any, base: str, page: str
) -> None:
    session.get(f"{base}/{page}")
    old, new, expected = CHANGES[Path(page).stem]
    cells = session.execute_script(SHOWN)
    assert [cell["code"] for cell in cells if old in cell["code"]]
    for number, cell in enumerate(cells):
        found = run(session, number)
        assert (found["printed"].strip(), found["error"]) == (cell["printed"], "")
        if old in cell["code"]:
            changed = run(session, number, cell["code"].replace(old, new))
            assert changed["error"] == ""
            assert expected in changed["printed"]
            assert changed["printed"].strip() != cell["printed"]


def test_cells_with_figures_and_tables_have_no_button(session: Any, base: str) -> None:
    for page in CORE:
        session.get(f"{base}/{page}")
        assert session.execute_script(VISIBLE, ".cell:has(.kl-here) .cell_output :is(table, img)") == []
        assert session.execute_script("return document.querySelectorAll('.cell').length") > 9
        assert not [c for c in session.execute_script(SHOWN) if "pd." in c["code"] or "tables." in c["code"]]


def test_nothing_is_loaded_before_the_click_and_two_cells_share_what_is(session: Any, base: str) -> None:
    class Noting(browsers.Quiet):
        asked: list[str] = []  # noqa: RUF012

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            self.asked.append(self.path.partition("?")[0])

    with browsers.served(paste.SITE, Noting) as address:
        session.get(f"{address}/{TWO}")
        session.execute_async_script("setTimeout(arguments[0], 300)")
        assert "/_static/paste/here.js" in Noting.asked
        assert not [path for path in Noting.asked if path.startswith("/_python/")]
        session.execute_script(COUNTING)
        assert [run(session, number)["error"] for number in (0, 1)] == ["", ""]
        assert session.execute_script("return window.klStarted") == 1


def test_by_keyboard_alone_and_back_to_the_page(session: Any, base: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    session.get(f"{base}/{SHORT}")
    boxes = ".kl-here :is(.kl-editor, [data-back]), .cell:has(.kl-here) > :is(.cell_input, .cell_output)"
    assert session.execute_script(VISIBLE, boxes) == [True, False, False, True]
    session.execute_script("document.querySelector('.kl-here [type=submit]').focus({preventScroll: true})")
    ActionChains(session).send_keys(Keys.ENTER).perform()
    assert answer(session)["error"] == ""
    assert session.execute_script(VISIBLE, boxes) == [False, True, True, False]
    ActionChains(session).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    assert session.switch_to.active_element.tag_name == "textarea"
    session.execute_script(CLEAR, 0)
    keys = (
        ActionChains(session)
        .key_down(Keys.CONTROL)
        .send_keys("a")
        .key_up(Keys.CONTROL)
        .send_keys("print(40 + 2)")
    )
    keys.key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    assert answer(session)["printed"] == "42\n"
    session.execute_script("document.querySelector('.kl-here [data-back]').click()")
    assert session.execute_script("return document.activeElement.type") == "submit"
    assert run(session)["printed"].startswith("K1: ")


def test_errors_are_said_with_their_line_and_an_endless_loop_is_stopped(session: Any, base: str) -> None:
    session.get(f"{base}/{SHORT}")
    run(session)
    found = run(session, code="print(1)\nprint(unknown)")
    assert (found["printed"], found["error"]) == ("1\n", "Line 2: NameError: name 'unknown' is not defined")
    shown = session.find_element("css selector", ".kl-here .kl-verdict-of-loss").text
    assert shown.split("\n", 1) == ["1", found["error"]]
    assert "pd does not run in this page." in run(session, code="pd.DataFrame()")["error"]
    session.execute_script("document.querySelector('.kl-here').dataset.patience = '2'")
    assert run(session, code="while True:\n    pass")["error"].startswith(
        "Stopped: nothing came for 2 seconds."
    )
    assert run(session, code="print(7)")["printed"] == "7\n"


@pytest.mark.parametrize("width", browsers.SIZES)
def test_an_open_cell_fits_its_page_and_is_read_aloud(session: Any, base: str, width: str) -> None:
    browsers.resize(session, browsers.SIZES[width])
    session.get(f"{base}/{SHORT}")
    run(session)
    assert accessibility.in_both_themes(session) == []
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    boxes = ".kl-here, .cell:has(.kl-here) > :is(.cell_input, .cell_output)"
    assert session.execute_script(VISIBLE, boxes) == [True, False, True]
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browsers.resize(session, browsers.SIZES["desktop"])


def test_without_a_server_the_cell_says_what_to_do(session: Any) -> None:
    session.get((paste.SITE / SHORT).as_uri())
    assert "python -m http.server" in run(session)["error"]
    assert session.execute_script(VISIBLE, ".kl-here, .kl-here .kl-editor") == [True, False]
