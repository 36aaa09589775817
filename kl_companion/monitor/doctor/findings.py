"""What the doctor says: a finding, with the line that it is about and what to write there."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from kl_companion.monitor.doctor.tracing import Line

Level = Literal["wrong", "unchecked", "attention", "fine"]


class DoctorFinding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What it is about, one word or two: "mask", "reference".
        level: ``"wrong"``: the step does not do what it says; ``"unchecked"``: that could not be measured;
            ``"attention"``: the step does, and that is not what one would expect; ``"fine"``: measured.
        said: What was found, with its size.
        line: The line to mend; None where there is none, or where nothing is to be mended.
        instead: What to write there.
        fault: Which known mistake it is: a key of `FAULTS`; "" for none.
    """

    name: str
    level: Level
    said: str
    line: Line | None = None
    instead: str = ""
    fault: str = ""


_DATA = tomllib.loads((files("kl_companion.monitor.doctor") / "findings.toml").read_text("utf-8"))
FAULTS: dict[str, str] = _DATA["faults"]


def finding(key: str, at: Line | None = None, /, **gaps: Any) -> DoctorFinding:
    """Return the finding ``name.what`` of findings.toml, with the gaps of its texts filled."""
    name, _, what = key.partition(".")
    row = _DATA[name][what]
    said, instead = (row.get(text, "").format(**gaps) for text in ("said", "instead"))
    return DoctorFinding(name, row["level"], said, at, instead, row.get("fault", ""))
