"""A change as lines that go and come, exactly as they stand in the reader's text."""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

from kl_companion.auditing.repair.edits import Change
from kl_companion.auditing.repair.programs import Program, Unit

_SHORT = 10  # lines of a function that is shown whole
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def diff(program: Program, change: Change) -> list[str]:
    """Return lines with ``"- "`` in front that go, and with ``"+ "`` those that come.

    The definitions around them, and all other lines of a short function, stand there as they are.
    """
    lines: list[str] = []
    pasted = program.pasted
    for unit in sorted(program.units, key=lambda u: (u.file, u.first)):
        if not any(e.unit is unit for e in change.edits):
            continue
        if unit.file != program.functions[0].unit.file:
            lines.append(f"# in {Path(unit.file).name}:")
        if pasted is not None and unit is program.functions[0].unit:
            lines += _as_pasted(_of_unit(unit, unit.edited(change.edits)), unit, *pasted)
        else:
            lines += [mark + text for mark, _, text in _of_unit(unit, unit.edited(change.edits))]
    return lines


def _of_unit(unit: Unit, text: str) -> list[tuple[str, int, str]]:
    """Mark, number of the line in the old text, and line, of all that is shown of a unit."""
    old, new = unit.source.splitlines(), text.splitlines()
    shown: set[int] = set()
    gone: set[int] = set()
    come: dict[int, list[str]] = {}
    for tag, i, end, j, j_end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        gone.update(range(i, end))
        come[end] = new[j:j_end]
        around = _around(unit, i + 1)
        shown.update(x.lineno - 1 for x in around)
        shown.update(range(i, around[-1].lineno))  # the decorators below one that goes
        functions = [x for x in around if not isinstance(x, ast.ClassDef)]
        own = {n: range(x.lineno - 1, x.end_lineno or 0) for n, x in enumerate(functions)}
        short = [lines for lines in own.values() if len(lines) <= _SHORT]
        # a line that is there twice is found by the lines around it
        if short or any(old[n] in old[own[0].start : n] for n in range(i, end)):
            shown.update((short or list(own.values()))[0])
    lines: list[tuple[str, int, str]] = []
    for n in sorted({*shown, *gone, *come}):
        lines += [("+ ", n, x) for x in come.get(n, [])]
        if n in gone or n in shown:
            lines.append(("- " if n in gone else "", n, old[n]))
    return lines


def _as_pasted(
    shown: list[tuple[str, int, str]], unit: Unit, theirs: list[str], held: dict[str, str]
) -> list[str]:
    """The lines as they were pasted, before they became a function of what they read."""
    indent = re.match(r"\s*", theirs[0])
    lines = []
    for mark, n, text in shown:
        if mark == "+ ":
            for name, attribute in held.items():
                text = re.sub(rf"(?<![\w.]){name}\b", attribute, text)
            text = text[4:].removeprefix("return ")
            lines.append(f"+ {indent.group() if indent else ''}{text}")
        elif 0 < n <= len(theirs):
            lines.append(mark + theirs[n - 1])
    return lines


def _around(unit: Unit, line: int) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """The definitions that a line is in, the outermost first."""
    return [
        x
        for x in ast.walk(unit.tree)
        if isinstance(x, _DEFINITIONS)
        and min([x.lineno, *(d.lineno for d in x.decorator_list)]) <= line <= (x.end_lineno or 0)
    ]
