"""Reading a result table into a data frame with the types that its manifest declares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kl_book.tables.manifest import KEPT, PROFILES, Manifest, read_manifest
from kl_book.tables.project import unknown
from kl_book.tables.rows import Column, Row, parse

if TYPE_CHECKING:
    import pandas as pd


def load(name: str, profile: str = "cpu") -> pd.DataFrame:
    """A result table as it was last computed.

    Args:
        name: a folder of `tables/`.
        profile: "cpu", "gpu" (where a GPU made one), or "smoke" and "gpu_short" (the last such run).

    Returns:
        One column per entry of the manifest's `columns`, with dtypes str, int64, float64 and bool (Int64 and
        boolean where the column may have gaps).

    Raises:
        FileNotFoundError: the table was not computed yet; the message names the command that does it.
        ValueError: no such table or profile, or a file that the manifest does not describe.
    """
    manifest = read_manifest(name)
    path = table_path(manifest, profile)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist. Make it: {command(name, profile)}")
    return to_frame(read_rows(path, manifest.columns), manifest.columns)


def command(name: str, profile: str = "cpu") -> str:
    """The command that makes a table."""
    return f"python -m kl_book table run {name}" + (f" --profile {profile}" if profile != "cpu" else "")


def work_folder(manifest: Manifest, profile: str) -> Path:
    """Where runs of a profile keep what is unfinished: never below `tables/`."""
    return manifest.root / "_build" / "tables" / manifest.name / profile


def table_path(manifest: Manifest, profile: str) -> Path:
    """The file of a profile's table; that of its provenance is beside it."""
    if profile not in PROFILES:
        raise unknown("profile", profile, PROFILES)
    if profile not in KEPT:
        return work_folder(manifest, profile) / "table.csv"
    return manifest.folder / ("table.gpu.csv" if profile == "gpu" else "table.csv")


def provenance_path(table: Path) -> Path:
    """`table.csv` to `provenance.json`, `table.gpu.csv` to `provenance.gpu.json`."""
    return table.with_name(table.name.replace("table", "provenance").replace(".csv", ".json"))


def read_rows(path: Path, columns: Sequence[Column]) -> list[Row]:
    """The checked rows of a table file.

    Raises:
        ValueError: a malformed file; the message names it.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), columns)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def to_frame(rows: Sequence[Row], columns: Sequence[Column]) -> pd.DataFrame:
    """Rows as a data frame with the dtypes of the columns."""
    import pandas as pd

    data = {c.name: pd.array([row[c.name] for row in rows], dtype=_dtype(c)) for c in columns}
    return pd.DataFrame(data)


def _dtype(column: Column) -> str:
    if column.missing and column.type in ("int", "bool"):
        return {"int": "Int64", "bool": "boolean"}[column.type]
    return {"str": "str", "int": "int64", "float": "float64", "bool": "bool"}[column.type]
