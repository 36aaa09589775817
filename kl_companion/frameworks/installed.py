"""Find an installed framework, and load single functions out of its files without importing it.

verl and OpenRLHF import Ray, DeepSpeed and more before their first formula is reached. The formulas
themselves need only torch. So the file is parsed, the wanted functions and constants are cut out of the
syntax tree (without decorators and annotations, which name what is not there) and compiled under the
file's own name and line numbers: what runs is the installed text, and a traceback points into it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sys
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from functools import cache, wraps
from importlib import metadata
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch.nn import functional as F

FOLDER = Path(__file__).parent
# where `pip install --target` puts what cannot live beside the rest: the project's folder .audit
AUDIT = Path(__file__).resolve().parents[2] / ".audit"
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_KEPT = ("staticmethod", "classmethod", "property")  # decorators that say how a method is called
LOCK = "python -m pip install --no-deps --target .audit -r requirements-audit.lock"


class Unavailable(ValueError):
    """A framework that is not installed, or in a version whose functions are not known to be the same."""


class Distribution(NamedTuple):
    """What is installed.

    Attributes:
        name: As the package registry has it.
        version: The installed one.
        root: The folder that holds its packages.
    """

    name: str
    version: str
    root: Path


Loaded = TypeVar("Loaded")
_RELEASES: ContextVar[Mapping[str, Distribution]] = ContextVar("releases", default=MappingProxyType({}))


class SourceLocation(NamedTuple):
    """Where a function stands: a file below the folder of the packages, and names inside it.

    ``distribution`` and its known ``versions`` are given if it is not the one of the framework that uses it.
    """

    file: str
    function: str
    distribution: str = ""
    versions: tuple[str, ...] = ()


def paths() -> list[str]:
    """Where distributions are looked for: the project's folder for audits, then ``sys.path``."""
    return [str(AUDIT), *sys.path]


def how_to_install(name: str) -> str:
    """The command, or the extra, that brings a distribution."""
    return "pip install 'kl-companion[trl]'" if name == "trl" else LOCK


def installed_version(name: str) -> str | None:
    """The version of a distribution that is installed, or None."""
    for found in metadata.distributions(name=name, path=paths()):
        return found.version
    return None


def find(name: str, versions: Sequence[str]) -> Distribution:
    """The distribution ``name`` in one of the ``versions`` that are known to work.

    Raises:
        Unavailable: it is not installed, or in another version; the message says what to install.
    """
    known = ", ".join(versions)
    for found in metadata.distributions(name=name, path=paths()):
        if found.version not in versions:
            raise Unavailable(
                f"{name} is installed in version {found.version}, whose functions were not looked at; "
                f"known to work: {known}. Install one of them: {how_to_install(name)}"
            )
        return Distribution(name, found.version, Path(str(found.locate_file(""))))
    raise Unavailable(f"{name} is not installed (known to work: {known}). Install it: {how_to_install(name)}")


def read(framework: str) -> dict[str, Any]:
    """The file of a framework, see `adapter`."""
    return tomllib.loads((FOLDER / f"{framework}.toml").read_text(encoding="utf-8"))


def known(framework: str) -> tuple[str, tuple[str, ...]]:
    """The distribution of a framework, "" for formulas, and its versions that are known to work."""
    data = read(framework)
    return data.get("distribution", ""), tuple(data["versions"])


@contextmanager
def in_place_of_installed(release: Distribution) -> Iterator[None]:
    """Let functions that are `loaded_from` a distribution of this name come from a release of it."""
    before = _RELEASES.set({**_RELEASES.get(), release.name: release})
    try:
        yield
    finally:
        _RELEASES.reset(before)


def loaded_from(
    name: str, versions: Sequence[str]
) -> Callable[[Callable[[Distribution], Loaded]], Callable[[], Loaded]]:
    """Decorate a function of a distribution: it is called once for the installed one, and once per release.

    Args:
        name: Of the distribution.
        versions: Those that are known to work, see `find`; a release in place of the installed one is any.
    """

    def decorate(function: Callable[[Distribution], Loaded]) -> Callable[[], Loaded]:
        @cache
        def once(release: Distribution | None) -> Loaded:
            return function(find(name, versions) if release is None else release)

        @wraps(function)
        def loaded() -> Loaded:
            return once(_RELEASES.get().get(name))

        return loaded

    return decorate


def source_of(distribution: Distribution, file: str) -> Path:
    """The path of a file of a distribution; `Unavailable` without it."""
    path = distribution.root / file
    if not path.is_file():
        raise Unavailable(f"{distribution.name} {distribution.version} has no file {file}")
    return path


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file; it is kept, hence not to be changed."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _named(body: Sequence[ast.stmt], name: str) -> ast.stmt | None:
    """The function, class or constant of this name in a body."""
    for node in body:
        if isinstance(node, _FUNCTIONS | ast.ClassDef) and node.name == name:
            return node
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return node
    return None


def statement(distribution: Distribution, file: str, name: str) -> ast.stmt:
    """The statement of a dotted name (``Class.method``) in a file; ValueError without one."""
    node: ast.stmt | None = None
    body: Sequence[ast.stmt] = tree_of(source_of(distribution, file)).body
    for part in name.split("."):
        node = _named(body, part)
        if node is None:
            raise Unavailable(
                f"{distribution.name} {distribution.version} has no {name} in {file}, expected a function, "
                "class or constant of that name"
            )
        body = getattr(node, "body", [])
    assert node is not None
    return node


def line_of(distribution: Distribution, place: SourceLocation) -> int:
    """The line at which a function begins, its decorators not counted."""
    return statement(distribution, place.file, place.function).lineno


def digest_of(distribution: Distribution, place: SourceLocation) -> str:
    """The first sixteen hexadecimal digits of the SHA-256 of a file; `Unavailable` without it."""
    return hashlib.sha256(source_of(distribution, place.file).read_bytes()).hexdigest()[:16]


class Bare(ast.NodeTransformer):
    """Takes decorators and annotations away: they name what is not imported, and compute nothing.

    An import inside a function of a name that is given is left out too, so that what is given is used.
    """

    def __init__(self, kept: tuple[str, ...] = (), given: Collection[str] = ()) -> None:
        """How decorators begin that are kept, such as ``"torch.no_grad"``; names that are given."""
        self.kept, self.given = kept, given

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Of a function: its decorators but those that are kept, and all annotations."""
        return self._bare(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """The same of a function that waits."""
        return self._bare(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """An import without the names that are given."""
        node.names = [alias for alias in node.names if (alias.asname or alias.name) not in self.given]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def _bare(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d).startswith(self.kept)]
        node.returns = None
        spec = node.args
        for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg):
            if argument is not None:
                argument.annotation = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """An assignment without its annotation; nothing of a bare declaration."""
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def load(
    distribution: Distribution, file: str, *names: str, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Functions, methods and constants of one installed file, by name, in one namespace.

    Args:
        distribution: What `find` found.
        file: Below ``distribution.root``.
        *names: Functions, classes and constants, which see one another; a method, ``Class.method``, is loaded
            as a function of its own under the method's name.
        given: What they need besides, such as functions of other files; ``torch`` and ``F`` are there.

    Raises:
        Unavailable: the file, or a name in it, is missing.
    """
    path = distribution.root / file
    wanted = [statement(distribution, file, name) for name in names]
    space: dict[str, Any] = {"torch": torch, "F": F, **(given or {})}
    body = [  # of copies: the tree is kept for the next names; a method becomes a function of its own
        Bare(() if "." in name else _KEPT, space).visit(deepcopy(node))
        for name, node in zip(names, wanted, strict=True)
    ]
    module = ast.fix_missing_locations(ast.Module(body, []))
    exec(compile(module, str(path), "exec"), space)
    return {name: space[name] for name in (n.rpartition(".")[2] for n in names)}


def import_from(distribution: Distribution, module: str) -> ModuleType:
    """Import a module of a distribution whose package imports as it is (Liger's chunked losses, TRL).

    Its folder is on ``sys.path`` for the time of the import only: other packages live there too.

    Raises:
        Unavailable: the import fails; the message has the reason.
    """
    root = str(distribution.root)
    added = root not in sys.path
    if added:
        sys.path.append(root)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a framework says of itself on import is not ours to repeat
            return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(
            f"{distribution.name} {distribution.version} is installed, but importing {module} failed: {error}"
        ) from error
    finally:
        if added:
            sys.path.remove(root)
