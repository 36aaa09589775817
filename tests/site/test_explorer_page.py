"""The explorer's page in a browser: by keyboard alone, from links, in both themes and at both widths."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch

from kl_book.explorer.enumerated import exact
from kl_book.explorer.presets import PLAIN, PRESETS
from kl_book.explorer.sentences import of_forward, of_reverse
from tests.support import explorer_states as states
from tests.support.site import browser as browsers
from tests.support.site.explorer import PAGE, as_exact, choose, open_page, settle, shown

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
MEGABYTE = 1_000_000


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


def note(session: Any) -> str:
    """What is said of the preset that is shown; nothing where none is."""
    return str(
        session.execute_script(
            "const e = document.querySelector('.kl-note'); return e.checkVisibility() ? e.textContent : ''"
        )
    )


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
    assert "Its expected gradient is that of forward KL, next token." in summary(session)
    focus(session, "[name=place][value=loss]")
    keys(session, Keys.ARROW_RIGHT)
    assert state_of(session)["place"] == "reward"
    assert "that of reverse KL, next token minus forward KL, next token" in summary(session)
    focus(session, "[name=est]")
    keys(session, "K", "1")
    assert state_of(session)["est"] == "k1"
    assert "Its expected gradient is that of reverse KL, next token." in summary(session)
    focus(session, "[name=off][value=no]")
    keys(session, Keys.ARROW_RIGHT)
    assert state_of(session)["off"] is True
    assert session.execute_script("return document.activeElement.name") == "off"
    assert "that of squared log-ratio / 2 of the old samples" in summary(session)


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
    session.execute_script("document.querySelector('dt [data-preset=k3_reward_far]').focus()")
    keys(session, Keys.ENTER)
    wanted = state_of(session)
    assert wanted == PRESETS["k3_reward_far"].state
    assert "arms 2 and 3 are lost" in summary(session)
    assert PRESETS["k3_reward_far"].sentences[0].text in note(session)
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


@pytest.mark.parametrize("kind", ["input", "change"])
def test_either_event_alone_updates_the_answer(session: Any, base: str, kind: str) -> None:
    """Some drivers, password managers and assistive software send only one of the two."""
    open_page(session, base)
    many = [{"est": "k1"}, {"place": "reward"}, {"off": "yes"}, {"p0": "1.5"}, {"q2": "-1"}, {"beta": "2"}]
    before, *after = shown(session, "k3_loss", [{}, *many, {"n": "4"}, {"world": "gauss"}], kind)
    for there in after:
        assert there["state"] != before["state"]
        assert there["words"] != before["words"]


def test_what_a_preset_shows_is_said_while_it_is_there(session: Any, base: str) -> None:
    open_page(session, base)
    for key, preset in PRESETS.items():
        session.execute_script("document.querySelector(arguments[0]).click()", f"form [data-preset={key}]")
        assert note(session) == f"{preset.label}. {preset.sentences[0].text}"
        choose(session, {"p0" if preset.state["world"] == "arms" else "gp0": "1.25"}, "change")
        assert note(session) == ""


def moved(state: dict[str, Any]) -> list[tuple[str, int, float]]:
    """Every slider of a logit, or of a Gaussian's mean and deviation, 0.1 up and down."""
    letters = "pqm" if state["off"] else "pq"
    roles = letters if state["world"] == "arms" else [f"g{role}" for role in letters]
    return [(r, j, round(x + step, 6)) for r in roles for j, x in enumerate(state[r]) for step in (0.1, -0.1)]


@pytest.mark.parametrize("key", PRESETS)
def test_the_sentence_of_a_preset_holds_when_any_slider_moves(session: Any, base: str, key: str) -> None:
    """By the page's controls and in its words; `test_explorer` asks its numbers about the other sentences."""
    preset = PRESETS[key]
    open_page(session, base)
    listed = session.execute_script("return document.querySelector('.kl-notes').textContent")
    assert all(sentence.text in listed for sentence in preset.sentences)
    moves = moved(preset.state)
    assert len(moves) >= 8
    first, *others = preset.sentences
    said_of = [first] * (1 + len(moves)) + others
    values = [{}, *({f"{role}{j}": str(x)} for role, j, x in moves), *(dict(s.change) for s in others)]
    found = shown(session, key, values)
    assert found[0]["state"] == preset.state
    for (role, j, x), there in zip(moves, found[1:], strict=False):
        assert there["state"][role][j] == pytest.approx(x)
    wrong = []
    for sentence, chosen, there in zip(said_of, values, found, strict=True):
        x, words = as_exact(there["numbers"]), there["words"]
        expected = {
            "unbiased": abs(x.bias) < 1e-9,
            "Its expected gradient is zero": float(x.gradient.norm()) < 1e-12,
            "Its expected gradient is that of reverse KL, next token.": of_reverse(x),
            "Its expected gradient is that of forward KL, next token.": of_forward(x),
            "the variance of one sample is infinite": x.variance == math.inf,
            "lost": bool((x.end < 1e-9).any()),
        }
        if not sentence.holds(x) or {text: text in words for text in expected} != expected:
            wrong.append(f"{sentence.text} {chosen}: {words}")
    assert wrong == []


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
