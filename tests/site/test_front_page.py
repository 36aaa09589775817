"""The first page in a browser: the decision guide by keyboard, and what stands in the first screen."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kl_companion.recommendations import GUIDE, QUESTIONS
from tests.support.site import browser as browsers

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
HERE = "const e = document.activeElement; return e.closest('.kl-questions') ? e.name : ''"
SHOWN = "return [...document.querySelectorAll('.kl-answer')].filter((e) => e.checkVisibility())"


@pytest.fixture(scope="module")
def page(session: Any, base: str) -> Any:
    session.get(f"{base}/book/intro.html")
    return session


def press(session: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(session).send_keys(*keys).perform()


def tab_to(session: Any, name: str) -> None:
    """Move the focus to the select of this name: by the page's skip link and Tab, in the form either way."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    order = ["", *QUESTIONS]
    for _ in range(40):
        here = session.execute_script(HERE)
        if here == name:
            return
        if session.execute_script("return document.activeElement === document.body"):
            press(session, Keys.TAB, Keys.ENTER)
        back = order.index(here) > order.index(name)
        chain = ActionChains(session)
        if back:
            chain.key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
        else:
            chain.send_keys(Keys.TAB).perform()
    raise AssertionError(f"no Tab leads to {name}")


def choose(session: Any, name: str, position: int) -> None:
    from selenium.webdriver.common.keys import Keys

    tab_to(session, name)
    press(session, Keys.HOME, *[Keys.ARROW_DOWN] * position)


@pytest.mark.parametrize("width", sorted(browsers.SIZES))
def test_every_answer_is_reached_by_keyboard(page: Any, width: str) -> None:
    browsers.resize(page, browsers.SIZES[width])
    code = {tuple(getattr(entry, name) for name in QUESTIONS): entry.code for entry in GUIDE}
    for wanted in itertools.product(*(answers for _, answers in QUESTIONS.values())):
        for (name, (_, answers)), value in zip(QUESTIONS.items(), wanted, strict=True):
            if (
                page.execute_script(
                    "return document.querySelector('.kl-questions').elements[arguments[0]].value", name
                )
                != value
            ):
                choose(page, name, list(answers).index(value))
        shown = page.execute_script(SHOWN)
        assert len(shown) == 1
        assert shown[0].find_element("tag name", "pre").text.strip() == code[wanted]
        assert shown[0].find_element("partial link text", "").get_attribute("href")


@pytest.mark.parametrize("kind", ["input", "change"])
def test_either_event_alone_updates_the_answer(page: Any, kind: str) -> None:
    """Some drivers, password managers and assistive software send only one of the two."""
    for entry in (*GUIDE, GUIDE[0]):
        page.execute_script(
            """
            const [wanted, kind] = arguments;
            for (const [name, value] of Object.entries(wanted)) {
              const select = document.querySelector('.kl-questions').elements[name];
              select.value = value;
              select.dispatchEvent(new Event(kind, { bubbles: true }));
            }
            """,
            {name: getattr(entry, name) for name in QUESTIONS},
            kind,
        )
        (shown,) = page.execute_script(SHOWN)
        assert shown.find_element("tag name", "pre").text.strip() == entry.code


def test_the_first_screen_holds_editor_guide_findings_and_commands(page: Any) -> None:
    browsers.resize(page, browsers.SIZES["desktop"])
    page.execute_script("window.scrollTo(0, 0)")
    bottoms = page.execute_script(
        "return ['.kl-paste', '.kl-answer:not([hidden]) pre', '#five-findings-that-change-practice ol', "
        "'#on-your-machine pre']"
        ".map((s) => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert max(bottoms) <= 900, bottoms


def test_without_scripts_every_answer_is_there() -> None:
    text = (SITE / "book" / "intro.html").read_text(encoding="utf-8")
    assert text.count('class="kl-answer') == len(GUIDE) == 12
    assert '<form class="kl-questions" hidden' in text
