"""Driving the explorer's page in a browser."""

from __future__ import annotations

import json
from typing import Any

import torch

from kl_book.explorer.enumerated import Exact
from kl_book.explorer.presets import PRESETS

SENTENCES = [(key, number) for key, preset in PRESETS.items() for number in range(len(preset.sentences))]
PAGE = "book/explorer.html"


def open_page(session: Any, base: str, link: str = "") -> None:
    session.get("about:blank")  # a change of the part behind # alone would load nothing
    session.get(f"{base}/{PAGE}{link}")
    ready(session)


def ready(session: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    done = "return document.querySelector('.kl-explorer').dataset.ready === 'yes'"
    WebDriverWait(session, 30).until(lambda s: s.execute_script(done))
    settle(session)


def settle(session: Any) -> None:
    """Wait for two frames: what a control changed is computed in the next one."""
    session.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    )


CHOOSE = """
const choose = (values, kind) => {
  for (const [name, value] of Object.entries(values)) {
    const found = document.querySelector('.kl-explorer form').elements[name];
    const radio = found instanceof RadioNodeList;
    const one = radio ? [...found].find((c) => c.value === value) : found;
    if (radio) one.checked = true; else one.value = value;
    one.dispatchEvent(new Event(kind, { bubbles: true }));
  }
};
const frame = () => new Promise(requestAnimationFrame);
"""
SHOW = """
const [key, all, kind] = arguments;
const shown = [];
for (const values of all) {
  document.querySelector(`form [data-preset=${key}]`).click();
  choose(values, kind);
  await frame();  // the page asked for it first, and has answered
  const state = window.klExplorerState();
  const words = document.querySelector('.kl-summary').textContent;
  shown.push({ state, words, numbers: window.klExplore(state) });
}
return JSON.stringify(shown, (key, x) => typeof x === 'number' && !Number.isFinite(x) ? String(x) : x);
"""


def choose(session: Any, values: dict[str, str], kind: str) -> None:
    """Set controls of the explorer's form by name, each followed by one event of this kind and no other."""
    session.execute_script(f"{CHOOSE} choose(...arguments)", values, kind)
    settle(session)


def shown(
    session: Any, key: str, all_values: list[dict[str, str]], kind: str = "change"
) -> list[dict[str, Any]]:
    """What the page holds and says after a preset's button and a choice of controls, as `choose` makes it.

    Returns:
        For each choice: state, words of the summary, and numbers as `as_exact` reads them.
    """
    found: list[dict[str, Any]] = json.loads(session.execute_script(CHOOSE + SHOW, key, all_values, kind))
    return found


def as_exact(got: dict[str, Any]) -> Exact:
    """What klExplore returns, as the record of the package; infinite numbers come as words."""

    def vector(x: list[Any] | None) -> torch.Tensor:
        return torch.tensor([float(v) for v in x or []], dtype=torch.float64)

    fixed = got["fixed"] or {"policy": None, "reverse": None, "forward": None}
    return Exact(
        policy=vector(got["policy"]),
        reference=vector(got["reference"]),
        value=float(got["value"]),
        bias=float(got["bias"]),
        variance=float(got["variance"]),
        gradient=vector(got["gradient"]),
        gradient_variance=float(got["gradientVariance"]),
        reverse_kl=float(got["reverse"]["value"]),
        forward_kl=float(got["forward"]["value"]),
        reverse_gradient=vector(got["reverse"]["gradient"]),
        forward_gradient=vector(got["forward"]["gradient"]),
        reverse_optimum=vector(fixed["reverse"]),
        forward_optimum=vector(fixed["forward"]),
        end=vector(fixed["policy"]),
    )
