"""The pages of the API, and what the sidebar shows of them: short, folded, every name of the top led to."""

from pathlib import Path

from bs4 import BeautifulSoup

import kl_companion
from tests.support.site.paste import SITE


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def test_no_page_of_the_api_is_long_and_every_name_of_the_top_leads_to_its_entry() -> None:
    pages = {page.name: soup(page) for page in (SITE / "book" / "api").glob("*.html")}
    words = {
        name: len(page.select("article.bd-article")[0].get_text(" ").split()) for name, page in pages.items()
    }
    assert {name: count for name, count in words.items() if count > 11_000} == {}
    entries = pages["index.html"].select("table a.reference.internal")
    links = [str(entry["href"]).partition("#") for entry in entries]
    assert {anchor for _, _, anchor in links} == {f"kl_companion.{name}" for name in kl_companion.__all__}
    assert [link for link in links if not pages[link[0]].find(id=link[2])] == []


def test_the_sidebar_of_a_page_folds_what_is_below_an_entry() -> None:
    sidebar = soup(SITE / "book" / "glossary.html").select_one("nav.bd-links")
    assert sidebar
    assert len(sidebar.select("li.toctree-l1.has-children")) == 4
    assert sidebar.select("details[open]") == []
    assert [page for page in sidebar.select("li.toctree-l2") if not page.find_parent("details")] == []
