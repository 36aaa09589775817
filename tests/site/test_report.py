"""The page of a monitored run in a browser: at both widths, in both color schemes, and by axe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kl_companion.monitor import read_run, report_html
from tests.support import monitored_runs as runs
from tests.support.site import accessibility
from tests.support.site import browser as browsers

PAGES = ("mismatch", "impossible_token")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages of two runs with troubles, and with tokens that would break a page that does not escape."""
    folder = tmp_path_factory.mktemp("reports")
    for name in PAGES:
        run = runs.troubled(folder / name, name)
        text = (run / "kl_monitor_tokens.jsonl").read_text(encoding="utf-8")
        evil = '"<script>document.title=1</script>' + "x" * 80 + '"'
        (run / "kl_monitor_tokens.jsonl").write_text(text.replace('" however"', evil), encoding="utf-8")
        (folder / f"{name}.html").write_text(report_html(read_run(run)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def base(site: Path) -> Iterator[str]:
    with browsers.served(site) as address:
        yield address


def prefer(session: Any, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    session.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@pytest.mark.parametrize("name", PAGES)
def test_a_report_in_a_browser(session: Any, base: str, name: str) -> None:
    session.get_log("performance")
    session.get_log("browser")
    browsers.resize(session, browsers.SIZES["desktop"])
    session.get(f"{base}/{name}.html")
    script = Path(browsers.__file__).with_name("checks.js").read_text(encoding="utf-8")
    session.execute_script(script)
    problems = [str(problem) for problem in session.execute_script("return klOnce()")]
    accessibility.load(session)
    session.execute_script("document.querySelector('details').open = true")
    for width in browsers.SIZES:
        problems += browsers.layout(session, width)
    session.execute_script("klThin(arguments[0])", browsers.FEW)
    grounds = set()
    for width in browsers.SIZES:
        browsers.resize(session, browsers.SIZES[width])
        for scheme in ("light", "dark"):
            prefer(session, scheme)
            grounds.add(session.execute_script("return getComputedStyle(document.body).backgroundColor"))
            seen = session.execute_script("return klLook(arguments[0])", scheme)
            seen += accessibility.violations(session, accessibility.BY_COLOR + accessibility.BY_WIDTH)
            problems += [f"{width}, {scheme}: {problem}" for problem in seen]
        problems += accessibility.violations(session)
    problems += [f"console: {m['message']}" for m in session.get_log("browser") if m["level"] == "SEVERE"]
    asked = browsers.requests(session)
    problems += [f"request to the outside: {url}" for url in asked if not browsers.inside(url, base)]
    assert problems == []
    assert len(grounds) == 2
    assert session.title.startswith("KL report: ")
    headings = [h.text for h in session.find_elements("css selector", "h2")]
    assert {"What was found", "Curves", "Tokens with the largest log-ratios"} <= set(headings)


@pytest.mark.parametrize("width", browsers.SIZES)
def test_the_labels_of_the_curves_are_inside_their_drawings(session: Any, base: str, width: str) -> None:
    browsers.resize(session, browsers.SIZES[width])
    session.get(f"{base}/mismatch.html")
    cut = session.execute_script(
        "return [...document.querySelectorAll('svg')].filter((s) => s.checkVisibility()).flatMap((s) => {"
        " const box = s.getBoundingClientRect();"
        " return [...s.querySelectorAll('text')].filter((t) => { const b = t.getBoundingClientRect();"
        "  return b.right > box.right + 1 || b.left < box.left - 1 || b.top < box.top - 1 || b.bottom > "
        "box.bottom + 1;"
        " }).map((t) => t.textContent); })"
    )
    assert cut == []
    assert session.execute_script("return document.querySelectorAll('svg.wide').length") == 1
