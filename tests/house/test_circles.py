"""Inside a room no module imports, even late, one that imports it: each can be read without the others."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import kl_companion

PACKAGE = Path(kl_companion.__file__).resolve().parent
ROOMS = ("book/tables", "book/refusals", "book/explorer", "cli", "kernels", "estimators", "rollout", "theory")


def imports(folder: Path) -> dict[str, set[str]]:
    """The modules of a folder, and which of them each one imports anywhere, but for type checking alone."""
    room = "kl_companion." + ".".join(folder.relative_to(PACKAGE).parts)
    modules = {path.stem: path.read_text() for path in folder.glob("*.py") if path.stem != "__init__"}
    found: dict[str, set[str]] = {}
    for name, source in modules.items():
        targets = set()
        for node in running(ast.parse(source)):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                targets |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        found[name] = {other for other in modules if f"{room}.{other}" in targets}
    return found


def running(node: ast.AST):
    """All nodes but those below `if TYPE_CHECKING:`."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from running(child)


@pytest.mark.parametrize("room", ROOMS)
def test_no_module_imports_one_that_imports_it(room):
    found = imports(PACKAGE / room)
    assert sum(map(len, found.values())) > 0
    try:
        TopologicalSorter(found).prepare()
    except CycleError as error:
        pytest.fail(f"a circle in {room}: {' <- '.join(error.args[1])}")


def test_a_late_import_closes_a_circle(monkeypatch, tmp_path):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    room = tmp_path / "room"
    room.mkdir()
    (room / "a.py").write_text("from kl_companion.room import b\n")
    (room / "b.py").write_text("def f():\n    from kl_companion.room.a import x\n")
    (room / "c.py").write_text("if TYPE_CHECKING:\n    from kl_companion.room.a import x\n")
    assert imports(room) == {"a": {"b"}, "b": {"a"}, "c": set()}
    with pytest.raises(CycleError):
        TopologicalSorter(imports(room)).prepare()
