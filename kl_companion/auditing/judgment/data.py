"""The verdict as plain data: what ``kl-companion audit --json`` prints.

``schema`` is 1. Numbers that could not be told are null.

* ``name``, ``placement``, ``headline`` (one of ``summary.HEADLINES``), ``level``
  (``"token"``, ``"sequence"``, ``"both"`` or ""), ``sentence``, ``warning`` (wrong signs, else "");
* ``terms`` of fresh samples near the reference: ``objective``, ``coefficient``, ``unit`` (``"batch"``: times
  a positive number of the batch), ``sign`` (1 or -1);
* ``conditions``: for each, ``samples`` (``"fresh"``, ``"stale"`` or ``"given"``), ``ratios`` (``"near"`` or
  ``"far"``), ``lengths`` (``"one"`` or ``"many"``), ``inside`` (``"tool"`` where answers contain
  a tool's text, else ""), ``batch`` (``"large"``, or answers per group), ``headline``, ``level``, ``terms``,
  ``residual``;
* ``first_update``: a condition whose old policy is the policy itself, where the loss reads another sampler
  beside it, else null;
* ``batch``: ``couples``, ``sums`` (then coefficients are those of one answer), ``groups`` (``size``,
  ``degrees``, ``ratio``, ``fails``);
* ``inputs``: for each input of a function, and for what several do together, ``name``, ``role``, ``effect``
  (one of ``inputs.EFFECTS``), ``detail`` (a sentence, or "");
* ``inside``: what it minimizes with zeros outside the mask, "" unless numbers there hide it;
* ``distances``: ``kl``, ``degrees``, ``percent`` (null where the loss has an unknown factor of the batch)
  beside ``coefficient`` (that of the loss, 1 where it names none) times ``compared``, in ``unit``;
* ``want``, ``met``, ``meant``, ``as_meant``, ``remedy``;
* ``read``: ``parameters`` (``name``, ``role``, ``said``, ``note``), ``constants``, ``result``;
* ``versions``.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kl_companion.auditing.judgment.sentences import inside, warnings
from kl_companion.auditing.judgment.summary import headline, level, row, terms, unit_of

if TYPE_CHECKING:
    from kl_companion.auditing.fit.findings import Finding
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.auditing.reading.subject import Reading

SCHEMA = 1
_PLAIN = (str, int, float, bool, type(None))


def to_dict(audit: Audit) -> dict[str, Any]:
    """Return the verdict as dicts, lists, texts, numbers and None."""
    main, first, tool = audit.main, audit.first_update, [audit.tool.finding] if audit.tool else []
    return finite(
        {
            "schema": SCHEMA,
            "name": audit.name,
            "placement": audit.placement,
            "headline": audit.headline,
            "level": level(main),
            "sentence": row(main),
            "warning": " ".join(warnings(audit)),
            "terms": terms(main),
            "conditions": [_condition(f, audit.group_size) for f in (*audit.findings, *tool)],
            "first_update": _condition(first, None) if first else None,
            "batch": {"couples": main.couples, "sums": main.sums, "groups": main.gaps},
            "inputs": audit.inputs,
            "inside": inside(audit),
            "compared": audit.compared,
            "coefficient": abs(audit.coefficient[1] or 1.0),
            "unit": unit_of(main),
            "distances": audit.distances,
            "want": audit.want,
            "met": audit.met,
            "meant": audit.meant[1] if audit.meant else None,
            "as_meant": audit.as_meant,
            "remedy": audit.remedy,
            "read": reading_data(audit.reading),
            "versions": versions(),
        }
    )


def _condition(finding: Finding, group_size: int | None) -> dict[str, Any]:
    c = finding.condition
    return {
        "samples": "given" if c is None else "stale" if c.off_policy else "fresh",
        "ratios": None if c is None else "near" if c.scale <= 1 else "far",
        "lengths": None if c is None else "many" if c.eos else "one",
        "inside": None if c is None else "tool" if c.tool else "",
        "batch": "large" if group_size is None else group_size,
        "headline": headline(finding),
        "level": level(finding),
        "terms": terms(finding),
        "residual": finding.residual,
    }


def reading_data(reading: Reading | None) -> dict[str, Any]:
    """Return how the parameters of a function were read; nothing of what has none."""
    constants = (
        {n: v if isinstance(v, _PLAIN) else repr(v) for n, v, _ in reading.constants} if reading else {}
    )
    return {
        "parameters": finite(reading.reads) if reading else [],
        "constants": constants,
        "result": reading.result if reading else "",
    }


def finite(data: Any) -> Any:
    """Return data as JSON has it: dicts for records, lists for tuples, None for NaN and infinity."""
    if hasattr(data, "_asdict"):
        return finite(data._asdict())
    if isinstance(data, Mapping):
        return {name: finite(x) for name, x in data.items()}
    if isinstance(data, list | tuple):
        return [finite(x) for x in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def versions() -> dict[str, str]:
    """Return those of the package, of torch and of Python."""
    from kl_companion import __version__  # no metadata: a checkout that is not installed has none

    return {"kl_companion": __version__, "torch": torch.__version__, "python": platform.python_version()}
