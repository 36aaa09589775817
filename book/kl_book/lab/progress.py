"""How a long run shows itself: a bar of tqdm on stdout, with the latest numbers behind it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from kl_companion.llm.optional import llm_extra


class Progress:
    """Shows the records of a run as they come: ``progress(record)``, in a ``with`` statement.

    Args:
        total: Number of steps of the run.
        title: Stands before the bar.
        keys: Which numbers of a record are shown. A record may lack some: each keeps its last one.
        quiet: Show nothing.

    Raises:
        ImportError: tqdm is missing.
    """

    def __init__(self, total: int, title: str, keys: Sequence[str], *, quiet: bool = False) -> None:
        # ascii looks the same everywhere
        self.bar = llm_extra("tqdm").tqdm(
            total=total, desc=title, file=sys.stdout, ascii=True, mininterval=1, disable=quiet
        )
        self.latest = dict.fromkeys(keys, "")

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Show a record; its ``"step"`` says how far the run is."""
        self.latest |= {key: f"{record[key]:.4g}" for key in self.latest.keys() & record.keys()}
        numbers = ", ".join(f"{key} {x}" for key, x in self.latest.items() if x)
        self.bar.set_postfix_str(numbers, refresh=False)
        self.bar.update(record["step"] - self.bar.n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
