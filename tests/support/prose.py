"""A chapter as a reader meets it: its passages, its fixed parts, and its stretches of mere text.

`passages` reads Markdown with the parser that MyST builds on; `symbols` goes on from there to what a
reader has not met yet. Cross-references are not read: `jupyter-book build -n -W` fails on one that is dead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

PARSER = MarkdownIt().enable("table").use(dollarmath_plugin).use(colon_fence_plugin)
SHOWN = {"figure", "image", "list-table", "csv-table", "table", "code-block"}  # something to look at
OPTION = r":([\w-]+):[ ]*(.*)\n?"
CODE = r"(?:\{[\w:]+\})?(`+)[^`]+\1"  # a role and its text, or code in a line
GRADES = ["grade-1", "grade-2", "grade-3"]
FOLDED = ("solution", "prf:proof")
LONGEST = 600  # words


class Passage(NamedTuple):
    """A heading, text, a formula on its own line, a directive, something shown, a table's cell or symbol."""

    kind: str
    text: str
    options: dict[str, str]


def chapter(path: Path) -> list[Passage]:
    """The passages of a notebook or of a Markdown page, in order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(passages(text))
    found: list[Passage] = []
    for cell in json.loads(text)["cells"]:
        code = cell["cell_type"] == "code"
        found += [Passage("shown", "code", {})] if code else passages("".join(cell["source"]))
    return found


def passages(markdown: str) -> Iterator[Passage]:
    """The passages of Markdown text, those inside directives too."""
    block, header, column = "", list[str](), 0
    for token in PARSER.parse(markdown):
        if token.type == "table_open":
            yield Passage("shown", "table", {})
            header = []
        elif token.type == "tr_open":
            column = 0
        elif token.type in ("fence", "colon_fence"):
            yield from directive(token)
        elif token.type == "math_block":
            yield Passage("formula", token.content.strip(), {})
        elif token.type == "inline" and block == "th":
            header.append(token.content)
        elif token.type == "inline" and block == "td":
            kind = "symbol" if column == 0 or header[column] == "symbol" else "cell"
            yield Passage(kind, token.content, {})
            column += 1
        elif token.type == "inline":
            text = re.sub(r"^\([\w-]+\)=\s*", "", token.content)  # a label
            yield from [Passage("heading" if re.match(r"h\d", block) else "text", text, {})] * bool(text)
        if token.type.endswith("_open"):
            block = token.tag


def directive(token: Any) -> Iterator[Passage]:
    """A fence is code, which is shown, or a directive, whose content is read."""
    named = re.match(r"\{([\w:-]+)\}\s*(.*)", token.info)
    if not named or named[1] in SHOWN:
        yield Passage("shown", token.info, {})
        return
    options = re.match(rf"(?:{OPTION})*", token.content)
    assert options
    yield Passage("directive", named[1], {"title": named[2], **dict(re.findall(OPTION, options[0]))})
    content = token.content[options.end() :]
    yield from [Passage("formula", content, {})] if named[1] == "math" else passages(content)


def missing_parts(read: list[Passage]) -> list[str]:
    """What the form of a chapter asks for and this one lacks."""
    faults = []
    question, answer = ([p.text if p.kind == "text" else "" for p in read[1:3]] + ["", ""])[:2]
    if not read or read[0].kind != "heading":
        faults.append("no title")
    if not re.fullmatch(r"\*\*.+\?\*\*", question, re.S):
        faults.append("no question, bold, right below the title")
    if not answer or answer.startswith("Sources"):
        faults.append("no answer right below the question")
    if "What to do in practice" not in [p.text for p in read if p.kind == "heading"]:
        faults.append('no section "What to do in practice"')
    named = {name: [p.options for p in read if p.kind == "directive" and p.text == name] for name in FOLDED}
    exercises = [p.options for p in read if p.kind == "directive" and p.text == "exercise"]
    grades = [" ".join(sorted(set(x.get("class", "").split()) & set(GRADES))) for x in exercises]
    if grades != GRADES:
        faults.append(f"exercises of the grades {grades}, wanted {GRADES}")
    solved = [x["title"].split()[0] for x in named["solution"] if x["title"]]
    unsolved = [x.get("label", x["title"]) for x in exercises if x.get("label") not in solved]
    faults += [f"no solution of the exercise {name}" for name in unsolved]
    for name, found in named.items():
        unfolded = sum("dropdown" not in x.get("class", "").split() for x in found)
        if unfolded:
            faults.append(f"{unfolded} {name} not folded (:class: dropdown)")
    return faults


def long_stretches(read: list[Passage], longest: int = LONGEST) -> list[str]:
    """Sections with more than `longest` words in a row, a formula being one, and nothing shown among them."""
    faults, title, words = [], "", 0
    for passage in [*read, Passage("heading", "", {})]:
        if passage.kind in ("heading", "shown"):
            if words > longest:
                faults.append(f"{words} words in {title!r} without figure, table or code")
            words, title = 0, passage.text if passage.kind == "heading" else title
        elif passage.kind == "formula":
            words += 1
        elif passage.kind == "text":
            words += len(re.sub(r"\$[^$]+\$", "formula", re.sub(CODE, "code", passage.text)).split())
    return faults
