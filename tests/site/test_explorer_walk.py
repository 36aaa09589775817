"""The explorer trains a policy: expected updates and sampled steps are the package's; controls and words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kl_book.explorer.enumerated import exact, problem_of, ratio_of
from kl_book.explorer.presets import PLAIN, PRESETS
from kl_companion.tabular import learn
from tests.support import explorer_states as states
from tests.support.site import browser as browsers
from tests.support.site.explorer import choose, open_page, settle

DRAWS = """
const found = arguments[0].map((state) => {
  const w = klArms.world(state.p, state.q, state.off ? state.m : null);
  return { chances: w.m, draws: w.m.map((_, arm) => klArms.drawn(state, w, arm)) };
});
return JSON.stringify(found, (key, x) => typeof x === 'number' && !Number.isFinite(x) ? String(x) : x);
"""
AT = """
const box = document.querySelector('.kl-walk');
const drawn = (selector) =>
  [...document.querySelectorAll(`.kl-simplex ${selector}`)].map((e) => e.getAttribute('class'));
const line = box.querySelector('.kl-trained');
const [step, seed] = ['step', 'seed'].map((name) => box.querySelector(`[name=${name}]`));
return {
  step: Number(step.value), most: Number(step.max), seed: Number(seed.value), value: step.ariaValueText,
  play: box.querySelector('[data-walk=play]').textContent, said: line.textContent, live: line.ariaLive,
  ways: drawn('.kl-way:not(.kl-long)'), arrows: drawn('.kl-long'), dots: drawn('.kl-dot'),
};
"""


@pytest.fixture(scope="module")
def page(session: Any, base: str) -> Any:
    open_page(session, base)
    return session


@pytest.fixture
def calm(session: Any) -> Iterator[Any]:
    """A reader who asked for less motion."""
    session.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]}
    )
    yield session
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def settled(state: dict[str, Any]) -> dict[str, Any]:
    """The state as the page holds it: what does not go together has given way."""
    return {**state, "ratio": ratio_of(state), "k": min(state["k"], len(state["p"]))}


def vector(x: Any) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def at(session: Any) -> dict[str, Any]:
    return dict(session.execute_script(AT))


def click(session: Any, name: str) -> None:
    session.execute_script("document.querySelector(`[data-walk=${arguments[0]}]`).click()", name)


def put(session: Any, name: str, value: float) -> None:
    session.execute_script(
        "const e = document.querySelector(`.kl-walk [name=${arguments[0]}]`); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input', { bubbles: true }))",
        name,
        value,
    )


def wait(session: Any, holds: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(session, 20, poll_frequency=0.02).until(lambda s: holds(at(s)))


def numbers(state: dict[str, Any]) -> str:
    x = exact(state)
    reward = float(x.policy @ vector(state["r"]))
    return (
        f"reverse KL {x.reverse_kl:.4f}, forward KL {x.forward_kl:.4f}, expected reward {reward:.4f}"
    ).replace("-", "−")


def walked(session: Any, state: dict[str, Any], rate: float = 0.5, end: Any = None) -> list[Any]:
    return list(session.execute_script("return klWalk.path(...arguments)", settled(state), rate, end))


# -- numbers


def test_draws_have_the_package_s_mean_and_variance(page: Any) -> None:
    many = {name: settled(state) for name, state in states.arms().items()}
    found = json.loads(page.execute_script(DRAWS, list(many.values())))
    wrong = []
    for (name, state), got in zip(many.items(), found, strict=True):
        want, chances, draws = exact(state), vector(got["chances"]), vector(got["draws"])
        mean = chances @ draws
        variance = (chances @ (draws - mean).square().sum(-1)).item()
        near = torch.allclose(mean, want.gradient, rtol=1e-6, atol=1e-6)
        if not near or variance != pytest.approx(want.gradient_variance, rel=1e-6, abs=1e-6):
            wrong.append(
                f"{name}: {mean.tolist()}, {variance}; expected {want.gradient}, {want.gradient_variance}"
            )
    assert len(many) > 200
    assert wrong == []


@pytest.mark.parametrize("key", ["k3_loss", "k1_loss", "k3_reward_near"])
def test_expected_updates_are_those_of_the_package(page: Any, key: str) -> None:
    state = PRESETS[key].state
    found = walked(page, state)
    assert len(found) == 1001  # without an end it takes a thousand
    steps = [1, 10, 1000]
    path = learn(
        problem_of(state), state["est"], placement=state["place"], beta=state["beta"],
        n=None, steps=1000, lr=0.5, rewards=True, record=steps,
    )  # fmt: skip
    for step, logp in zip([0, *steps], [exact(state).policy.log(), *path.logp[-3:]], strict=True):
        assert torch.allclose(vector(found[step]).exp(), logp.exp(), rtol=0, atol=1e-9)


def uniform(seed: int) -> float:
    """The first number of mulberry32."""
    t = (seed + 0x6D2B79F5) & 0xFFFFFFFF
    t = (t ^ (t >> 15)) * (t | 1) & 0xFFFFFFFF
    t = (t ^ (t + ((t ^ (t >> 7)) * (t | 61) & 0xFFFFFFFF))) & 0xFFFFFFFF
    return (t ^ (t >> 14)) / 2**32


@pytest.mark.parametrize("key", ["k3_loss", "stale", "top_k", "k1_loss", "k3_reward_far"])
def test_a_sampled_update_is_the_expected_one_on_average(page: Any, key: str) -> None:
    state = settled({**PRESETS[key].state, "ratio": "detached"})
    drawn = page.execute_script(
        "const [state, length] = arguments;"
        "return Array.from({ length }, (_, i) => klWalk.sampled(state, state.p, i))",
        state,
        4000,
    )
    x = exact(state)
    sampler = vector(state["m"] if state["off"] else state["p"]).softmax(-1)
    arms = vector([x["arm"] for x in drawn]).long()
    edges = sampler.cumsum(-1)
    wanted = [int((uniform(seed) >= edges).sum()) for seed in range(50)]
    assert arms[:50].tolist() == wanted
    assert (arms.bincount(minlength=3) / 4000 - sampler).abs().max() < 0.02
    one_of = {x["arm"]: x for x in drawn}
    assert vector([one_of[arm]["chance"] for arm in range(3)]).tolist() == pytest.approx(sampler.tolist())
    mean = sum(sampler[arm] * vector(one_of[arm]["update"]) for arm in range(3))
    rewards = vector(state["r"])
    expected = x.policy * (rewards - x.policy @ rewards) - state["beta"] * x.gradient
    assert torch.allclose(mean, expected, rtol=0, atol=1e-9)


# -- the page


def test_nothing_moves_before_a_click_and_play_ends_where_training_ends(session: Any, base: str) -> None:
    open_page(session, base)
    before = at(session)
    assert (before["step"], before["play"], before["live"]) == (0, "Play", "off")
    assert before["said"] == f"Step 0 of {before['most']}: {numbers(PLAIN)}."
    assert before["dots"] == ["kl-dot kl-expected"]
    time.sleep(0.3)
    assert at(session) == before
    click(session, "play")
    wait(session, lambda x: 0 < x["step"] < x["most"])
    assert (at(session)["play"], at(session)["live"]) == ("Pause", "off")
    click(session, "play")
    paused = at(session)
    assert (paused["play"], paused["live"]) == ("Play", "polite")
    click(session, "play")
    wait(session, lambda x: x["step"] == x["most"] and x["play"] == "Play")
    end = session.execute_script("return klExplore(klExplorerState()).fixed.policy")
    path = walked(session, PLAIN, end=end)
    assert len(path) - 1 == before["most"]
    last = vector(path[-1])
    assert (last.exp() - vector(end)).abs().max() < 1e-3
    assert (vector(path[-2]).exp() - vector(end)).abs().max() >= 1e-3  # not before
    assert (
        at(session)["said"]
        == f"Step {before['most']} of {before['most']}: {numbers({**PLAIN, 'p': path[-1]})}."
    )
    assert at(session)["live"] == "polite"
    click(session, "restart")
    assert at(session)["said"] == before["said"]


def test_the_slider_says_the_step_and_its_numbers(session: Any, base: str) -> None:
    open_page(session, base)
    put(session, "step", 7)
    found = at(session)
    path = walked(session, PLAIN)
    assert found["said"] == f"Step 7 of {found['most']}: {numbers({**PLAIN, 'p': path[7]})}."
    assert found["value"] == found["said"]
    assert found["live"] == "polite"
    most = found["most"]
    put(session, "rate", 1)
    assert at(session)["step"] == 0
    assert 0.4 * most < at(session)["most"] < 0.6 * most  # twice as fast


def test_sampled_steps_take_the_next_seed_and_draw_both_arrows(session: Any, base: str) -> None:
    open_page(session, base)
    put(session, "seed", 5)
    logits = PLAIN["p"]
    for number, seed in enumerate((5, 6), start=1):
        update = session.execute_script("return klWalk.sampled(...arguments)", PLAIN, logits, seed)
        logits = (vector(logits) + 0.5 * vector(update["update"])).tolist()
        click(session, "sample")
        found = at(session)
        start = f"Sampled step {number}: seed {seed} drew arm {update['arm'] + 1}, probability "
        assert found["said"].startswith(start)
        assert f"Now {numbers({**PLAIN, 'p': logits})}." in found["said"]
        assert found["seed"] == seed + 1
        assert found["live"] == "polite"
    assert found["arrows"] == ["kl-way kl-long kl-expected", "kl-way kl-long kl-sampled"]
    assert found["ways"] == ["kl-way kl-expected", "kl-way kl-sampled"]
    assert found["dots"] == ["kl-dot kl-expected", "kl-dot kl-sampled"]
    click(session, "restart")
    assert at(session)["arrows"] == []
    put(session, "seed", -3)
    click(session, "sample")
    assert "seed 0 drew" in at(session)["said"]


def test_a_sample_moves_a_policy_whose_expected_update_is_zero(session: Any, base: str) -> None:
    open_page(session, base, "#preset=k1_loss")
    for arm in range(3):
        choose(session, {f"r{arm}": "0"}, "change")
    assert at(session)["most"] == 0
    click(session, "sample")
    found = at(session)
    assert "The expected update is zero." in found["said"]
    assert found["arrows"] == ["kl-way kl-long kl-sampled"]


def test_with_less_motion_play_goes_to_the_end(calm: Any, base: str) -> None:
    open_page(calm, base)
    click(calm, "play")
    found = at(calm)
    assert found["step"] == found["most"] > 0
    assert found["play"] == "Play"
    put(calm, "step", 3)
    assert at(calm)["step"] == 3


def test_another_setting_starts_again_and_only_three_arms_are_trained(session: Any, base: str) -> None:
    open_page(session, base)
    click(session, "sample")
    put(session, "step", 9)
    choose(session, {"p0": "1.5"}, "change")
    found = at(session)
    assert (found["step"], found["ways"], found["arrows"]) == (0, ["kl-way kl-expected"], [])
    assert found["live"] == "off"
    for chosen in ({"n": "4"}, {"world": "gauss"}):
        open_page(session, base)
        shown = "return document.querySelector('.kl-walk').checkVisibility()"
        assert session.execute_script(shown)
        choose(session, chosen, "change")
        assert not session.execute_script(shown)


def test_keys_play_and_move_the_slider(session: Any, base: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    open_page(session, base)
    session.execute_script("document.querySelector('.kl-walk [name=step]').focus()")
    ActionChains(session).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    settle(session)
    assert at(session)["step"] == 2
    session.execute_script("document.querySelector('[data-walk=sample]').focus()")
    ActionChains(session).send_keys(Keys.ENTER, Keys.SPACE).perform()
    assert at(session)["seed"] == 3
    assert session.execute_script("return location.hash") == ""  # none of this is the setting


def test_it_fits_a_telephone(session: Any, base: str) -> None:
    browsers.resize(session, browsers.SIZES["phone"])
    open_page(session, base)
    click(session, "sample")
    for e in session.find_elements("css selector", ".kl-walk, .kl-walk :is(button, input, p)"):
        assert e.rect["x"] >= 0
        assert e.rect["x"] + e.rect["width"] <= browsers.SIZES["phone"]
    browsers.resize(session, browsers.SIZES["desktop"])
