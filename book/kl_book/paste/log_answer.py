"""A log as it was pasted or dropped into the page, and its report: bytes in, JSON out."""

from __future__ import annotations

import json
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from kl_companion.auditing.judgment.card import card
from kl_companion.monitor.logs import LogOptions, LogReport, log_report

PASTED = "pasted text"  # the name of a log that is no file


def log_answer(request: str, data: bytes) -> str:
    """Return the report of a log as JSON.

    Args:
        request: JSON of ``file`` (the name of a file, or nothing of a text), and of the fields of
            `LogOptions`, each a text; an empty one is not known.
        data: Content of the file, or the text in UTF-8.

    Returns:
        ``card`` (the report as ``kl-companion report --json`` prints it), ``text`` (the report as the
        command prints it) and ``sections``, lists of paragraphs with ``mark``, ``text`` and ``style``; or
        ``error``, the sentence with which the command ends.
    """
    fields = json.loads(request)
    name = Path(fields.pop("file") or PASTED).name
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        place = Path(folder) / name
        place.write_bytes(data)
        try:
            report = log_report(Path(name), _options(fields))
        except (ValueError, OSError) as error:
            return json.dumps({"error": str(error)})
    content = {"card": report.to_dict(), "text": card(report, height=None), "sections": _sections(report)}
    return json.dumps(content, allow_nan=False)


def _options(fields: dict[str, str]) -> LogOptions:
    numbers = {x: float(fields[x]) for x in ("beta", "answers", "group") if fields.get(x)}
    texts = {x: fields[x] for x in ("framework", "release") if fields.get(x)}
    return LogOptions(**texts, **numbers)  # type: ignore[arg-type]


def _sections(report: LogReport) -> list[list[dict[str, Any]]]:
    """Return the paragraphs of the report, which the page breaks into lines."""
    return [
        [{"mark": x.first.strip(), "text": x.text, "style": x.style} for x in section]
        for section in report.sections()
        if section
    ]
