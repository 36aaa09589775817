"""Results of reading a name: read as something of one of three models, or not read."""

from __future__ import annotations

from typing import NamedTuple

OWNERS = {"policy": "the current policy", "reference": "the reference", "behavior": "the policy that sampled"}
PREFIX = {"policy": "", "reference": "ref_", "behavior": "behavior_"}
HELPER = "a function that is not in the text"
ASSUMED = "no word for whose they are: read as the current policy's"


class Read(NamedTuple):
    """How one name was read.

    Attributes:
        name: Theirs.
        role: Ours, one of `kl_companion.auditing.reading.names.ROLES`.
        said: For the reader: "log-probs of the current policy".
        note: What was assumed, if anything.
    """

    name: str
    role: str
    said: str
    note: str = ""

    @property
    def by_default(self) -> bool:
        """Whether nothing said whose it is."""
        return ASSUMED in self.note


class Unread(NamedTuple):
    """A name that was not read.

    Attributes:
        name: Theirs.
        why: A sentence without its full stop.
        suggestions: Roles of the same quantity, and of the same owner where the name says one.
    """

    name: str
    why: str
    suggestions: tuple[str, ...] = ()
