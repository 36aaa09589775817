"""What is mended in written pages, on small pieces; tests/site has axe-core look at the pages."""

from __future__ import annotations

import pytest

from tests.support.data import data
from tests.support.extensions import extension

DATA = data(__file__)

accessible = extension("kl_accessible")


@pytest.mark.parametrize(("text", "better"), DATA["mended"])
def test_what_is_mended(text: str, better: str) -> None:
    assert accessible.mended(text) == better


def test_the_sidebar_is_a_region_with_a_name_once() -> None:
    text = '<div id="pst-primary-sidebar" class="bd-sidebar-primary bd-sidebar"><p>title</p></div>'
    better = accessible.mended(text)
    assert better.startswith('<div role="region" aria-label="Contents of the book" id="pst-primary-sidebar"')
    assert accessible.mended(better) == better


def test_a_list_within_a_list_moves_into_its_entry() -> None:
    text = "<ul><li>a</li><ul><li>a.b</li></ul><li>c</li></ul>"
    assert accessible.nested(text) == "<ul><li>a<ul><li>a.b</li></ul></li><li>c</li></ul>"


def test_the_section_in_view_is_looked_for_in_the_contents_of_the_page() -> None:
    spy = '<body data-bs-spy="scroll" data-bs-target=".bd-toc-nav" data-offset="180">'
    contents = '<nav id="pst-page-toc-nav"></nav>'
    better = accessible.mended(spy + contents)
    assert better == spy.replace(".bd-toc-nav", "#pst-page-toc-nav") + contents
    assert accessible.mended(better) == better
    assert accessible.mended(spy) == '<body data-offset="180">'
