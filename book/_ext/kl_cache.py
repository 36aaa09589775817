"""Re-execute a chapter when the code or the tables that it uses change, and only then.

jupyter-cache knows a chapter by its code cells and by `metadata.kernelspec`, and Sphinx reads a page again
only when the page's own file changed: a chapter would go on showing numbers of code that no longer exists.
So every chapter gets a digest of what it really uses:

* the files of both packages that its cells import, directly or not (book/kl_book/tables/closure.py);
* the tables that it loads: each file of `tables/<name>/` for every `load("<name>")` in its cells, and in
  those of the files that import kl_book.tables, and the manifest that a table's own is `like`;
* the files of tests/refusals, and what they import, for the page that shows those cases;
* the versions of the numerical libraries that those files import.

`outdated` has Sphinx read again the chapters whose digest changed; `stamp` writes the digest into the
kernelspec of the text handed to MyST-NB, so that jupyter-cache finds a changed chapter no more, and a
reverted one again.

Sphinx notes what it has read before it writes the pages, and takes any file that is there for a whole one. So
a build is marked as under way: what one that was killed has left is not trusted, only executed chapters are.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import platform
import re
import shutil
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
KEY = "kl_book_digest"
MARK = "under_way"  # a file beside what Sphinx notes, as long as a build has not ended
LIBRARIES = frozenset(
    {"torch", "numpy", "sympy", "pandas", "scipy", "matplotlib", "seaborn", "joblib", "bokeh"}
)
IMPORTS_TABLES = re.compile(r"^\s*(from|import) kl_book(\.tables\b| import .*\btables\b)", re.M)
MODULE = re.compile(r"\bkl_\w+(?:\.\w+)+")  # in a list of cases
logger = logging.getLogger(__name__)


@lru_cache(maxsize=1)
def closure() -> ModuleType:
    """book/kl_book/tables/closure.py, without importing the package."""
    path = ROOT / "book" / "kl_book" / "tables" / "closure.py"
    spec = importlib.util.spec_from_file_location("kl_closure", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tables_used(code: str, known: Iterable[str]) -> set[str]:
    """Names of the tables that a chapter or a module loads.

    Args:
        code: The code cells as one text, or the module.
        known: The names of the tables that exist.

    Returns:
        The literal arguments of calls to `load` (or `something.load`) that name a table. A call whose
        argument is computed may load any table that the code names in a string; all, where it names none.
    """
    known = set(known)
    try:
        named, computed, strings = _arguments_of_load(code)
    except SyntaxError:
        return known
    return (named & known) | (((strings & known) or known) if computed else set())


@lru_cache(maxsize=256)  # chapters use the same modules
def _arguments_of_load(code: str) -> tuple[set[object], bool, set[str]]:
    """What calls to `load` name, whether one computes its argument, and every string of the code."""
    nodes = list(ast.walk(ast.parse(code)))
    arguments: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "load":
            arguments += node.args[:1] + [k.value for k in node.keywords if k.arg == "name"]
    named = {x.value for x in arguments if isinstance(x, ast.Constant)}
    strings = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return named, any(not isinstance(x, ast.Constant) for x in arguments), strings


@lru_cache(maxsize=32)
def version(library: str) -> str:
    """The installed version of a library; its file is read once."""
    return metadata.version(library)


def libraries_used(sources: Iterable[str]) -> set[str]:
    """Numerical libraries that some source texts import, by their top-level names."""
    pattern = re.compile(r"^\s*(?:from|import)\s+(\w+)", re.M)
    return {name for source in sources for name in pattern.findall(source)} & LIBRARIES


def digest(text: str) -> str:
    """What a chapter depends on beside its own cells, as 16 hexadecimal digits.

    Args:
        text: The notebook file.
    """
    tool = closure()
    code = tool.notebook_code(text)
    catalogue = [path for path in catalogue_files() if "tests.refusals" in code]
    modules = tool.module_files(ROOT, "\n".join([code, *map(imports, catalogue)]))
    texts = [path.read_text(encoding="utf-8") for path in modules if path.suffix == ".py"]
    loading = [code, *(text for text in texts if IMPORTS_TABLES.search(text))]
    names = {name for text in loading for name in tables_used(text, table_names())}
    folders = [ROOT / "tables" / name for name in names]
    tables = {path for folder in folders for path in folder.iterdir() if is_table_file(path)}
    tables |= {ROOT / "tables" / name / "manifest.yml" for folder in folders for name in liked(folder)}
    sources = [code, *texts]
    total = hashlib.sha256(f"python={platform.python_version()}\n".encode())
    for name in sorted(libraries_used(sources)):
        total.update(f"{name}={version(name)}\n".encode())
    total.update(tool.files_digest(ROOT, modules | tables | {*catalogue}).encode())
    return total.hexdigest()[:16]


def catalogue_files() -> list[Path]:
    """The cases of bad input, and the modules that run them."""
    folder = ROOT / "tests" / "refusals"
    modules = (path for path in folder.glob("*.py") if not path.name.startswith("test_"))
    return sorted([*modules, *folder.glob("page/*.yml")])


def imports(path: Path) -> str:
    """Code that imports what a module or a list of cases imports."""
    text = path.read_text(encoding="utf-8")
    return text if path.suffix == ".py" else "\n".join(f"import {name}" for name in MODULE.findall(text))


def table_names() -> list[str]:
    """The folders of tables/ that hold a manifest."""
    return sorted(path.parent.name for path in (ROOT / "tables").glob("*/manifest.yml"))


def liked(folder: Path) -> set[str]:
    """The table whose manifest goes on where that of a folder ends."""
    text = (folder / "manifest.yml").read_text(encoding="utf-8")
    return {name for name in re.findall(r"^like: *(\w+)", text, re.M) if name in table_names()}


def is_table_file(path: Path) -> bool:
    """Whether `load` reads the file: rows and manifest count, provenance does not."""
    return path.name == "manifest.yml" or (path.name.startswith("table") and path.suffix == ".csv")


# -- the events of Sphinx ------------------------------------------------------------------------------------


def outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages to read again although their own files did not change."""
    digests: dict[str, str] = getattr(env, KEY, {})
    toc = hashlib.sha256((ROOT / "_toc.yml").read_bytes()).hexdigest()
    known_toc = getattr(env, f"{KEY}_toc", toc)
    setattr(env, f"{KEY}_toc", toc)
    if known_toc != toc:  # the sidebar of every page shows the table of contents
        return list(env.found_docs)
    notebooks = {doc: Path(env.doc2path(doc)) for doc in env.found_docs}
    again = {
        doc
        for doc, path in notebooks.items()
        if path.suffix == ".ipynb" and digests.get(doc) != digest(path.read_text(encoding="utf-8"))
    }
    # a page that quotes a number of a chapter shows the number it had when the page was written
    for doc, path in notebooks.items():
        quoted = quotes(path) if path.suffix == ".md" else set()
        if quoted & (again | added | changed):
            again.add(doc)
    return sorted(again)


def quotes(path: Path) -> set[str]:
    """Chapters whose results a page shows through `{glue...}` with a path, as document names."""
    found = re.findall(r"([\w./-]+)\.ipynb::", path.read_text(encoding="utf-8"))
    inside = [(path.parent / name).resolve() for name in found]
    return {p.relative_to(ROOT).as_posix() for p in inside if p.is_relative_to(ROOT)}


def stamp(app: Any, docname: str, source: list[str]) -> None:
    """Put a chapter's digest where jupyter-cache's key looks: metadata.kernelspec."""
    suffix = Path(app.env.doc2path(docname)).suffix
    if suffix == ".md" and re.search(r"^[`:]{3,}\{code-cell\}", source[0], re.M):
        logger.warning(
            "code cells belong in an .ipynb file: this page would be cached wrongly", location=docname
        )
    if suffix != ".ipynb":
        return
    if not hasattr(app.env, KEY):
        setattr(app.env, KEY, {})
    value = digest(source[0])
    getattr(app.env, KEY)[docname] = value
    notebook = json.loads(source[0])
    notebook["metadata"].setdefault("kernelspec", {})[KEY] = value
    source[0] = json.dumps(notebook)


def purge(app: Any, env: Any, docname: str) -> None:
    """Forget the digest of a page that is read again or gone."""
    getattr(env, KEY, {}).pop(docname, None)


def merge(app: Any, env: Any, docnames: list[str], other: Any) -> None:
    """Take over the digests that another reading process found."""
    if not hasattr(env, KEY):
        setattr(env, KEY, {})
    getattr(env, KEY).update({doc: d for doc, d in getattr(other, KEY, {}).items() if doc in docnames})


def forget_if_warned(app: Any, exception: Exception | None) -> None:
    """After a build with warnings read every page again: Sphinx would skip those that warned, and pass."""
    if exception is not None or app._warncount:
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)


def mend(app: Any) -> None:
    """After a build that was killed, have every page written again; then mark this one as under way."""
    mark, output = Path(app.doctreedir) / MARK, Path(app.outdir)
    if mark.is_file():
        (mark.parent / "environment.pickle").unlink(missing_ok=True)
        for folder in (output / "_modules", output.parent / "jupyter_execute"):  # kept by those who find them
            shutil.rmtree(folder, ignore_errors=True)
        forget_half_written(output.parent / ".jupyter_cache")
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def forget_half_written(folder: Path) -> None:
    """Keep those executed chapters of a cache that are there from the first byte to the last."""
    from jupyter_cache import get_cache
    from jupyter_cache.cache.db import NbCacheRecord

    if not folder.is_dir():
        return
    executed = folder / "executed"
    try:
        cache = get_cache(folder)
        records = {record.hashkey: record.pk for record in cache.list_cache_records()}
    except Exception as error:  # its database was just being made
        logger.info("the cache of executed chapters begins anew: %s", error)
        shutil.rmtree(folder)
        return
    found = {path.name for path in executed.iterdir()} if executed.is_dir() else set()
    for key in found | records.keys():
        try:
            json.loads((executed / key / "base.ipynb").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(executed / key, ignore_errors=True)
            if key in records:
                NbCacheRecord.remove_records([records[key]], cache.db)


def unmark(app: Any, exception: Exception | None) -> None:
    """A build that ends, well or not, leaves nothing half-written that counts."""
    (Path(app.doctreedir) / MARK).unlink(missing_ok=True)


def connect(app: Any) -> None:
    """Attach all of this to a Sphinx application."""
    mend(app)  # now: Sphinx has not yet read what it noted
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", stamp)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    app.connect("build-finished", forget_if_warned)
    app.connect("build-finished", unmark, priority=999)  # after those who change written pages
