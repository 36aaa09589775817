"""What axe-core finds on a page; its script comes in a wheel of requirements-audit.lock."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

AUDIT = Path(__file__).resolve().parents[3] / ".audit"
SCRIPT = AUDIT / "axe_playwright_python" / "axe.min.js"
# WCAG 2.2 at levels A and AA, and what axe calls best practice (landmarks, order of headings).
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
BY_COLOR = ["color-contrast"]  # and by it alone: the rest of TAGS asks what the page is made of
BY_WIDTH = ["scrollable-region-focusable", "target-size"]

# What is left for a question about colors: the marked texts and what they stand in.
MARKED = """
const kept = new Set();
for (const marked of document.querySelectorAll("[data-kl-look]")) {
  for (let e = marked; e; e = e.parentElement) kept.add(e);
}
for (const e of [...document.body.querySelectorAll("*")]) if (!kept.has(e)) e.remove();
"""

RUN = """
const [given, done] = arguments;
const options = { ...given, preload: false };  // no rule that is asked for reads style sheets or media
const words = (node) => node.any.concat(node.all, node.none).map((check) => check.message).join("; ");
axe.run(document, options).then(
  (found) => done(found.violations.map((v) => ({
    id: v.id, help: v.help,
    nodes: v.nodes.map((n) => `${n.target}: ${n.html.slice(0, 120)}: ${words(n).slice(0, 200)}`),
  }))),
  (error) => done([{ id: "axe itself", help: String(error), nodes: [] }]),
);
"""


@lru_cache(maxsize=1)
def script() -> str:
    """The text of axe-core; FileNotFoundError says how to get it."""
    if not SCRIPT.is_file():
        raise FileNotFoundError(f"{SCRIPT} is missing: `make test` fetches it with requirements-audit.lock")
    return SCRIPT.read_text(encoding="utf-8")


def load(session: Any) -> None:
    """Put axe into the page, once after each load."""
    session.execute_cdp_cmd("Runtime.evaluate", {"expression": script()})


def only_marked(session: Any) -> None:
    """Leave one text of each combination of colors and sizes; for good, until the page is loaded again."""
    session.execute_script(MARKED)


def violations(session: Any, rules: list[str] | None = None) -> list[str]:
    """One line for each rule that the page breaks as it now looks, with the first elements that break it.

    Args:
        session: a driver on a loaded page, after `load`.
        rules: names of axe's rules; where it is None, all those of TAGS but BY_COLOR and BY_WIDTH.
    """
    if rules is None:
        off = {name: {"enabled": False} for name in BY_COLOR + BY_WIDTH}
        options: dict[str, Any] = {"runOnly": {"type": "tag", "values": TAGS}, "rules": off}
    else:
        options = {"runOnly": {"type": "rule", "values": rules}}
    found = session.execute_async_script(RUN, {**options, "resultTypes": ["violations"]})
    return [
        f"{v['id']} ({len(v['nodes'])}): {v['help']}: {json.dumps(v['nodes'][:3], ensure_ascii=False)}"
        for v in found
    ]


def in_both_themes(session: Any) -> list[str]:
    """What the page as it stands breaks: that it scrolls sideways, then all rules, in light and in dark."""
    wide = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    broken = [] if len(set(session.execute_script(wide))) == 1 else ["the page scrolls sideways"]
    load(session)
    for theme in ("light", "dark"):
        session.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        broken += violations(session)
    return broken
