"""The columns of a monitored run in words: what each is called, its unit, and what it tells."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import NamedTuple


class ColumnWords(NamedTuple):
    """A column for readers: its name, what its value tells, and whether it is a share."""

    name: str
    meaning: str
    share: bool = False


_DATA = tomllib.loads((files("kl_companion.monitor.report") / "column_words.toml").read_text("utf-8"))
WORDS = {column: ColumnWords(**words) for column, words in _DATA.items()}
