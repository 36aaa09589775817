"""Sentences as data: texts of ``templates.toml``, chosen by conditions and filled in with facts."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

_TOPICS: dict[str, list[list[str]]] = tomllib.loads(
    (files(__package__) / "templates.toml").read_text("utf-8")
)


class _Facts(dict[str, Any]):
    """Facts by name, attributes of records, and topics, which are filled in with both.

    Attributes:
        records: Whose attributes are facts, the first that has one.
    """

    def __init__(self, records: tuple[Any, ...], facts: dict[str, Any]) -> None:
        super().__init__(facts)
        self.records = records

    def __missing__(self, name: str) -> Any:
        record = next((r for r in self.records if hasattr(r, name)), None)
        return self.text(name) if record is None else getattr(record, name)

    def text(self, topic: str) -> str:
        """Return the first text of a topic whose condition holds, filled in; "" where none does."""
        return next((text.format_map(self) for when, text in _TOPICS[topic] if self.holds(when)), "")

    def holds(self, condition: str) -> bool:
        """Return whether a condition holds: ``"zero and not sums"``; "" always does."""
        names = condition.split(" and ") if condition else []
        return all(bool(self[n.removeprefix("not ")]) is not n.startswith("not ") for n in names)


def filled(topic: str, *records: Any, **facts: Any) -> str:
    """Return the first text of a topic whose condition holds, filled in; "" where none does.

    Args:
        topic: A key of ``templates.toml``.
        records: Objects whose attributes may be named in the text and in the condition.
        facts: Further values of names; they come before attributes of records.

    Raises:
        KeyError: an unknown topic.
    """
    return _Facts(records, facts).text(topic)
