"""What past releases minimize, as it was found: a file of the package, with digests of what was audited."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path

from kl_companion.auditing.judgment.summary import NO_OBJECTIVE
from kl_companion.auditing.judgment.words import in_words
from kl_companion.frameworks.history.audits import ReleaseFinding

FILE = Path(__file__).with_name("found.csv")


def found(project: str | None = None, file: Path = FILE) -> tuple[ReleaseFinding, ...]:
    """The findings of a project, or of all: by loss, the oldest release first."""
    with file.open(encoding="utf-8", newline="") as stream:
        every = tuple(ReleaseFinding(**row) for row in csv.DictReader(stream))
    return every if project is None else tuple(e for e in every if _project(e) == project)


def _project(finding: ReleaseFinding) -> str:
    return finding.subject.partition(".")[0]


def write(project: str, entries: Sequence[ReleaseFinding], file: Path = FILE) -> None:
    """Put the findings of a project in the place of the old ones; the file is written whole or not at all."""
    before = found(file=file) if file.is_file() else ()
    others = [e for e in before if _project(e) != project]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ReleaseFinding._fields)
    rows = [*others, *entries]
    rows.sort(key=_project)
    writer.writerows(rows)
    beside = file.with_suffix(".part")
    beside.write_text(text.getvalue(), encoding="utf-8", newline="")
    beside.replace(file)


def moved(entries: Sequence[ReleaseFinding]) -> Iterator[tuple[ReleaseFinding, ReleaseFinding]]:
    """Pairs of findings of one loss, one release after the other, whose verdicts differ."""
    for old, new in pairwise(entries):
        if old.subject == new.subject and old.verdict != new.verdict:
            yield old, new


def stretches(entries: Sequence[ReleaseFinding]) -> Iterator[list[ReleaseFinding]]:
    """Findings of one loss with one verdict, release after release."""
    for _, group in groupby(entries, key=lambda e: (e.subject, e.verdict)):
        yield list(group)


def versions_of(stretch: Sequence[ReleaseFinding]) -> str:
    """``1.10.0 to 1.16.0``, or the one release."""
    first, last = stretch[0].version, stretch[-1].version
    return first if first == last else f"{first} to {last}"


def in_plain_words(text: str) -> str:
    """A verdict of the file in a reader's words; coefficients that are all 1 are left out."""
    text = re.sub(r" \(1(, 1)*\)", "", text)
    text = re.sub(r"([^;]+) \(1 / ([\w ]+)(?:, 1 / \2)*\)", r"[\1] / \2", text)
    return in_words(text).replace("unnamed", NO_OBJECTIVE.partition(",")[0])
