"""The table `claims` as rows of text: what the pages show of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

Found = dict[str, str]
"""A row of the table; what is missing is empty."""


def rows_as_texts(claims: pd.DataFrame, columns: Sequence[str]) -> list[Found]:
    """Some columns of the table `claims`, or of rows of it.

    Raises:
        ValueError: a column is missing.
    """
    missing = [name for name in columns if name not in claims.columns]
    if missing:
        raise ValueError(f"claims has no column {missing[0]!r}, expected {', '.join(columns)}")
    chosen = claims[list(columns)].astype(object)
    return chosen.where(chosen.notna(), "").to_dict("records")
