"""What is not computed here: training runs, and rows that nobody has examined yet (vojnovic2025alignment)."""

from __future__ import annotations

OPEN: tuple[str, ...] = ()
