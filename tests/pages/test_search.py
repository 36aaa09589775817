"""What a search looks through: sections with their text, terms and names; no formulas, and each once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes

from tests.support.extensions import extension

search = extension("kl_search")
BOOK = Path(__file__).resolve().parents[2] / "book"


def section(name: str, *children: nodes.Node) -> nodes.section:
    return nodes.section("", nodes.title("", name), *children, ids=[name.lower().replace(" ", "-")])


def found(*children: nodes.Node) -> list[Any]:
    document = new_document("page")
    document.extend(children)
    return list(search.entries(document, "book/page"))


def test_a_section_has_its_own_text_and_code() -> None:
    text = nodes.paragraph(
        "", "", nodes.Text("The weight "), nodes.math("", "w^2"), nodes.Text(" is\nlarge.")
    )
    inner = section("Two", nodes.paragraph("", "Below."), nodes.literal_block("", "x =  1"))
    assert found(section("One", text, inner)) == [
        ("book/page", "", "One", "", "The weight is large.", "", ""),
        ("book/page", "two", "One", "Two", "Below.", "x = 1", ""),
    ]


def test_a_section_without_an_address_belongs_to_what_it_is_in() -> None:
    exercise = nodes.admonition("", nodes.section("", nodes.paragraph("", "How many?")))
    assert [e.text for e in found(section("One", exercise))] == ["How many?"]


def test_names_of_labels_and_asserts_are_no_text() -> None:
    bare = addnodes.pending_xref("", nodes.inline("", "chapter-top-k"), refexplicit=False)
    named = addnodes.pending_xref("", nodes.inline("", "the next chapter"), refexplicit=True)
    text = nodes.paragraph("", "", nodes.Text("See "), bare, named)
    assert [e.text for e in found(section("One", text, section("Checks", nodes.paragraph("", "x"))))] == [
        "See the next chapter"
    ]


def test_an_output_counts_in_the_form_that_a_page_shows() -> None:
    table = nodes.raw("", "<style>b{}</style><table><td>low_var_kl &amp; k3</td></table>", format="html")
    forms = [("text/plain", nodes.Text("plain")), ("text/html", table)]
    children = [nodes.container("", child, mime_type=kind) for kind, child in forms]
    bundle = nodes.container("", *children, nb_element="mime_bundle")
    assert [e.text for e in found(section("One", bundle))] == ["low_var_kl & k3"]


def test_terms_and_names_are_found_by_themselves() -> None:
    item = nodes.definition_list_item(
        "",
        nodes.term("", "top-k", ids=["term-top-k"]),
        nodes.definition("", nodes.paragraph("", "The likeliest.")),
    )
    terms = addnodes.glossary("", nodes.definition_list("", item))
    name = addnodes.desc("", addnodes.desc_signature("", "k3(x)", ids=["kl_companion.k3"]))
    name += addnodes.desc_content("", nodes.paragraph("", "Never negative."))
    assert [e[1:5] for e in found(section("Words", terms, name))] == [
        ("", "Words", "", ""),
        ("term-top-k", "Words", "top-k", "The likeliest."),
        ("kl_companion.k3", "Words", "k3", "Never negative."),
    ]


def test_what_is_typed_leads_to_pages_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = yaml.safe_load((BOOK / "_ext" / "kl_search.yml").read_text(encoding="utf-8"))
    pages = {
        p.relative_to(BOOK.parent).with_suffix("").as_posix()
        for p in BOOK.rglob("*")
        if p.suffix in (".md", ".ipynb")
    }
    assert set(typed) <= pages
    monkeypatch.setattr(search, "typed", lambda: {"book/page": "kl nan"})
    assert [e.words for e in found(section("One", section("Two")))] == ["kl nan", ""]


def test_the_page_of_the_search_loads_no_other_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "index.js"
    library.write_text("MiniSearch")
    package = SimpleNamespace(present=lambda: True, kept=lambda: [library])
    monkeypatch.setattr(search.kl_npm, "MINISEARCH", package)
    (tmp_path / "_static").mkdir()
    tag = '<script src="{}"></script>\n'.format
    page = tag("_static/kl.js") + tag("_static/searchtools.js") + "  " + tag("searchindex.js") + "</head><p>"
    (tmp_path / "search.html").write_text(page)
    env = SimpleNamespace(
        toc_secnumbers={"book/b": {"": (2,)}, "book/a": {}}, kl_entries={"book/b": [["b"]], "book/a": [["a"]]}
    )
    app = SimpleNamespace(outdir=str(tmp_path), builder=SimpleNamespace(format="html"), env=env)
    search.write(app, None)
    assert (tmp_path / "search.html").read_text() == (
        tag("_static/kl.js") + '<script defer src="kl_entries.js"></script></head><p>'
    )
    assert (tmp_path / "_static" / "minisearch.js").read_text() == "MiniSearch"
    said = (tmp_path / "kl_entries.js").read_text()
    assert said == 'window.klSearch = {"entries": [["a"], ["b"]], "numbers": {"book/b": "2"}};\n'
