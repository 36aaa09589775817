"""The nets: each returns {file: text} of what is said now, with nothing in it that a run alone decides."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

# the seconds that chapters took; a message that lists the nearest names of a function, by its address
VARYING = ("how_this_book_is_made", "refusals")
ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "_build" / "html"
DIGITS, LEAST = 6, 1e-9  # of numbers on cards, and the least of them: what is beyond is rounding


def tables() -> dict[str, str]:
    """Rows and digest of every result table."""
    files = sorted((ROOT / "tables").glob("*/table.csv"))
    lines = [
        f"{file.parent.name}: {len(data.splitlines())} lines, {hashlib.sha256(data).hexdigest()[:16]}"
        for file in files
        for data in [file.read_bytes()]
    ]
    return {"tables.txt": "\n".join(lines) + "\n"}


def ledger() -> dict[str, str]:
    """Verdict, texts and errors to three digits of every claim, a file for each source."""
    from kl_book.ledger.claims import register, run
    from kl_book.ledger.claims.standard import TOLERANCE

    texts: dict[str, str] = {}
    for row in register().values():
        verdict = run(row.id)
        evidence = verdict._asdict()
        for name in ("printed", "inside", "corrected"):
            error = evidence[name]
            known = error is not None and error > TOLERANCE
            evidence[name] = f"{error:.3g}" if known else None if error is None else "rounding"
        entry = {**row.place, "how": row.how, "verdict": verdict.verdict, **evidence}
        file = f"{row.source}.txt"
        texts[file] = texts.get(file, "") + _lines({k: v for k, v in entry.items() if v not in (None, "")})
    return texts


def survivors() -> dict[str, str]:
    """Which rows of the ledger do not notice which sabotage of the ground under their checks."""
    from kl_book.ledger.claims import register, run
    from tests.support import sabotage

    ids = [row.id for row in register().values() if row.how != "reading"]
    right = {id: sabotage.passes(run(id)) for id in ids}
    texts = {}
    for change in sabotage.SABOTAGES:
        with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sabotage.forget()
            change(monkeypatch)
            reached = [id for id in ids if register()[id].how != "simulation" or change in sabotage.SLOW]
            texts[f"{change.__name__}.txt"] = "".join(
                f"{id}\n" for id in reached if not sabotage.noticed(id, right[id])
            )
    sabotage.forget()
    return texts


def cards() -> dict[str, str]:
    """Every audit of the corpus, updates of hand-written steps, and every diagnosis of a seeded fault."""
    return {
        f"{name}.txt": f"{card}\n\n{_lines(_rounded(card.to_dict()))}"
        for kind in (_audits, _updates, _diagnoses)
        for name, card in kind()
    }


def _audits() -> Iterator[tuple[str, Any]]:
    import torch

    from kl_companion.auditing import audit
    from tests.support.corpus import corpus, load

    for path, name, hand in corpus():
        loss: Any = load(path)
        for part in name.split("."):
            loss = getattr(loss, part)
        with torch.random.fork_rng():
            yield f"audit-{path.stem}.{name}", audit(loss, options=hand.options, roles=hand.map)


def _updates() -> Iterator[tuple[str, Any]]:
    from kl_companion.auditing.updates import audit_update
    from tests.support.updates import PLACES, recipe_of

    for place in PLACES:
        for estimator in ("k1", "k2", "k3"):
            recipe = recipe_of(place=place, kl=estimator, beta=0.1)
            yield f"update-{place}-{estimator}", audit_update(recipe)


def _diagnoses() -> Iterator[tuple[str, Any]]:
    from kl_book.faults import GROUPS
    from kl_book.faults.catalog import examined

    for cases in GROUPS.values():
        for case in cases.values():
            yield f"diagnosis-{case.name}", examined(case)


def mutants() -> dict[str, str]:
    """How many mutants of each group there were and were noticed, and those that survive."""
    command = [sys.executable, "-m", "tests.reliability.mutants", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tried = [json.loads(line) for line in done.stdout.splitlines()]
    counts: dict[str, list[int]] = {}
    for group, _, noticed, *_ in tried:
        of_group = counts.setdefault(group, [0, 0])
        of_group[0] += 1
        of_group[1] += noticed
    lines = [f"{group}: {noticed} of {number} noticed" for group, (number, noticed) in counts.items()]
    lines += [mutant for _, mutant, noticed, *_ in tried if not noticed]
    return {"mutants.txt": "\n".join(lines) + "\n"}


def names() -> dict[str, str]:
    """Public names of every package and module, and the names that pages import."""
    import kl_book
    import kl_companion
    from tests.support.page_imports import imported

    lines = [f"kl_companion.{name}" for name in sorted(kl_companion.__all__)]
    for package in (kl_companion, kl_book):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.ispkg:
                public = getattr(importlib.import_module(module.name), "__all__", ())
                lines += [f"{module.name}.{name}" for name in sorted(public)]
    on_pages = [f"{module}.{name}: {' '.join(sorted(set(at)))}" for (module, name), at in imported().items()]
    return {"public.txt": "\n".join(sorted(lines)) + "\n", "on_pages.txt": "\n".join(sorted(on_pages)) + "\n"}


def pages() -> dict[str, str]:
    """Of every built page, how many pieces of text it has, and their digest; `text_of` gives the text."""
    if not (PAGES / "index.html").is_file():
        raise SystemExit("the book is not built: make book")
    lines = []
    for path in sorted((PAGES / "book").rglob("*.html")):
        name = path.relative_to(PAGES / "book").with_suffix("").as_posix()
        if name not in VARYING:
            pieces = text_of(path)
            digest = hashlib.sha256("\n".join(pieces).encode()).hexdigest()[:16]
            lines.append(f"{name}: {len(pieces)} pieces, {digest}")
    return {"pages.txt": "\n".join(lines) + "\n"}


def text_of(path: Path) -> list[str]:
    """The text of a built page's article, a line for each piece of it."""
    reader = _Article()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.pieces


class _Article(HTMLParser):
    """Collect the text of a page's article, without scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.inside, self.silent = 0, 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note where the article and what is not text begin."""
        self.inside += tag == "article"
        self.silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        """Note where they end."""
        self.inside -= tag == "article"
        self.silent -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        """Keep a piece of text, its spaces made one."""
        if self.inside and not self.silent and (piece := " ".join(data.split())):
            self.pieces.append(piece)


def _rounded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {name: _rounded(x) for name, x in entry.items() if name != "versions"}
    if isinstance(entry, list | tuple):
        return [_rounded(x) for x in entry]
    if isinstance(entry, float):
        return float(f"{entry:.{DIGITS}g}") if abs(entry) > LEAST else 0.0
    return entry


def _lines(entry: dict[str, Any]) -> str:
    return json.dumps(entry, indent=1, ensure_ascii=False, default=str) + "\n"


NETS: dict[str, Callable[[], dict[str, str]]] = {
    net.__name__: net for net in (tables, names, cards, ledger, pages, survivors, mutants)
}
QUICK = ("tables", "names", "cards", "ledger")
