"""How much a reader loads, and from where: sizes, a folder further down on a host, no host at all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.site import browser as browsers

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
MB = 1_000_000
CHAPTERS = sorted(path.relative_to(SITE).as_posix() for path in SITE.glob("book/part*/*.html"))
# Pages that a server must find, a script must reach and a formula must be set on.
SAMPLE = "book/part1_values_and_gradients/02_two_parts_of_a_gradient.html"


def images(page: Path) -> set[Path]:
    """Files that the <img> elements of a page name."""
    sources = re.findall(r'<img\b[^>]*?\bsrc="([^"#:]+)', page.read_text(encoding="utf-8"))
    return {(page.parent / unquote(source)).resolve() for source in sources}


def test_there_are_chapters() -> None:
    assert CHAPTERS


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_and_its_images_stay_below_a_megabyte(page: str) -> None:
    path = SITE / page
    size = path.stat().st_size + sum(image.stat().st_size for image in images(path))
    assert size < MB, f"{size / MB:.2f} MB"


def test_shared_files_stay_below_five_megabytes() -> None:
    sizes = {path: path.stat().st_size for path in (SITE / "_static").rglob("*") if path.is_file()}
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    assert sum(sizes.values()) < 5 * MB, [f"{path.name}: {sizes[path] / MB:.2f} MB" for path in largest]


def test_figures_are_files_that_light_and_dark_pages_share() -> None:
    pages = [SITE / page for page in CHAPTERS]
    texts = [page.read_text(encoding="utf-8") for page in pages]
    assert not [page.name for page, text in zip(pages, texts, strict=True) if "data:image/svg" in text]
    drawn = [source for text in texts for source in re.findall(r'src="([^"]+\.svg(?:#dark)?)"', text)]
    assert sum(source.endswith("#dark") for source in drawn) > 20


def reads(session: Any, address: str) -> None:
    """A page shows its title, sets its formulas, draws a figure, and has nothing to complain about."""
    session.get_log("browser")
    session.get(address)
    session.execute_script((browsers.HERE / "checks.js").read_text(encoding="utf-8"))
    session.execute_async_script("klSettle(arguments[arguments.length - 1])")
    assert session.execute_script("return document.querySelectorAll('mjx-container').length") > 3
    drawn = "return [...document.images].filter((i) => i.complete && i.naturalWidth && i.offsetWidth).length"
    assert session.execute_script(drawn) >= 1
    assert [m for m in session.get_log("browser") if m["level"] == "SEVERE"] == []


def finds(session: Any, address: str) -> None:
    """The search page answers."""
    from selenium.webdriver.support.ui import WebDriverWait

    session.get(f"{address}?q=divergence")
    found = "return document.querySelectorAll('#search-results li a').length"
    assert WebDriverWait(session, 20).until(lambda s: s.execute_script(found)) >= 1


def test_the_pages_work_in_a_folder_of_a_host(session: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").symlink_to(SITE)
    with browsers.served(tmp_path) as base:
        session.get(f"{base}/a/b/index.html")
        assert session.execute_script("return location.pathname") == "/a/b/book/intro.html"
        browsers.requests(session)
        reads(session, f"{base}/a/b/{SAMPLE}")
        finds(session, f"{base}/a/b/search.html")
        asked = [url for url in browsers.requests(session) if url.startswith(base)]
    assert len(asked) > 10
    assert [url for url in asked if not url.startswith(f"{base}/a/b/")] == []


def test_the_pages_work_without_any_server(session: Any) -> None:
    browsers.requests(session)
    reads(session, (SITE / SAMPLE).as_uri())
    finds(session, (SITE / "search.html").as_uri())
    assert [url for url in browsers.requests(session) if url.startswith("http")] == []


@pytest.mark.parametrize("page", CHAPTERS)
def test_a_chapter_can_be_downloaded_as_a_notebook(page: str) -> None:
    text = (SITE / page).read_text(encoding="utf-8")
    source = re.search(r'href="([^"]+\.ipynb)"', text)
    assert source is not None, "no download button"
    target = ((SITE / page).parent / unquote(source[1])).resolve()
    original = SITE.parents[1] / Path(page).with_suffix(".ipynb")
    copy, own = (json.loads(path.read_text(encoding="utf-8")) for path in (target, original))
    needs = copy["cells"].pop(0)  # all else is the chapter's own
    assert "What this notebook needs" in "".join(needs["source"])
    assert copy == own
