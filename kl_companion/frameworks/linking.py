"""Load a function of an unpacked release with all that it calls of that release, and import none of it.

`installed.load` wants every name to be listed, which is right for one version. Past releases move their
helper functions from file to file. Here a name that a function reads is looked up where Python would look:
in its file, then in the imports of that file, which are followed through the release's own files. From
elsewhere only torch and the standard library are imported; any other name is missing until it is read.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import sys
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kl_companion.frameworks.installed import Bare, Distribution, Unavailable, source_of, statement, tree_of

_TORCH = ("torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled")
_KEPT = (*_TORCH, "staticmethod", "classmethod", "property")
_STANDARD = (*sys.stdlib_module_names, "torch", "numpy")


def link(distribution: Distribution, file: str, name: str, *, given: Mapping[str, Any] | None = None) -> Any:
    """A function, class or constant of a release, or a method ``Class.method`` as a function of its own.

    Args:
        distribution: Where the release is.
        file: Below ``distribution.root``.
        name: Dotted.
        given: What stands in for a name wherever the release reads it.

    Raises:
        Unavailable: the file, or the name in it, is missing.
    """
    linker = Linker(distribution, given) if given else _linker(distribution)
    return linker.module(file).found(name)


class Linker:
    """The files of a release that were reached, each a namespace that is filled as far as it is read."""

    def __init__(self, distribution: Distribution, given: Mapping[str, Any]) -> None:
        """A release, and what stands in for names of it."""
        self.distribution, self.given = distribution, given
        self.modules: dict[str, Module] = {}

    def module(self, file: str) -> Module:
        """The namespace of a file; `Unavailable` without it."""
        if file not in self.modules:
            source_of(self.distribution, file)
            self.modules[file] = Module(self, file)
        return self.modules[file]

    def of(self, dotted: str) -> Module | None:
        """The module of this name, if it is the release's own; torch may lie beside an installed one."""
        if dotted.partition(".")[0] in _STANDARD:
            return None
        path = dotted.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if (self.distribution.root / file).is_file():
                return self.module(file)
        return None


@cache
def _linker(distribution: Distribution) -> Linker:
    """That of a release in which nothing is stood in for: what it has linked is not linked again."""
    return Linker(distribution, {})


class Module:
    """A file of a release; attributes are its names, as an imported module has them."""

    def __init__(self, linker: Linker, file: str) -> None:
        """A file below the root of the linker's release."""
        self._linker, self._file = linker, file
        self._path = linker.distribution.root / file
        self._looking: set[str] = set()  # functions that call one another
        self._space: dict[str, Any] = {"__name__": file.removesuffix(".py").replace("/", "."), **linker.given}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.found(name)

    def found(self, name: str) -> Any:
        """What the file calls so; `Unavailable` if it has no such name."""
        if name in self._space:
            return self._space[name]
        method = name.rpartition(".")[2] if "." in name else ""
        node = (
            statement(self._linker.distribution, self._file, name)
            if method
            else _defined(self._path).get(name)
        )
        if node is None:
            return self._imported(name)
        self._looking.add(name)
        wanted = Bare(_TORCH if method else _KEPT).visit(deepcopy(node))
        self.known(_reads(wanted))
        code = compile(ast.fix_missing_locations(ast.Module([wanted], [])), str(self._path), "exec")
        into: dict[str, Any] = {} if method else self._space  # the file may have another function of its name
        exec(code, self._space, into)
        self._space[name] = into[method or name]
        return self._space[name]

    def known(self, names: Collection[str]) -> dict[str, Any]:
        """Of some names those that the file knows; one that is nowhere is missing when it is read."""
        for name in names:
            if name not in self._space and not hasattr(builtins, name) and name not in self._looking:
                with contextlib.suppress(Unavailable, ImportError, AttributeError):
                    self._space[name] = self.found(name)
        return {name: self._space[name] for name in names if name in self._space}

    def asked(self, name: str) -> Any:
        """What another file imports; of a function that is being looked at, one that finds it when called."""
        if name in self._looking and name not in self._space:
            return lambda *given, **named: self._space[name](*given, **named)
        return self.found(name)

    def _imported(self, name: str) -> Any:
        """What an import statement of the file binds to a name."""
        known = f"{self._linker.distribution.name} {self._linker.distribution.version}"
        source = _imports(self._path).get(name)
        if source is None:
            raise Unavailable(f"{known} has no {name} in {self._file}")
        module, attribute = self._absolute(source[0]), source[1]
        own = self._linker.of(module)
        if attribute is None:
            found: Any = own or _standard(module, name)
        elif own is not None:
            found = self._linker.of(f"{module}.{attribute}") or own.asked(attribute)
        else:
            outside = _standard(module, name)
            found = getattr(outside, attribute, None) or _standard(f"{module}.{attribute}", name)
        self._space[name] = found
        return found

    def _absolute(self, module: str) -> str:
        """A module's name without leading dots."""
        dots = len(module) - len(module.lstrip("."))
        if not dots:
            return module
        package = Path(self._file).parts[:-dots]
        return ".".join((*package, *filter(None, module[dots:].split("."))))


def _standard(module: str, name: str) -> Any:
    """A module of torch or of the standard library; ImportError for others."""
    if module.partition(".")[0] not in _STANDARD:
        raise ImportError(f"{name} comes from {module}, which is not torch, nor of the standard library")
    return torch if module == "torch" else importlib.import_module(module)


@cache
def _defined(path: Path) -> dict[str, ast.stmt]:
    """The functions, classes and constants of a file."""
    found: dict[str, ast.stmt] = {}
    for node in _top(tree_of(path).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {t.id: node for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node
    return found


@cache
def _imports(path: Path) -> dict[str, tuple[str, str | None]]:
    """Names that a file imports: to the module, with its leading dots, and to the name in it."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in _top(tree_of(path).body):
        if isinstance(node, ast.Import):
            for x in node.names:
                first = x.name.partition(".")[0]
                found[x.asname or first] = (x.name if x.asname else first, None)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {x.asname or x.name: (module, x.name) for x in node.names}
    return found


def _top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under its conditions and attempts too."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            handled = [h.body for h in node.handlers] if isinstance(node, ast.Try) else []
            for part in (node.body, *handled, node.orelse):
                yield from _top(part)
        else:
            yield node


def _reads(node: ast.AST) -> list[str]:
    """The names that a statement reads, once each."""
    names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return list(dict.fromkeys(names))
