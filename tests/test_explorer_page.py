"""The explorer's page in a browser: by keyboard alone, from links, in both themes and at both widths."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch

from kl_companion.explorer.enumerated import exact
from kl_companion.explorer.presets import PLAIN, PRESETS
from tests import explorer_states as states
from tests.site import browser as browsers
from tests.site.explorer import PAGE, open_page, settle

SITE = Path(__file__).resolve().parents[1] / "_build" / "html"
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with browsers.served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def session(base: str) -> Iterator[Any]:
    with browsers.opened() as opened:
        browsers.resize(opened, browsers.SIZES["desktop"])
        yield opened


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


FOLLOW = """
window.klReached = [];
document.addEventListener('focusin', ({target: e}) => {
  if (e.closest('.kl-explorer') && !e.closest('.kl-plot')) klReached.push(e);
});
"""
VISIBLE = """
return [...document.querySelectorAll('.kl-explorer form :is(select, input, button)')]
  .filter((e) => e.checkVisibility() && !e.disabled && (e.type !== 'radio' || e.checked));
"""


def keys(session: Any, *pressed: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(session)
    for key in pressed:
        chain = chain.send_keys(key)
    chain.perform()
    settle(session)


def focus(session: Any, selector: str) -> None:
    session.execute_script("document.querySelector(arguments[0]).focus()", f".kl-explorer {selector}")


def state_of(session: Any) -> dict[str, Any]:
    return dict(session.execute_script("return window.klExplorerState()"))


def summary(session: Any) -> str:
    return str(session.execute_script("return document.querySelector('.kl-summary').textContent"))


@pytest.mark.parametrize("width", browsers.SIZES.values())
@pytest.mark.parametrize("link", ["", "#preset=top_k", "#preset=gauss"])
def test_tab_reaches_every_control_and_each_has_a_name(
    session: Any, base: str, width: int, link: str
) -> None:
    from selenium.webdriver.common.keys import Keys

    browsers.resize(session, width)
    open_page(session, base, link)
    wanted = session.execute_script(VISIBLE)
    assert len(wanted) > 15
    session.execute_script(FOLLOW)
    focus(session, "[data-preset]")
    keys(session, *[Keys.TAB] * (len(wanted) + 12))
    reached = session.execute_script("return klReached")
    # the name as the browser computes it for those who hear the page: a label may belong to something else
    nameless = [control for control in reached if not control.accessible_name]
    lost = [control for control in wanted if control not in reached]
    assert [control.get_attribute("outerHTML") for control in nameless + lost] == []
    browsers.resize(session, browsers.SIZES["desktop"])


def test_by_keyboard_from_k3_in_the_loss_to_k3_in_the_reward(session: Any, base: str) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(session, base)
    assert "It descends forward KL, KL(reference ‖ policy)." in summary(session)
    focus(session, "[name=place][value=loss]")
    keys(session, Keys.ARROW_RIGHT)
    assert state_of(session)["place"] == "reward"
    assert "reverse KL, KL(policy ‖ reference), minus forward KL" in summary(session)
    focus(session, "[name=est]")
    keys(session, "K", "1")
    assert state_of(session)["est"] == "k1"
    assert "It descends reverse KL, KL(policy ‖ reference)." in summary(session)
    focus(session, "[name=off][value=no]")
    keys(session, Keys.ARROW_RIGHT)
    assert state_of(session)["off"] is True
    assert session.execute_script("return document.activeElement.name") == "off"
    assert "half the squared log-ratio of the samples" in summary(session)


def test_a_slider_moves_by_keys_and_the_numbers_follow(session: Any, base: str) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(session, base, "#preset=stale")
    before = state_of(session)
    focus(session, "[name=p1]")
    keys(session, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    after = state_of(session)
    assert after["p"][1] == pytest.approx(before["p"][1] + 0.1)
    want = exact(after)
    shown = dict(
        session.execute_script(
            "return [...document.querySelectorAll('.kl-numbers tr')]"
            ".map((row) => [...row.children].map((cell) => cell.textContent))"
        )
    )
    assert shown["Expected value"] == f"{want.value:.4f}"
    assert shown["Variance of one sample"] == f"{want.variance:.4f}"
    angle = math.degrees(math.acos(cosine(want.gradient, want.reverse_gradient)))
    assert shown["Angle to the gradient of the reverse KL"] == f"{angle:.1f}°"
    spoken = session.execute_script("return document.querySelector('[name=p1]').ariaValueText")
    assert f"{after['p'][1]:.2f}" in spoken
    drawn = session.execute_script(
        "return document.querySelector('#kl-plot-push').getAttribute('aria-label')"
    )
    assert f"{-want.gradient[0].item():.3f}" in drawn


def test_a_preset_button_in_the_text_loads_by_key_and_a_link_brings_it_back(session: Any, base: str) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(session, base)
    session.execute_script("document.querySelector('p [data-preset=k3_reward_far]').focus()")
    keys(session, Keys.ENTER)
    wanted = state_of(session)
    assert wanted == {**PRESETS["k3_reward_far"][1]}
    assert "is lost" in summary(session)
    link = session.execute_script("return location.hash")
    said = summary(session)
    open_page(session, base, link)
    assert state_of(session) == wanted
    assert summary(session) == said


@pytest.mark.parametrize(
    "link",
    [
        "#est=k9&p=1,2",
        "#est=k3&p=1,2,3&q=0,0",
        "#est=k3&gp=0,-1",
        "#est=k3&p=1,x,2",
        "#preset=nothing",
        "#a(b",
    ],
)
def test_a_broken_link_shows_the_first_setting(session: Any, base: str, link: str) -> None:
    session.get_log("browser")
    open_page(session, base, link)
    assert state_of(session) == PLAIN
    assert [m for m in session.get_log("browser") if m["level"] == "SEVERE"] == []


def test_what_does_not_go_together_gives_way(session: Any, base: str) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(session, base, "#preset=top_k")
    focus(session, "[name=world][value=arms]")
    keys(session, Keys.ARROW_RIGHT)
    assert (state_of(session)["world"], state_of(session)["est"]) == ("gauss", "exact_kl")
    options = session.execute_script(
        "return [...document.querySelector('[name=est]').options].map((o) => o.value)"
    )
    assert not [name for name in options if name.startswith("top_k")]
    assert set(states.SAMPLED) <= set(options)


@pytest.mark.parametrize("width", browsers.SIZES.values())
def test_figures_are_drawn_and_follow_the_theme(session: Any, base: str, width: int) -> None:
    browsers.resize(session, width)
    open_page(session, base)
    ink = """
    const figure = Bokeh.documents[arguments[0]].roots()[0];
    document.documentElement.dataset.theme = arguments[1];
    await new Promise(requestAnimationFrame);
    const bars = figure.renderers[0].data_source.data.x.length;
    return [figure.below[0].major_label_text_color, figure.inner_width > 100, bars];
    """
    light, dark = (session.execute_script(ink, 0, theme) for theme in ("light", "dark"))
    assert light[0] != dark[0]
    assert light[1:] == dark[1:] == [True, 3]
    for name in ("arms", "push", "end"):
        box = session.execute_script(
            "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [r.width, r.height, r.right]",
            f"#kl-plot-{name} > *",
        )
        assert box[0] > 200
        assert box[1] > 150
        assert box[2] <= width
    browsers.resize(session, browsers.SIZES["desktop"])


def test_the_page_and_what_it_loads_stay_small(session: Any, base: str) -> None:
    page = (SITE / PAGE).stat().st_size
    pictures = sum(path.stat().st_size for path in (SITE / "_images").glob("*explorer*"))
    assert page + pictures < MEGABYTE
    open_page(session, base)
    loaded = session.execute_script("return performance.getEntriesByType('resource').map((r) => r.name)")
    shared = {unquote(urlsplit(name).path).lstrip("/") for name in loaded if "/_static/" in name}
    assert "_static/bokeh/bokeh.min.js" in shared
    assert sum((SITE / name).stat().st_size for name in shared) < 5 * MEGABYTE
    assert (SITE / "_static/bokeh/bokeh.min.js").stat().st_size > MEGABYTE


def test_no_other_page_loads_the_explorer_s_scripts() -> None:
    loading = [
        path.name for path in SITE.rglob("*.html") if "bokeh.min.js" in path.read_text(encoding="utf-8")
    ]
    assert loading == ["explorer.html"]
