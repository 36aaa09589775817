"""A change as lines that go and come, exactly as they stand in the reader's text."""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

from kl_companion.auditing.repair.edits import Change
from kl_companion.auditing.repair.programs import Program, Unit, first_line

_SHORT = 10  # lines of a function that is shown whole
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Rows = list[tuple[str, int, str]]  # mark, number of the line in the old text, and line


def diff(program: Program, change: Change) -> list[str]:
    """Return lines with ``"- "`` in front that go, and with ``"+ "`` those that come.

    The definitions around them, and all other lines of a short function, stand there as they are.
    """
    lines: list[str] = []
    own, pasted = program.functions[0].unit, program.pasted
    for unit in sorted(program.units, key=lambda u: (u.file, u.first)):
        if not any(e.unit is unit for e in change.edits):
            continue
        if unit.file != own.file:
            lines.append(f"# in {Path(unit.file).name}:")
        rows = _rows(unit, unit.edited(change.edits))
        if pasted is not None and unit is own:
            rows = _as_pasted(rows, *pasted)
        lines += [mark + text for mark, _, text in rows]
    return lines


def _rows(unit: Unit, text: str) -> Rows:
    """All that is shown of a unit that becomes another text."""
    old, new = unit.source.splitlines(), text.splitlines()
    rows: Rows = []
    shown: set[int] = set()
    for tag, i, end, j, j_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        rows += [("" if tag == "equal" else "- ", n, old[n]) for n in range(i, end)]
        if tag != "equal":
            rows += [("+ ", end, line) for line in new[j:j_end]]
            shown |= _around(unit, old, i, end)
    return [row for row in rows if row[0] or row[1] in shown]


def _around(unit: Unit, old: list[str], start: int, end: int) -> set[int]:
    """Lines that are shown around some that change: definitions, and all of a short function."""
    definitions = [x for x in ast.walk(unit.tree) if isinstance(x, _DEFINITIONS)]
    around = [x for x in definitions if first_line(x) <= start + 1 <= (x.end_lineno or 0)]
    shown = {x.lineno - 1 for x in around}
    shown.update(range(start, around[-1].lineno))  # the decorators below one that goes
    own = [range(x.lineno - 1, x.end_lineno or 0) for x in around if not isinstance(x, ast.ClassDef)]
    short = [lines for lines in own if len(lines) <= _SHORT]
    # a line that is there twice is found by the lines around it
    if short or any(old[n] in old[own[0].start : n] for n in range(start, end)):
        shown.update((short or own)[0])
    return shown


def _as_pasted(rows: Rows, theirs: list[str], attributes: dict[str, str]) -> Rows:
    """The lines as they were pasted, before they became a function of what they read."""
    indent = re.match(r"\s*", theirs[0])
    found: Rows = []
    for mark, n, text in rows:
        if mark == "+ ":
            for name, attribute in attributes.items():
                text = re.sub(rf"(?<![\w.]){name}\b", attribute, text)
            found.append((mark, n, (indent.group() if indent else "") + text[4:].removeprefix("return ")))
        elif 0 < n <= len(theirs):
            found.append((mark, n, theirs[n - 1]))
    return found
