"""Mutants of what the check of a claim computes: one sign or one factor in a statement behind it.

A mutant that moves the error of the corrected form and leaves that of the printed one as it is has changed
the corrected form, and nothing else.
"""

import ast
import copy
import inspect
import sys
import warnings
from functools import cache
from itertools import chain
from typing import NamedTuple

import pytest

from tests.support.mutation import changed, changes
from tests.support.sabotage import claimed, forget, modules

CLAIMED = "kl_book.ledger.claims"
GROUND = tuple(
    f"{CLAIMED}.ground.{name}" for name in ("errors", "off_policy", "sums", "worlds")
)  # rest on nothing else in the claims
COMPARED = ("apart", "unequal", "same")  # what measures how far two sides are apart
FACTORS = {"negated": -1, "doubled": 2}
SIGNS = {
    "ReplaceBinaryOperator_Add_Sub",
    "ReplaceBinaryOperator_Sub_Add",
    "ReplaceUnaryOperator_Delete_USub",
    "ReverseDifference",
    "negated",
}
SYMBOLS = SIGNS | {
    *(f"ReplaceBinaryOperator_{x}" for x in ("Mul_Div", "Div_Mul", "Pow_Mul", "BitAnd_BitOr")),
    *("ReplaceUnaryOperator_Delete_Invert", "ReplaceFalseWithTrue", "NumberReplacer"),
    *("SwapNames", "ReverseQuotient", "Unwrap"),
}


class Mutant(NamedTuple):
    """One changed statement: what was changed, the module and the name that it binds, its source."""

    said: str
    module: str
    name: str
    source: str

    @property
    def kind(self):
        """``"sign"``, or ``"factor"`` for a factor, a power, an operator or a name."""
        return "sign" if self.said.split()[-1] in SIGNS else "factor"


@cache
def tree_of(module):
    """A module's source as a tree."""
    return ast.parse(inspect.getsource(sys.modules[module]))


@cache
def bound(module):
    """{name: top-level statement that binds it}, functions and data."""
    found = {}
    for node in tree_of(module).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            found[node.target.id] = ast.fix_missing_locations(ast.Assign([node.target], node.value, lineno=1))
    return found


@cache
def imported(module):
    """{name: the module of claims that it comes from}."""
    nodes = [n for n in ast.walk(tree_of(module)) if isinstance(n, ast.ImportFrom)]
    inside = [n for n in nodes if n.module.startswith(CLAIMED)]
    return {a.name: n.module for n in inside for a in n.names if a.name in bound(n.module)}


@cache
def rooms(module):
    """{name: the module of claims that it is imported as}."""
    nodes = [n for n in ast.walk(tree_of(module)) if isinstance(n, ast.ImportFrom)]
    names = {a.asname or a.name: f"{n.module}.{a.name}" for n in nodes for a in n.names}
    return {name: room for name, room in names.items() if room.startswith(CLAIMED) and room in sys.modules}


def nearest(id):
    """(module, name) of the statement that holds the check of a row."""
    check = claimed(id).generator
    return check.__module__, check.__qualname__.partition(".")[0]


def behind(id):
    """(module, name) of the statements that a check rests on within the claims, the nearest first."""
    queue = [nearest(id)]
    for module, name in queue:
        for node in ast.walk(bound(module)[name]):
            place = _place(node, module)
            if place and place not in queue:
                queue.append(place)
    return queue


def _place(node, module):
    """(module, name) of the statement that a name, or an attribute of a module, stands for."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        source = module if node.id in bound(module) else imported(module).get(node.id)
        return source and (source, node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        source = rooms(module).get(node.value.id)
        return (source, node.attr) if source and node.attr in bound(source) else None
    return None


def _comparisons(tree):
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") in COMPARED]


def _sides(source):
    """(description, source) with one side of a comparison negated or doubled."""
    tree = ast.parse(source)
    for number, call in enumerate(_comparisons(tree)):
        for place, side in enumerate(call.args[:2]):
            if isinstance(side, ast.Constant | ast.Starred):
                continue
            for word, factor in FACTORS.items():
                changed = copy.deepcopy(tree)
                arguments = _comparisons(changed)[number].args
                arguments[place] = ast.BinOp(ast.Constant(factor), ast.Mult(), arguments[place])
                yield f"{ast.unparse(side)} {word}", ast.unparse(ast.fix_missing_locations(changed))


@cache
def statement(module, name):
    """The source of a statement without what it computes nothing with."""
    tree = copy.deepcopy(bound(module)[name])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
            if ast.get_docstring(node):
                node.body = node.body[1:]
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
    return ast.unparse(tree)


def _symbols(source):
    """(description, source) with one symbol changed, from left to right; a zero is no factor."""
    for change in sorted(changes(source), key=lambda x: (x.line, x.column)):
        zero = change.operator == "NumberReplacer" and not float(change.was)
        if change.operator in SYMBOLS and not zero:
            yield f"{change.was}: {change.operator}", changed(source, change)


def mutants_behind(id, first=None):
    """Mutants of the statements behind a check, ``first`` and then the nearest: comparisons, then symbols."""
    for module, name in sorted(behind(id), key=lambda place: place[1] != first):
        if (module, name) == nearest(id) and "." in claimed(id).generator.__qualname__:
            continue  # a function that made the check: it would have to run again
        source = statement(module, name)
        for said, after in chain(_sides(source), _symbols(source)):
            yield Mutant(said, module, name, after)


def edited(id, name, old, new):
    """A mutant by hand: the statement ``name`` behind a check with one piece of its text replaced."""
    module, name = next(place for place in behind(id) if place[1] == name)
    source = statement(module, name)
    assert source.count(old) == 1, f"{id}: {source.count(old)} times {old!r} in {name}"
    return Mutant(f"{old} to {new}", module, name, source.replace(old, new))


def outcome(id, mutant):
    """The evidence of a check with one statement changed; None where it cannot be computed at all."""
    space = dict(vars(sys.modules[mutant.module]))
    old = space[mutant.name]
    own = (mutant.module, mutant.name) == nearest(id)
    kept = () if mutant.module in GROUND else GROUND
    try:
        with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(mutant.source, f"<{mutant.name}: {mutant.said}>", "exec"), space)
            if own:
                return claimed(id)._replace(generator=space[mutant.name]).check()
            for module in modules():
                for name in [name for name, value in vars(module).items() if value is old]:
                    monkeypatch.setattr(module, name, space[mutant.name])
            forget(kept)  # what is cached was computed without the mutant
            return claimed(id).check()
    except Exception:
        return None
    finally:
        if not own:
            forget(kept)
