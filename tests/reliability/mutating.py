"""Mutants of the package's modules, drawn at random; what a change may be is in `tests.support.mutation`."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Container
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.mutation import Change, changed, changes

ROOT = Path(__file__).resolve().parents[2]
PER_LINE = 2  # mutants of one line in a draw

Key = tuple[str, str, str, str]


class Mutant(NamedTuple):
    """A module with one change.

    Attributes:
        module: Dotted name.
        function: Where the change is: ``Class.method``, or empty for the module itself.
        line: Number of the first changed line.
        was: The changed lines before, without indentation.
        becomes: The changed lines after.
        source: The whole module after.
    """

    module: str
    function: str
    line: int
    was: str
    becomes: str
    source: str

    @property
    def key(self) -> Key:
        """What stays when lines are added above."""
        return self.module, self.function, self.was, self.becomes

    def __str__(self) -> str:
        place = f"{path_of(self.module).relative_to(ROOT)}:{self.line}"
        return f"{place} ({self.function or 'module'})\n    - {self.was}\n    + {self.becomes}"


def path_of(module: str) -> Path:
    """The file of a module."""
    return ROOT / f"{module.replace('.', '/')}.py"


@cache
def source_of(module: str) -> str:
    """The source of a module as it stands."""
    return path_of(module).read_text(encoding="utf-8")


@cache
def changes_of(module: str) -> tuple[Change, ...]:
    """Every change that is made of a module."""
    return tuple(changes(source_of(module)))


def _function_at(source: str, line: int) -> str:
    """The qualified name of the innermost named function or class around a line."""
    names: list[str] = []

    def look(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                if first <= line <= (child.end_lineno or first):
                    names.append(child.name)
                    look(child)
            else:
                look(child)

    look(ast.parse(source))
    return ".".join(names)


def mutant(module: str, change: Change) -> Mutant | None:
    """The mutant; None where the change does not compile, or changes nothing."""
    before = source_of(module)
    after = changed(before, change)
    try:
        if ast.dump(ast.parse(after)) == ast.dump(ast.parse(before)):
            return None
    except SyntaxError:
        return None
    old, new = _lines(before), _lines(after)
    same = difflib.SequenceMatcher(None, list(old.values()), list(new.values()), autojunk=False)
    blocks = [x for x in same.get_opcodes() if x[0] != "equal"]
    line = list(old)[blocks[0][1]]
    was = "\n".join(list(old.values())[blocks[0][1] : blocks[-1][2]])
    becomes = "\n".join(list(new.values())[blocks[0][3] : blocks[-1][4]])
    return Mutant(module, _function_at(before, line), line, was, becomes, after)


def _lines(source: str) -> dict[int, str]:
    """The lines that are not empty, without indentation, by their numbers."""
    return {i: line.strip() for i, line in enumerate(source.splitlines(), 1) if line.strip()}


def drawn(
    modules: tuple[str, ...], number: int | None, seed: int, without: Container[Key] = ()
) -> list[Mutant]:
    """Mutants of some modules, all different, by module; ``number`` of them at random, or all with None.

    The draw orders changes by a digest of what they are, so that a changed line changes the draw of its own
    mutants and of no others. It takes at most two of one line: a list of constants has as many mutants as a
    page of formulas.
    """
    seen: dict[str, int] = {}
    order: list[tuple[bytes, str, Change]] = []
    for module in modules:
        lines = source_of(module).splitlines()
        for change in changes_of(module):
            what = f"{seed} {module} {change.operator} {lines[change.line - 1]}"
            seen[what] = seen.get(what, 0) + 1
            order.append((hashlib.sha256(f"{what} {seen[what]}".encode()).digest(), module, change))
    found: dict[tuple[str, str], Mutant] = {}
    of_line: dict[tuple[str, int], int] = {}
    for _, module, change in sorted(order):
        if number is not None:
            at = (module, change.line)
            of_line[at] = of_line.get(at, 0) + 1
            if len(found) >= number:
                break
            if of_line[at] > PER_LINE:
                continue
        made = mutant(module, change)
        if made is not None and made.key not in without:
            found.setdefault((made.module, made.source), made)
    return sorted(found.values(), key=lambda m: (modules.index(m.module), m.line, m.becomes))
