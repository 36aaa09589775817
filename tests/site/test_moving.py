"""Figures that move, in a browser: still until a click; button, slider, keys; both widths and themes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.site import browser as browsers

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
FILM = "book/part1_values_and_gradients/04_loss_or_reward.html"
PAGES = ("book/part6_anchors/01_ema_anchor.html", "book/part4_vocabulary/02_top_k.html", FILM)
UNITS = dict(zip(PAGES, ("gradient step", "update", "step"), strict=True))
AT = """
const stage = document.querySelector('.kl-stage');
const of = (selector, key) => [...stage.querySelectorAll(selector)].map((e) => Number(e.getAttribute(key)));
return {
  frame: Number(stage.querySelector('input').value),
  bars: of('.kl-bar', 'width'), x: of('.kl-dot', 'cx'), y: of('.kl-dot', 'cy'),
  points: [...stage.querySelectorAll('.kl-line')].map((e) => e.getAttribute('points').split(' ').length),
  said: stage.querySelector('[role=status]').textContent, live: stage.querySelector('[role=status]').ariaLive,
  value: stage.querySelector('input').ariaValueText, button: stage.querySelector('button').textContent,
};
"""


def open_page(session: Any, base: str, page: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    session.get(f"{base}/{page}")
    ready = "return document.querySelector('.kl-stage')?.dataset.ready === 'yes'"
    WebDriverWait(session, 20, poll_frequency=0.05).until(lambda s: s.execute_script(ready))


def at(session: Any) -> dict[str, Any]:
    return dict(session.execute_script(AT))


def frames(session: Any) -> dict[str, Any]:
    data = session.execute_script("return document.querySelector('.kl-stage').dataset.frames")
    return dict(json.loads(data))


def click(session: Any) -> None:
    session.execute_script("document.querySelector('.kl-stage button').click()")


def move(session: Any, frame: int) -> None:
    session.execute_script(
        "const e = document.querySelector('.kl-stage input'); e.value = arguments[0];"
        "e.dispatchEvent(new Event('input', { bubbles: true }))",
        frame,
    )


def wait(session: Any, holds: Any, seconds: float = 20) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(session, seconds, poll_frequency=0.02).until(lambda s: holds(at(s)))


@pytest.fixture(scope="module")
def session(without_formulas: Any) -> Any:
    return without_formulas


@pytest.fixture
def calm(session: Any) -> Iterator[Any]:
    """A reader who asked for less motion."""
    session.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    )
    yield session
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
def test_the_last_frame_stands_still_until_a_click(session: Any, base: str, page: str) -> None:
    open_page(session, base, page)
    before, data = at(session), frames(session)
    last = len(data["updates"]) - 1
    assert before["frame"] == last
    assert before["points"] == [last + 1] * len(data["names"])
    assert before["button"] == "Play"
    time.sleep(0.3)
    assert at(session) == before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
def test_the_slider_shows_its_frame_as_it_was_computed(session: Any, base: str, page: str) -> None:
    open_page(session, base, page)
    data = frames(session)
    left, right = data["x"]
    bottom, top, low, high = data["y"]
    last = len(data["updates"]) - 1
    for frame in (0, 7, last):
        move(session, frame)
        found = at(session)
        wide = [width / (right - left) for width in found["bars"]]
        assert wide == pytest.approx(
            [value for token in zip(*data["bars"][frame], strict=True) for value in token], abs=1e-6
        )
        assert found["x"] == pytest.approx(
            [left + data["updates"][frame] / data["updates"][last] * (right - left)] * len(data["names"])
        )
        heights = [low + (bottom - y) / (bottom - top) * (high - low) for y in found["y"]]
        assert heights == pytest.approx(data["lines"][frame], abs=1e-6)
        assert found["points"] == [frame + 1] * len(data["names"])
        counted = f"{UNITS[page].capitalize()} {data['updates'][frame]} of {data['updates'][last]}"
        assert found["said"].startswith(f"{counted}; {data['told']}: ")
        assert found["value"] == found["said"]
        for name, value in zip(data["names"], data["lines"][frame], strict=True):
            assert value == 0 or abs(value) < 1e-3 or f"{name} {value:.3f}".replace("-", "−") in found["said"]


def test_a_film_shows_the_paths_so_far_and_where_they_are(session: Any, base: str) -> None:
    open_page(session, base, FILM)
    look = """
    const all = (name) => [...document.querySelectorAll(`.kl-stage ${name}`)];
    return [all('.kl-way').map((e) => e.getAttribute('points').split(' ')),
      all('.kl-place').map((e) => `${e.getAttribute('cx')},${e.getAttribute('cy')}`)];
    """
    whole, ends = session.execute_script(look)
    assert ends == [way[-1] for way in whole]
    for frame in (0, 13, 40):
        move(session, frame)
        ways, places = session.execute_script(look)
        assert ways == [way[: frame + 1] for way in whole]
        assert places == [way[frame] for way in whole]


def test_play_starts_again_pauses_and_ends(session: Any, base: str) -> None:
    open_page(session, base, PAGES[0])
    last = len(frames(session)["updates"]) - 1
    click(session)
    wait(session, lambda x: 0 < x["frame"] < last // 2)
    assert at(session)["button"] == "Pause"
    assert at(session)["live"] == "off"  # nobody can listen to every frame
    click(session)
    paused = at(session)
    assert (paused["button"], paused["live"]) == ("Play", "polite")
    time.sleep(0.3)
    assert at(session) == paused
    move(session, last - 3)
    click(session)
    wait(session, lambda x: x["frame"] == last and x["button"] == "Play")
    assert at(session)["live"] == "polite"


def test_moving_the_slider_stops_the_motion(session: Any, base: str) -> None:
    open_page(session, base, PAGES[0])
    click(session)
    wait(session, lambda x: x["frame"] > 0)
    move(session, 40)
    time.sleep(0.3)
    assert (at(session)["frame"], at(session)["button"]) == (40, "Play")


def test_with_less_motion_play_goes_to_the_end_and_the_slider_works(calm: Any, base: str) -> None:
    open_page(calm, base, PAGES[0])
    last = len(frames(calm)["updates"]) - 1
    move(calm, 5)
    assert at(calm)["frame"] == 5
    click(calm)
    assert (at(calm)["frame"], at(calm)["button"]) == (last, "Play")


def test_by_keyboard_with_names(session: Any, base: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    open_page(session, base, PAGES[0])
    button, slider = session.execute_script(
        "return ['button', 'input'].map((n) => document.querySelector(`.kl-stage ${n}`))"
    )
    assert (button.accessible_name, slider.accessible_name) == ("Play", UNITS[PAGES[0]])
    session.execute_script("arguments[0].focus()", button)
    last = at(session)["frame"]
    ActionChains(session).send_keys(Keys.TAB).perform()
    assert session.execute_script("return document.activeElement === arguments[0]", slider)
    ActionChains(session).send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT).perform()
    assert at(session)["frame"] == last - 2
    ActionChains(session).send_keys(Keys.HOME).perform()
    assert at(session)["frame"] == 0
    session.execute_script("arguments[0].focus()", button)
    ActionChains(session).send_keys(Keys.SPACE).perform()
    wait(session, lambda x: x["frame"] > 0)
    ActionChains(session).send_keys(Keys.SPACE).perform()
    assert at(session)["button"] == "Play"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: Path(page).stem)
@pytest.mark.parametrize("width", browsers.SIZES.values())
def test_it_fits_and_its_text_follows_the_theme(session: Any, base: str, width: int, page: str) -> None:
    browsers.resize(session, width)
    open_page(session, base, page)
    look = """
    document.documentElement.dataset.theme = arguments[0];
    const figure = document.querySelector('.kl-moving');
    const text = figure.querySelector('svg text');
    const shown = [...figure.querySelectorAll('svg, .kl-play, button, input')];
    const boxes = shown.map((e) => e.getBoundingClientRect());
    return [getComputedStyle(text).fill, Math.max(...boxes.map((r) => r.right)),
      Math.min(...boxes.map((r) => r.left)), text.getBoundingClientRect().height,
      figure.querySelector('figcaption').innerText];
    """
    light, dark = (session.execute_script(look, theme) for theme in ("light", "dark"))
    assert light[0] != dark[0]
    assert light[1] <= width
    assert light[2] >= 0
    assert light[3] >= 11
    assert light[4].startswith("Figure ")
    browsers.resize(session, browsers.SIZES["desktop"])


def test_pages_without_one_do_not_load_its_script() -> None:
    for path in SITE.glob("book/part*/*.html"):
        text = path.read_text(encoding="utf-8")
        assert ("moving.js" in text) == ('class="kl-figure kl-moving"' in text), path.name
