"""Which modules of the package does code load? Found by running its imports, without the book's own reader.

    python loading.py < {"chapter": "source", ...} > {"chapter": [[loaded], [reachable]], ...}

Every source gets a process of its own, forked from one that has the large libraries but nothing of the
package. `loaded` is what is in `sys.modules` after its import statements and what it takes from packages
(`tables.load`). `reachable` is what may be added when functions run: the import statements in the functions
of the loaded modules, read in their compiled code, are run too, until nothing is added.
"""

from __future__ import annotations

import ast
import dis
import gc
import importlib
import importlib.util
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType

PACKAGES = ("kl_companion", "kl_book")
LIBRARIES = ("torch", "sympy", "sympy.codegen.cfunctions", "mpmath", "numpy", "pandas", "matplotlib.pyplot")


def imports(source: str) -> str:
    """The statements of a source that import from the package."""
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    return "\n".join(line for line in map(ast.unparse, found) if any(package in line for package in PACKAGES))


def ours() -> dict[str, ModuleType]:
    """The modules of the package in `sys.modules`."""
    return {n: m for n, m in sys.modules.items() if n.partition(".")[0] in PACKAGES}


def inner(code: CodeType) -> Iterator[CodeType]:
    """The code of the functions in some code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from inner(constant)


def load_attributes(code: CodeType, names: Mapping[str, object]) -> None:
    """Load what some code takes from the packages that its names are bound to: `tables.load`, `kl.k3`."""
    if not any(isinstance(names.get(name), ModuleType) for name in code.co_names):
        return
    for head, tail in itertools.pairwise(dis.get_instructions(code)):
        room = names.get(head.argval) if head.opname in ("LOAD_NAME", "LOAD_GLOBAL") else None
        is_ours = isinstance(room, ModuleType) and room.__name__.partition(".")[0] in PACKAGES
        if is_ours and tail.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            getattr(room, tail.argval)


def functions_of_modules() -> dict[str, list[CodeType]]:
    """The code of all functions of every module of the package, without importing one."""
    folders = [importlib.util.find_spec(name).submodule_search_locations[0] for name in PACKAGES]  # type: ignore[union-attr,index]
    found = {}
    for folder, path in ((Path(f), path) for f in folders for path in Path(f).rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = list(inner(compile(path.read_text(encoding="utf-8"), path, "exec")))
    return found


def imports_in(function: CodeType) -> list[str]:
    """The statements by which a function imports from the package, and `import_module("kl_companion...")`.

    Of `import_module(f"kl_companion.room.{name}")`: those of every module in that room.
    """
    found = []
    for before, step in itertools.pairwise(dis.get_instructions(function)):
        if step.opname == "IMPORT_NAME" and step.argval.partition(".")[0] in PACKAGES:
            found.append(f"import {step.argval}")
            found += [f"from {step.argval} import {name}" for name in before.argval or ()]
    texts = [x for x in function.co_consts if isinstance(x, str)]
    rooms = tuple(x for x in texts if re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+\.", x))
    found += [f"import {name}" for name in FUNCTIONS if rooms and name.startswith(rooms)]
    return found + [f"import {x}" for x in texts if re.fullmatch(rf"({'|'.join(PACKAGES)})(\.\w+)+", x)]


def loads(source: str) -> tuple[list[str], list[str]]:
    """(loaded, reachable) of a source, in a process that has nothing of the package yet."""
    assert not ours()
    names: dict[str, object] = {"__name__": "__main__"}
    exec(imports(source), names)
    code = compile(source, "chapter", "exec")
    for part in (code, *inner(code)):
        load_attributes(part, names)
    loaded = sorted(ours())
    done: set[str] = set()
    unloaded: set[str] = set()
    while todo := ours().keys() - done:
        for name, function in [(n, f) for n in todo for f in FUNCTIONS[n]]:
            for statement in IMPORTS.get(function, ()):
                try:
                    exec(statement, {})
                except ImportError:  # of a library that is not installed
                    unloaded |= named(statement)
            load_attributes(function, vars(sys.modules[name]))
        done |= todo
    return loaded, sorted(done | unloaded)


def named(source: str) -> set[str]:
    """The modules of the package that a source imports, and those that these import: read, not loaded."""
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Import | ast.ImportFrom)]
    modules = {alias.name for n in nodes for alias in n.names}
    modules |= {
        f"{n.module}.{alias.name}" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names
    }
    modules |= {n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    found = {name for name in modules if name in FUNCTIONS}
    for name in found - ours().keys():
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        found = found | named(Path(spec.origin).read_text(encoding="utf-8"))
    return found


def apart(source: str) -> tuple[list[str], list[str]]:
    """`loads` in a forked process."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(loads(source), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"the imports of a source fail:\n{imports(source)}")
    loaded, reachable = json.loads(answer)
    return loaded, reachable


if __name__ == "__main__":
    gc.disable()  # of its small processes none lives long enough to leave garbage
    for library in LIBRARIES:
        importlib.import_module(library)
    FUNCTIONS = functions_of_modules()
    IMPORTS = {f: imports_in(f) for functions in FUNCTIONS.values() for f in functions}
    print(json.dumps({name: apart(source) for name, source in json.load(sys.stdin).items()}))
