"""No module imports, even late, one that imports it: each can be read without the others, in every room."""

import ast
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import pytest

from kl_companion.lazy import public_names
from tests.support import layout

Graph = dict[str, set[str]]
Nodes = Callable[[ast.AST], Iterator[ast.AST]]


def sources() -> dict[str, str]:
    """Every module of both packages and every room, by its dotted name."""
    return {layout.dotted(name): path.read_text() for name, path in layout.modules().items()}


def running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from running(child)


def loading(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that are read when a module is, by Python or by a type checker: those of no function."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from loading(child)


def imports(modules: Mapping[str, str], nodes: Nodes = running) -> Graph:
    """Which of the modules each one imports, in some nodes; a public name of a room counts as its module."""
    public = {name: public_names(source) for name, source in modules.items()}
    found: Graph = {}
    for module, source in modules.items():
        targets = set()
        for node in nodes(ast.parse(source)):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    beneath = f"{node.module}.{alias.name}"
                    at = public.get(node.module, {}).get(alias.name, node.module)
                    targets.add(beneath if beneath in modules else at)
        found[module] = targets & set(modules)
    return found


def circle(modules: Mapping[str, str], nodes: Nodes = running) -> str | None:
    """A circle of imports, or None."""
    try:
        TopologicalSorter(imports(modules, nodes)).prepare()
    except CycleError as error:
        return " <- ".join(error.args[1])
    return None


def test_no_module_imports_one_that_imports_it() -> None:
    assert circle(sources()) is None


def test_no_module_is_read_with_one_that_is_read_with_it() -> None:
    """Types count: `if TYPE_CHECKING:` hides no circle. A method may still import what draws its object."""
    faces = {name: source for name, source in sources().items() if "lazy(__name__)" not in source}
    faces["kl_book.paste.stand_in.graph"] = ""  # a node of the graph of tensors holds tensors
    assert circle(faces, loading) is None


def test_the_imports_of_every_room_are_seen() -> None:
    found = imports(sources())
    rooms: dict[str, set[str]] = {}
    for module in layout.modules():
        rooms.setdefault(layout.room(module), set()).add(layout.dotted(module))
    apart = [room for room, mine in rooms.items() if not any(found[m] & mine for m in mine)]
    # one module each; verbs that know nothing of one another
    assert apart == ["auditing", "book.cli", "book.ledger.claims.rows"]
    assert "kl_companion.rollout.batch" in found["kl_companion.losses"]  # a public name of the room


@pytest.mark.parametrize(
    ("a", "b", "closed"),
    [
        ("from p import b", "def f():\n    from p.a import x", True),
        ("import p.b", "from p import x", True),  # a public name, of a
        ("import p.b", "from p import a", True),
        ("import p.b", "from p import other", False),
        ("import p.b", "if TYPE_CHECKING:\n    from p.a import x", False),
    ],
)
def test_a_circle_is_found(a: str, b: str, closed: bool) -> None:
    package = "if TYPE_CHECKING:\n    from p.a import x as x\n"
    assert (circle({"p": package, "p.a": a, "p.b": b}) is not None) == closed


def test_a_circle_of_types_is_found() -> None:
    two = {"p.a": "from p import b", "p.b": "if TYPE_CHECKING:\n    from p.a import x"}
    assert (circle(two), circle(two, loading) is None) == (None, False)
    late = {"p.a": "from p import b", "p.b": "def f():\n    from p.a import x"}
    assert circle(late, loading) is None
