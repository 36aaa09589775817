"""The API's pages document every public name once; the names of the top have a line each."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import kl_companion
from tests.support.extensions import ROOT, extension

api = extension("kl_api")
PAGES = sorted((ROOT / "book" / "api").glob("*.md"))


def rooms() -> Iterator[Any]:
    """The package and those of its packages that export names."""
    yield kl_companion
    for found in pkgutil.walk_packages(kl_companion.__path__, "kl_companion."):
        room = importlib.import_module(found.name) if found.ispkg else None
        if getattr(room, "__all__", None):
            yield room


def named(directive: str) -> Iterator[tuple[str, str]]:
    """(room, name) of every name that a page gives to a directive, and of what autodoc is given by itself."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for room, names in re.findall(rf"^```{{{directive}}} (\S+)\n(.*?)^```", text, re.S | re.M):
            yield from ((room, name) for name in names.split())
        if directive == "names":
            for path in re.findall(r"^\.\. auto(?:class|function|decorator):: ([\w.]+)", text, re.M):
                yield path.rpartition(".")[0], path.rpartition(".")[2]
            for room in re.findall(r"^\.\. automodule:: (kl_companion\.cli)$", text, re.M):
                yield from ((room, name) for name in importlib.import_module(room).__all__)


def identity(room: str, name: str) -> tuple[str, str]:
    """A name and the module that defines it, from whichever room it is imported."""
    from kl_companion.lazy import public_names

    source = Path(str(importlib.import_module(room).__file__)).read_text(encoding="utf-8")
    return public_names(source).get(name, room), name


def test_every_public_name_is_documented_once() -> None:
    documented = Counter(identity(*place) for place in named("names"))
    assert [place for place, times in documented.items() if times > 1] == []
    public = {identity(room.__name__, name) for room in rooms() for name in room.__all__}
    assert len(public) > 240
    assert sorted(public - set(documented)) == []


def test_a_name_of_the_top_is_documented_there_and_has_a_line_in_the_overview() -> None:
    assert sorted(named("one-line")) == sorted(("kl_companion", name) for name in kl_companion.__all__)
    assert {name for room, name in named("names") if room == "kl_companion"} == set(kl_companion.__all__)


def test_no_private_name_is_documented() -> None:
    places = [*named("names")]
    assert [name for _, name in places if name.startswith("_")] == []
    assert [place for place in places if not hasattr(importlib.import_module(place[0]), place[1])] == []


def function(x: int) -> int:
    """Return `x` | 1.

    More.
    """
    return x | 1


BY_NAME = dict.fromkeys(map(str, range(9)), 0)
MEMBERS = {"function": function, "Path": Path, "SIZES": (1, 2), "BY_NAME": BY_NAME}


def test_names_are_documented_by_their_kind() -> None:
    lines = api.entries("room", MEMBERS)
    assert [line for line in lines if line.startswith("..")] == [
        ".. autofunction:: room.function",
        ".. autoclass:: room.Path",
        ".. py:data:: room.SIZES",
        ".. py:data:: room.BY_NAME",
    ]
    assert lines[lines.index(".. autoclass:: room.Path") + 1] == "   :members:"
    assert lines[lines.index(".. py:data:: room.SIZES") + 1 :][:2] == ["   ", "   ``(1, 2)``."]


def test_a_name_has_one_line() -> None:
    head, rule, *rows = api.one_line("room", MEMBERS)
    assert head.count("|") == rule.count("|") == rows[0].count("|") == 3
    assert rows[0] == "| {py:obj}`function <room.function>` | Return `x` &#124; 1. |"
    listed = ", ".join(f"`{number}`" for number in range(8))
    assert rows[-1] == f"| {{py:obj}}`BY_NAME <room.BY_NAME>` | A dict of 9: {listed}, … |"
    assert api.said(list(range(99))) == ("data", "A list of 99.")


def test_the_sidebar_is_short_and_what_contributors_need_is_folded_at_its_end() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    reference = toc["parts"][-1]["chapters"]
    entries = {entry["file"]: [page["file"] for page in entry.get("sections", ())] for entry in reference}
    assert len(entries) <= 13
    *_, (last, contributors) = entries.items()
    assert last == "book/contributors"
    own = ("how_to_add", "how_this_book_is_made", "refusals", "reliability", "api/kl_book")
    assert contributors == [f"book/{name}" for name in own]
    for folder in ("api", "experiments"):
        pages = {f"book/{folder}/{path.stem}" for path in (ROOT / "book" / folder).iterdir()}
        parent = f"book/{folder}/index"
        assert {parent, *entries[parent]} == pages - {"book/api/kl_book"}
