"""Are the tables what their sources say? Read everything, run nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kl_book.tables import provenance
from kl_book.tables.manifest import (
    Manifest,
    manifest_digest,
    notebook_digest,
    read_manifest,
    settings,
)
from kl_book.tables.needs import lacking
from kl_book.tables.project import known_table, names, project_root
from kl_book.tables.rows import render
from kl_book.tables.store import command, provenance_path, read_rows, table_path

# Rooms that compute the numbers of tables. What stands around a formula (refusals, faces, words of an audit)
# is covered by tests; a change there is shown as drift.
FORMULAS = (
    *("ops", "divergences", "estimators", "theory", "rollout", "kernels", "tabular", "policy_losses"),
    *("kl_term", "losses", "token_terms", "student_t"),
)
ON_A_GPU = re.compile(r"/(gpu|triton_\w+|in_triton)\.py$")  # which no other processor runs
FILES = ("manifest.yml", "table.csv", "provenance.json", "table.gpu.csv", "provenance.gpu.json")


def check(name: str | None = None) -> list[str]:
    """What is wrong with one table, or with all of them and the folder `tables/`.

    A table is wrong when its manifest or file is missing or malformed, when no page shows or loads it, when
    its provenance is missing, when the table was edited by hand, or when its manifest, its notebook or a
    formula has changed since it was made. A change of other code that it uses is a `drift` alone.

    Args:
        name: a folder of `tables/`, or None for all.

    Returns:
        One line per problem, empty when all is well.

    Raises:
        ValueError: no such table.
    """
    if name is not None:
        return list(_table_problems(known_table(name)))
    folder = project_root() / "tables"
    strays = [path.name for path in sorted(folder.iterdir()) if not (path / "manifest.yml").is_file()]
    problems = [f"tables/{stray} is no table: it has no manifest.yml" for stray in strays if stray[0] != "."]
    return problems + [problem for table in names() for problem in _table_problems(table)]


def drift(name: str, profile: str = "cpu") -> list[str]:
    """The package files that have changed, come or gone since a table was made or confirmed.

    Docstrings and comments do not count. Those of `FORMULAS` are what `check` minds.

    Args:
        name: a folder of `tables/`.
        profile: "cpu" or "gpu".

    Returns:
        Paths, sorted; empty when the code is still the one that made the table.

    Raises:
        ValueError: no such table, or a provenance that cannot be read.
        FileNotFoundError: the table has no provenance.
    """
    manifest = read_manifest(name)
    path = provenance_path(table_path(manifest, profile))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. Make it: {command(name, profile)}")
    return _changed_files(manifest, read_record(path))


def _changed_files(manifest: Manifest, record: dict[str, Any]) -> list[str]:
    old, new = record["package_files"], provenance.package_files(manifest.notebook)
    return sorted(file for file in {*old, *new} if old.get(file) != new.get(file))


def is_formula(file: str) -> bool:
    """True for a file of `FORMULAS`, a path below the root of the project."""
    package, _, rest = file.partition("/")
    faces = rest.endswith("__init__.py")
    return package == "kl_companion" and re.split(r"[/.]", rest)[0] in FORMULAS and not faces


def _table_problems(name: str) -> Iterator[str]:
    try:
        manifest = read_manifest(name)
        lacking(manifest)  # names a known model; it need not be here
    except ValueError as error:
        yield str(error)
        return
    for path in sorted(manifest.folder.iterdir()):
        if path.name not in FILES:
            yield f"{name}: {path.name} does not belong into the folder of a table"
    if not _used(manifest.root / "book", name):
        yield f"{name}: unused, no page under book/ loads or shows it"
    profiles = ["cpu"]
    gpu = table_path(manifest, "gpu")
    if gpu.exists() or provenance_path(gpu).exists():
        profiles.append("gpu")
    for profile in profiles:
        for problem in _profile_problems(manifest, profile):
            yield f"{name}: {problem}; make it again: {command(name, profile)}"


def _profile_problems(manifest: Manifest, profile: str) -> Iterator[str]:
    """What is wrong with the two files of a profile."""
    path = table_path(manifest, profile)
    try:
        grid = settings(manifest, profile).grid
    except ValueError as error:
        yield str(error)
        return
    text = None
    if path.is_file():
        try:
            text = path.read_bytes().decode()
            if render(read_rows(path, manifest.columns), manifest.columns, manifest.key, grid) != text:
                yield f"{path.name} is not as the runner writes it (digits, order of the rows, line ends)"
        except ValueError as error:
            yield str(error)
    else:
        yield f"{path.name} is missing"
    record_path = provenance_path(path)
    if not record_path.is_file():
        yield f"{record_path.name} is missing"
        return
    try:
        record = read_record(record_path)
    except ValueError as error:
        yield str(error)
        return
    now = {
        "manifest": manifest_digest(manifest, profile),
        "notebook": notebook_digest(manifest.notebook),
        "table": None if text is None else provenance.text_digest(text),
    }
    for what, digest in now.items():
        if digest is not None and record["digests"].get(what) != digest:
            yield f"the {what} has changed since {path.name} was made"
    changed = [file for file in _changed_files(manifest, record) if is_formula(file)]
    if record["device"]["gpu"] is None:
        changed = [file for file in changed if not ON_A_GPU.search(file)]
    if changed and manifest.deterministic:  # timings hold on one machine anyway
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        yield f"{path.name} is older than {changed[0]}{more}; table confirm {manifest.name} tries it"
    if record["profile"] != profile:
        yield f"{record_path.name} is of profile {record['profile']!r}, expected {profile!r}"


def read_record(path: Path) -> dict[str, Any]:
    """Read the provenance of a table; ValueError for a file that is none."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from None
    absent = [field for field in provenance.FIELDS if not isinstance(record, dict) or field not in record]
    if absent:
        raise ValueError(f"{path.name} has no {', '.join(absent)}")
    return dict(record)


def _used(book: Path, name: str) -> bool:
    """Does a page load the table in code, or show its file?"""
    escaped = re.escape(name)
    use = re.compile(rf"""\bload\(\s*["']{escaped}["']|tables/{escaped}/table(\.gpu)?\.csv""")
    return any(use.search(text) for text in _page_texts(book))


def _page_texts(book: Path) -> Iterator[str]:
    for path in sorted(book.rglob("*")):
        if path.suffix == ".md":
            yield path.read_text(encoding="utf-8")
        elif path.suffix == ".ipynb" and ".ipynb_checkpoints" not in path.parts:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            yield "\n".join("".join(cell["source"]) for cell in cells)
