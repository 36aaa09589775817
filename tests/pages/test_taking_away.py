"""What can be taken away: figures as files, one page to print, its PDF, the zip, citation, buttons."""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pypdf import PdfReader, PdfWriter
from pypdf.annotations import Link

from tests.support.data import data
from tests.support.extensions import extension

DATA = data(__file__)
ROOT = Path(__file__).resolve().parents[2]

figures, single, pdf = extension("kl_figures"), extension("kl_single"), extension("kl_pdf")
zipping, citation = extension("kl_zip"), extension("kl_citation")

SVG = (
    '<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg viewBox="0 0 9 9"><metadata>today</metadata>\n'
    '<defs><path id="{name}" d="M 1.23456 2 L 3 4.000001" style="stroke: {ink}"/></defs>\n'
    '<use xlink:href="#{name}" clip-path="url(#{name})"'
    ' transform="translate(1.98765 2) scale(0.015625 -0.1)"/>'
    '<path d="M 0 0" style="fill: #0072b2"/></svg>'
)
LIGHT, DARK = SVG.format(name="m12ab", ink="#1f2933"), SVG.format(name="m99ff", ink="#e6e9ec")


def test_a_drawing_is_tidied_without_a_change_of_what_it_shows() -> None:
    text = figures.tidy(LIGHT)
    assert text.startswith("<svg viewBox")
    assert "today" not in text
    assert 'd="M 1.23 2 L 3 4.00"' in text
    assert 'translate(1.99 2) scale(0.015625 -0.1)"' in text  # a scale is not a place
    assert text.count('id="i0"') == text.count('"#i0"') == text.count("url(#i0)") == 1


def test_light_and_dark_are_one_drawing_with_two_sets_of_colors() -> None:
    one = figures.merged(figures.tidy(LIGHT), figures.tidy(DARK))
    assert ":root{--c0:#1f2933;}" in one
    assert "#dark:target{--c0:#e6e9ec;}" in one
    assert "stroke: var(--c0)" in one
    assert "fill: #0072b2" in one  # the same in both
    assert figures.merged(figures.tidy(LIGHT), figures.tidy(DARK).replace("L 3", "L 5")) is None


def page_with(*drawings: tuple[str, str, str]) -> str:
    images = "".join(
        f'<img class="kl-{theme} kl-{width}" alt="a" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(text.encode()).decode()}"/>'
        for theme, width, text in drawings
    )
    return f'<p>before</p><figure class="kl-figure">{images}<figcaption>c</figcaption></figure><p>after</p>'


def test_a_page_names_its_figures(tmp_path: Path) -> None:
    wide = [("light", "wide", LIGHT), ("dark", "wide", DARK)]
    narrow = [("light", "narrow", LIGHT), ("dark", "narrow", DARK.replace("L 3", "L 5"))]
    body = figures.to_files(page_with(*wide, *narrow), tmp_path, "../_images")
    assert "base64" not in body
    assert body.startswith("<p>before")
    assert body.endswith("after</p>")
    files = sorted(tmp_path.glob("*.svg"))
    assert len(files) == 3  # one for both wide ones; the narrow ones differ in more than colors
    sources = [part.split('"')[0] for part in body.split('src="../_images/')[1:]]
    assert sources[1] == sources[0] + "#dark"
    assert {source.split("#")[0] for source in sources} == {file.name for file in files}
    assert figures.to_files(body, tmp_path, "../_images") == body


NUMBERS = {"book/intro": 0, "book/part1/01_a": 1, "book/ledger": 2}


@pytest.mark.parametrize(("address", "led"), DATA["links"])
def test_where_a_link_leads_on_the_single_page(address: str, led: str | None) -> None:
    assert single.where(address, "book/part1/01_a", NUMBERS) == led


def write_page(site: Path, page: str, body: str) -> None:
    path = site / f"{page}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<html><head><link rel="stylesheet" href="../_static/kl.css?v=1">'
        "<script src='../_static/a.js'></script></head><body><nav>menu</nav>"
        f"<article class='bd-article'>{body}</article></body></html>"
    )


def test_the_single_page_has_everything_once(tmp_path: Path) -> None:
    site = tmp_path / "html"
    write_page(
        site,
        "book/intro",
        '<section id="x"><h1>Intro<a class="headerlink" href="#x">#</a></h1><section id="s"><h2>Tables</h2>'
        '<p><a href="b.html#s">over</a> <a href="../_modules/q.html">code</a></p></section></section>',
    )
    write_page(
        site,
        "book/b",
        '<section id="y"><h1>Second</h1><section id="s"><h2>Same id</h2><img src="../_images/f.svg#dark"/>'
        '<details class="hide above-input"><summary>folded</summary>secret</details>'
        '<details class="hide"><summary>code</summary>x</details>'
        '<details class="kl-row"><summary>r</summary></details>'
        '<div class="admonition dropdown"><p aria-labelledby="s y">z</p></div></section></section>',
    )
    toc = tmp_path / "_toc.yml"
    toc.write_text("root: book/intro\nparts:\n  - caption: Start\n    chapters: [{file: book/b}]\n")
    text, titles = single.single_page(site, single.parts(toc), "<p>title</p>")
    assert titles == {"c00": "Intro", "c01": "Second"}
    assert 'href="#c01-s">over' in text
    assert "<a>code</a>" in text
    assert text.count('id="c00-s"') == text.count('id="c01-s"') == 1
    assert 'src="html/_images/f.svg#dark"' in text
    assert 'class="hide" open=""' in text
    assert 'class="kl-row"><summary>' in text
    assert 'class="admonition"' in text
    assert 'aria-labelledby="c01-s c01-y"' in text
    assert "headerlink" not in text
    assert "secret" not in text
    assert "menu" not in text
    assert "a.js" not in text
    assert '<h2 id="c00-x">Intro</h2>' in text
    assert '<h3 id="c00-s">Tables</h3>' in text
    assert text.count('data-page="c01"') == 1
    assert single.listed(text, {"c00": 3, "c01-s": 5, "c09": 9}) == {
        "c00": 3,
        "c00-s": 0,
        "c01": 0,
        "c01-s": 5,
    }
    assert 'data-page="c01-s">5<' in single.numbered(text, {"c01-s": 5})
    assert 'data-page="c01">000<' in single.numbered(text, {"c01-s": 5})


def test_what_one_reads_from_first_to_last_page() -> None:
    listed = [
        single.Part("Start", ["book/intro"]),
        single.Part("Core", ["book/a"]),
        single.Part("Advanced: training", ["book/b", "book/c"]),
        single.Part("Reference", ["book/api", "book/glossary"]),
    ]
    assert single.reading(listed) == [*listed[1:3], ("Words", ["book/glossary"])]


def test_pages_below_others_are_parts_of_the_book(tmp_path: Path) -> None:
    toc = tmp_path / "_toc.yml"
    below = "{file: b, sections: [{file: c}, {file: d}]}"
    toc.write_text(f"root: a\nparts:\n  - caption: P\n    chapters: [{below}, {{file: e}}]\n")
    assert single.parts(toc) == [("P", ["a", "b", "c", "d", "e"])]


def test_a_page_that_is_none_and_a_table_of_contents_that_is_none(tmp_path: Path) -> None:
    write_page(tmp_path, "book/a", "")
    path = tmp_path / "book" / "a.html"
    path.write_text(path.read_text().replace("bd-article", "other"))
    with pytest.raises(ValueError, match=r"book/a\.html has no <article"):
        single.article(tmp_path, "book/a", {"book/a": 0})
    (tmp_path / "toc.yml").write_text("root: a\n")
    with pytest.raises(ValueError, match="no root with parts"):
        single.parts(tmp_path / "toc.yml")


def written_pdf(path: Path, *, marks: int = 1, target: int | None = 1) -> None:
    """Two empty pages with bookmarks and one link."""
    writer = PdfWriter()
    for _ in range(2):
        writer.add_blank_page(200, 200)
    for number in range(marks):
        writer.add_outline_item(title=f"Chapter {number}", page_number=0)
    writer.add_named_destination("c00", 0)
    if target is not None:
        writer.add_annotation(0, Link(rect=(0, 0, 9, 9), target_page_index=target))
    with path.open("wb") as file:
        writer.write(file)


@pytest.mark.parametrize(("once", "said", "is_so"), DATA["twice"])
def test_what_is_said_twice(once: str, said: str, is_so: bool) -> None:
    assert pdf.said_twice(once, said) is is_so


def test_bookmarks_that_the_browser_wrote_twice_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "book.pdf"
    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    chapter = writer.add_outline_item(title="2. 2. One & otherOne & other", page_number=0)
    for title in ("2.1. As it is", "2.2. 2.2. A formulaA formula x x"):
        writer.add_outline_item(title=title, page_number=0, parent=chapter)
    for title in ("Core", "Core, core"):
        writer.add_outline_item(title=title, page_number=0)
    with path.open("wb") as file:
        writer.write(file)
    headings = ["2. One & other", "2.1. As it is", "2.2. A formula \nx ", "Core", "Core, core"]
    assert pdf.mend_bookmarks(path, headings) == 2
    marks = [(level, mark.title) for level, mark in pdf.entries(PdfReader(path).outline)]
    assert marks == [
        *((0, "2. One & other"), (1, "2.1. As it is"), (1, "2.2. A formula x")),
        *((0, "Core"), (0, "Core, core")),
    ]
    before = path.read_bytes()
    assert pdf.mend_bookmarks(path, headings) == 0
    assert path.read_bytes() == before
    assert [x.name for x in tmp_path.iterdir()] == ["book.pdf"]


def test_a_poor_pdf_is_told_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "book.pdf"
    written_pdf(path, marks=1)
    found = "\n".join(pdf.problems(path, {"c00": "Chapter 0", "c01": "Chapter 1"}))
    assert "no bookmark for 'Chapter 1'" in found
    assert "no bookmark for 'Chapter 0'" not in found
    assert "1 bookmarks for 2 chapters" in found
    assert "'Chapter 1' stands on no page" in found
    assert "page 1 should start 'Chapter 0'" in found
    assert "page 2 is empty" in found
    assert "its text cannot be copied" in found
    assert "1 links: the contents have none" in found
    assert "not in the file" not in found
    assert pdf.pages_of_anchors(path) == {"c00": 1}
    assert pdf.summary(path).startswith("2 pages, 1 bookmarks, 1 links")


def test_the_zip_has_the_same_bytes_for_the_same_pages(tmp_path: Path) -> None:
    site = tmp_path / "html"
    for name in ("index.html", "book/b.html", "book/a.html"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(name)
    digests = []
    for number, moment in enumerate((1_000_000_000, 1_700_000_000)):
        for path in site.rglob("*.html"):
            os.utime(path, (moment, moment))
        target = tmp_path / f"{number}.zip"
        assert zipping.write_zip(site, target) == 3
        digests.append(hashlib.sha256(target.read_bytes()).hexdigest())
    assert digests[0] == digests[1]
    with zipfile.ZipFile(target) as packed:
        assert packed.namelist() == ["kl-book/book/a.html", "kl-book/book/b.html", "kl-book/index.html"]
        assert packed.read("kl-book/index.html") == b"index.html"
    with pytest.raises(FileNotFoundError, match="run `make book` first"):
        zipping.write_zip(tmp_path / "nothing", target)


def test_the_citation_is_that_of_the_file() -> None:
    content = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    entry, line = citation.bibtex(citation.cited()), citation.sentence(citation.cited())
    assert entry.startswith("@software{")
    assert entry.count("{") == entry.count("}")
    for text in (content["title"], content["version"], content["authors"][0]["name"]):
        assert str(text) in entry
        assert str(text) in line
    assert "{{The KL book contributors}}" in entry
    person = {**content, "authors": [{"family-names": "Doe", "given-names": "Jo"}], "doi": "10.1/x"}
    assert "author  = {Doe, Jo}" in citation.bibtex(person)
    assert "doi     = {10.1/x}" in citation.bibtex(person)


def test_a_citation_without_a_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "CITATION.cff").write_text("title: t\nauthors: [{name: a}]\ndate-released: '2026-01-01'\n")
    with pytest.raises(ValueError, match="has no version"):
        citation.cited(tmp_path / "CITATION.cff")


@pytest.mark.parametrize(
    ("address", "buttons"),
    [
        ("https://github.com/owner/name/", {"colab_url", "binderhub_url", "notebook_interface"}),
        ("https://example.org/owner/name", set()),
        ("", None),
    ],
)
def test_buttons_stand_for_the_address_that_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str, buttons: set[str] | None
) -> None:
    monkeypatch.setenv("REPOSITORY", address)
    config: Any = SimpleNamespace(html_theme_options={"use_download_button": True})
    extension("kl_site").add_repository(None, config)
    options = config.html_theme_options
    assert options["use_download_button"]
    if buttons is None:
        assert set(options) == {"use_download_button"}
    else:
        assert options["repository_url"] == address.rstrip("/")
        assert set(options.get("launch_buttons", {})) == buttons


def test_the_list_of_references_has_the_labels_of_the_text() -> None:
    from pybtex.database import parse_file

    style = citation.AuthorYear(label_style=citation.AuthorYearLabels)
    entries = style.sort(list(parse_file(str(ROOT / "book" / "references.bib")).entries.values()))
    labels = list(style.format_labels(entries))
    assert {"Tang and Munos, 2025", "Amini et al., 2025", "Schulman, 2020"} <= set(labels)
    assert len(set(labels)) == len(labels)
    names = [label.lower() for label in labels if label.startswith(("Liu", "M", "O"))]
    assert names == sorted(names)  # names without a family name too
