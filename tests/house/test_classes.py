"""One word, one thing: no two public classes of the package have one name."""

import ast
from collections.abc import Mapping

from tests.support import layout


def homonyms(modules: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that more than one module gives to a public class, and the modules."""
    found: dict[str, list[str]] = {}
    for module, source in modules.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module)
    return {name: where for name, where in found.items() if len(where) > 1}


def test_no_two_public_classes_have_one_name() -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in layout.modules().items()}
    assert homonyms(sources) == {}


def test_two_classes_of_one_name_are_found() -> None:
    sources = {"a": "class Task: ...", "b": "def f():\n    class Task: ...", "c": "class _Task: ..."}
    assert homonyms(sources) == {"Task": ["a", "b"]}
    assert homonyms({"a": "class _Task: ...", "b": "class _Task: ..."}) == {}
