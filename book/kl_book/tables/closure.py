"""Which files of the two packages does a piece of code really use, and what is their digest?

A result table or an executed chapter is stale when, and only when, something it uses has changed. Both ask
this module. It needs the standard library alone and never imports the package, so that a build tool can load
it by its path. Code is read as a syntax tree:

* `from kl_companion import k3` leads to the one module that defines `k3`, through the line
  `from ... import k3 as k3` under `if TYPE_CHECKING:` of a lazy `__init__.py`; so does
  `import kl_companion as kl; kl.k3`. Any package may be lazy in this way. An `__init__.py` with a docstring
  and a list of names alone is not a file of its own here: a name counts with the module that it leads to.
* `import kl_companion.theory.calculus`, relative imports, imports inside functions and
  `import_module("kl_companion.ops")` count. Other imports under `if TYPE_CHECKING:` do not: they never run.
* `import_module(f"kl_companion.frameworks.{name}").__all__` leads to every module of that folder that
  assigns `__all__`.
* What cannot be followed counts as using everything: a starred import or a bare use of a lazy package
  (`getattr(kl, name)`) pulls in all its public names, code that does not parse pulls in the whole package.
* Data files (csv, yml, yaml, toml, json) beside a used module count as used.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeGuard

PACKAGES = {"kl_companion": "", "kl_book": "book"}  # each with the folder, below the root, that holds it
DATA_SUFFIXES = (".csv", ".yml", ".yaml", ".toml", ".json")
HELPERS = ("__future__", "typing", "kl_companion.lazy")
_EVERYTHING = frozenset({"**"})
_ASSIGNING = "every module that assigns "
_ONE_AT_A_TIME = threading.Lock()


def parse(source: str | bytes) -> ast.Module:
    """`ast.parse` for threads: two at once confuse Python 3.11 (SystemError), and a worker has many."""
    with _ONE_AT_A_TIME:
        return ast.parse(source)


def notebook_code(text: str) -> str:
    """The code of a notebook as one source text.

    Args:
        text: the notebook file (JSON, format 4).

    Returns:
        The code cells in order, joined by blank lines, with IPython lines (`%magic`, `!shell`) left out.
    """
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    return strip_magics("\n\n".join("".join(cell["source"]) for cell in cells))


def strip_magics(source: str) -> str:
    """Python source without the IPython lines (`%magic`, `!shell`)."""
    return re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.M)


def module_files(root: Path, source: str, package: str = "") -> frozenset[Path]:
    """Every file of the packages that a source text uses, directly or through what it imports.

    Args:
        root: the folder that holds the folders `kl_companion` and `book/kl_book`.
        source: Python code, for example `notebook_code(...)` of a chapter.
        package: dotted package that the code belongs to, for its relative imports; "" for a notebook.

    Returns:
        Paths below `root`: modules, the `__init__.py` of their packages where it does more than list names,
        and the data files beside them.
    """
    found: set[Path] = set()
    seen: set[str] = set()
    modules, names_of = _modules(root), cache(lazy_names)  # no file changes meanwhile
    todo = set(_uses(source, package))
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        files, further = _resolve(root, name, modules, names_of)
        todo |= further
        for path in files - found:
            found.add(path)
            todo |= _uses(path.read_text(encoding="utf-8"), _package_of(root, path))
    data = {p for folder in {f.parent for f in found} for p in folder.iterdir() if _is_data(p)}
    return frozenset({path for path in found if not _lists_names(path)} | data)


def _is_data(path: Path) -> bool:
    return path.suffix in DATA_SUFFIXES and not path.name.startswith(".")


def file_digests(root: Path, files: Iterable[Path], *, docstrings: bool = True) -> dict[str, str]:
    """The digest of each of some files.

    A module enters with the names that lazy packages above it export from it, and a lazy `__init__.py` enters
    without its table of names: a new public name elsewhere makes nothing stale.

    Args:
        root: the folder that the paths are written relative to.
        files: files below `root`, in any order.
        docstrings: False compares modules by syntax tree without docstrings, so that neither prose, comments
            nor layout count.

    Returns:
        Relative path to the first 16 hexadecimal digits of a sha256, sorted by path.
    """
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(_canonical(root, path, docstrings)).hexdigest()[:16]
        for path in sorted(set(files))
    }


def files_digest(root: Path, files: Iterable[Path], *, docstrings: bool = True) -> str:
    """One sha256 (64 hexadecimal digits) over `file_digests`: changes when a path or a content does."""
    digests = file_digests(root, files, docstrings=docstrings)
    lines = (f"{path}={digest}\n" for path, digest in digests.items())
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# -- names used by a text: a pure function of the text -------------------------------------------------------


@lru_cache(maxsize=1024)
def _uses(source: str, package: str) -> frozenset[str]:
    """Dotted names below PACKAGES that the text refers to; "a.*" for all of a, "**" for everything."""
    try:
        tree = parse(source)
    except SyntaxError:
        return _EVERYTHING
    uses: set[str] = set()
    bound: dict[str, set[str]] = {}
    nodes = list(_running(tree))
    for node in nodes:
        for name, target in _imports(node, package):
            if _top(target) in PACKAGES:
                uses.add(target)
                if name:
                    bound.setdefault(name, set()).add(name if name in PACKAGES else target)
    in_chain: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and (chain := _chain(node)):
            head, attributes = chain
            in_chain.add(id(head))
            uses |= {".".join([target, *attributes]) for target in bound.get(head.id, ())}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in in_chain:
            uses |= {f"{target}.*" for target in bound.get(node.id, ())}
    return frozenset(uses)


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but those that only a type checker reads."""
    todo = [node]
    while todo:
        yield (node := todo.pop())
        for child in ast.iter_child_nodes(node):
            todo += child.orelse if _type_checking(child) else [child]


def _type_checking(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _imports(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Pairs (name bound in the text or "", dotted target) of an import."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or _top(alias.name), alias.name
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join(parents + ([base] if base else []))
        yield "", base
        for alias in node.names:
            yield alias.asname or alias.name, f"{base}.{alias.name}"
    elif _imports_module(node):
        for argument in node.args[:1]:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield "", argument.value
                yield "", f"{argument.value}.*"  # what is done with the module cannot be followed
    elif isinstance(node, ast.Attribute) and (folder := _listed(node.value)):
        yield "", f"{folder}{_ASSIGNING}{node.attr}"


def _imports_module(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"


def _listed(node: ast.expr) -> str:
    """The folder, with its dot, out of which `import_module(f"folder.{name}")` takes a module; "" if none."""
    if not (_imports_module(node) and node.args and isinstance(node.args[0], ast.JoinedStr)):
        return ""
    first = node.args[0].values[0]
    text = str(first.value) if isinstance(first, ast.Constant) else ""
    return text if text.endswith(".") else ""


def _top(dotted: str) -> str:
    return dotted.partition(".")[0]


def _chain(node: ast.expr) -> tuple[ast.Name, list[str]] | None:
    """`a.b.c` as (node of a, ["b", "c"]); None when it does not start at a name."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.insert(0, node.attr)
        node = node.value
    return (node, attributes) if isinstance(node, ast.Name) else None


# -- from names to files -------------------------------------------------------------------------------------


def _modules(root: Path) -> dict[str, Path]:
    """The file of every module, by its dotted name; of a package, its `__init__.py`."""
    found: dict[str, Path] = {}
    for here, names in _folders(root):
        package = ".".join(_inside(root, here).parts)
        for name in names:
            if name == "__init__.py":
                found[package] = here / name
            elif name.endswith(".py"):
                found.setdefault(f"{package}.{name[:-3]}", here / name)
    return found


def _folders(root: Path) -> Iterator[tuple[Path, list[str]]]:
    """Every folder of the packages, with the names of its files."""
    for package, above in PACKAGES.items():
        for folder, _, names in os.walk(root / above / package):
            yield Path(folder), names


def _inside(root: Path, path: Path) -> Path:
    """A path below the folder that holds its package: the parts of a dotted name."""
    below = path.relative_to(root)
    for package, above in PACKAGES.items():
        if below.is_relative_to(Path(above) / package):
            return below.relative_to(above) if above else below
    return below


def _resolve(
    root: Path, name: str, modules: dict[str, Path], names_of: Callable[[Path], dict[str, str]]
) -> tuple[set[Path], set[str]]:
    """The files that a dotted name leads to, and the names that lazy packages translate it into."""
    if name == "**":
        return set(modules.values()), set()
    files: set[Path] = set()
    further: set[str] = set()
    dotted = ""
    for part in name.split("."):
        names = names_of(modules[dotted]) if dotted else {}
        if part.startswith(_ASSIGNING):
            wanted = part.removeprefix(_ASSIGNING)
            beside = (p for p in modules[dotted].parent.glob("*.py") if p.name != "__init__.py")
            assigns = [p for p in beside if any(_assigned(n) == wanted for n in parse(p.read_bytes()).body)]
            further |= {_module_name(root, p) for p in assigns}
        if part == "*":
            further |= {f"{module}.{each}" for each, module in names.items()}
        if part in names:
            further.add(f"{names[part]}.{part}")  # the module may be a package that is lazy too
        dotted = f"{dotted}.{part}" if dotted else part
        if dotted in modules:
            files.add(modules[dotted])
        if dotted not in modules or modules[dotted].name != "__init__.py":
            break
    return files, further


def lazy_names(path: Path) -> dict[str, str]:
    """Public names of a lazy `__init__.py`, each with its dotted module; {} for a file that is none."""
    return _lazy_names(path.read_text(encoding="utf-8")) if path.is_file() else {}


@lru_cache(maxsize=256)
def _lazy_names(text: str) -> dict[str, str]:
    try:
        blocks = [n for n in parse(text).body if _type_checking(n)]
    except SyntaxError:
        return {}
    imports = [n for block in blocks for n in block.body if isinstance(n, ast.ImportFrom)]
    return {a.name: str(n.module) for n in imports for a in n.names if a.asname == a.name}


def _assigned(node: ast.stmt) -> str:
    """The name that a statement assigns to at module level, or ""."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return ast.unparse(node.targets[0])
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) and node.value else ""


def _module_name(root: Path, path: Path) -> str:
    parts = _inside(root, path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package_of(root: Path, path: Path) -> str:
    return ".".join(_inside(root, path).parent.parts)


def _lists_names(path: Path) -> bool:
    """Whether a file is an `__init__.py` that holds a docstring and the names of a lazy package alone."""
    return path.name == "__init__.py" and _names_alone(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=256)
def _names_alone(text: str) -> bool:
    try:
        body = parse(text).body
    except SyntaxError:
        return False
    code = [
        ast.unparse(node)
        for node in body
        if not _type_checking(node)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        and not (isinstance(node, ast.ImportFrom) and node.module in HELPERS)
    ]
    if _lazy_names(text):
        return len(code) == 1 and code[0].endswith("= lazy(__name__)")
    return bool(body) and not code


def _exported(root: Path, path: Path) -> list[str]:
    """The names that lazy packages above a module take from it."""
    module = _module_name(root, path)
    above = [p for p in path.parents if p != root and p.is_relative_to(root)]
    tables = {_module_name(root, p): lazy_names(p / "__init__.py") for p in above}
    return sorted(f"{p}.{name}" for p, names in tables.items() for name, m in names.items() if m == module)


def _canonical(root: Path, path: Path, docstrings: bool) -> bytes:
    """The part of a file that decides whether results are stale."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    exported = "\n".join(_exported(root, path)).encode()
    lazy = path.name == "__init__.py" and bool(lazy_names(path))
    if docstrings and not lazy:
        return content + exported
    try:
        return _dumped(content, lazy).encode() + exported
    except SyntaxError:
        return content + exported


@lru_cache(maxsize=1024)
def _dumped(content: bytes, lazy: bool) -> str:
    """A module as a syntax tree without docstrings, a lazy one also without what its names decide."""
    tree = parse(content)
    if lazy:
        tree.body = [n for n in tree.body if not _type_checking(n)]
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
