"""The verdict on one screen: how it was read, what it minimizes, how far that is, what to write instead."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kl_companion.auditing.fit.explanations import COMMON, UNITS, VARIES
from kl_companion.auditing.judgment import sentences
from kl_companion.auditing.judgment.signs import warning
from kl_companion.auditing.judgment.summary import number, rows, terms
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.fit.findings import Finding
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.auditing.reading.subject import Reading

WIDTH, HEIGHT = 80, 24
_COLORS = {"bold": "1", "good": "32", "bad": "31", "dim": "2"}
_NO_CURL = 1e-5


def card(audit: Audit, *, details: bool = False, color: bool = False, height: int | None = HEIGHT) -> str:
    """The verdict as text, at most 80 columns wide and, without details, 24 lines high.

    Args:
        audit: The verdict.
        details: Every condition with residual and curl, the registered names, how names were read in full.
        color: With escape sequences for a terminal.
        height: Lines at most, where details are left out; None for as many as there are.
    """
    ink = _Ink(color)
    blocks = [
        [ink(x, "dim") for x in read_lines(audit.reading)],
        _headline(audit, ink),
        _table(audit),
        _wrapped(audit.dead_rewards, "  "),
        _wrapped(sentences.parts(audit), "  "),
        _wrapped(sentences.summed(audit), "  "),
        _practice(audit),
        _distances(audit),
        _groups(audit),
        _remedy(audit, ink, cut=not details),
    ]
    blocks = [b for b in blocks if b]
    if details:
        blocks.append(_details(audit))
    elif height is not None:  # what is least needed goes first
        for spare in (_groups, _practice, _distances):
            if _height(blocks) > height and spare(audit) in blocks:
                blocks.remove(spare(audit))
    text = [line for block in blocks for line in (*block, "")][:-1]
    if details or height is None or len(text) <= height:
        return "\n".join(text)
    return "\n".join([*text[: height - 1], "  ... (--details)"])


def _height(blocks: list[list[str]]) -> int:
    return sum(len(block) + 1 for block in blocks) - 1


def verdict_lines(audit: Audit) -> list[str]:
    """Headline and rows, plain: the verdict where a framework's own facts follow it."""
    return [*_headline(audit, _Ink(color=False)), *_table(audit)]


class _Ink:
    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, style: str) -> str:
        return f"\033[{_COLORS[style]}m{text}\033[0m" if self.color else text


def _wrapped(text: str, indent: str = "", first: str | None = None, most: int = 9) -> list[str]:
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1][: WIDTH - 4]} ..."]


def read_lines(reading: Reading | None) -> list[str]:
    """How each parameter was read; what was assumed is marked."""
    return _wrapped(sentences.read_as(reading), "      ", "", 5)


def _headline(audit: Audit, ink: _Ink) -> list[str]:
    lines = [ink(x, "bad") for x in _wrapped(warning(audit.name, audit.main), "", most=3)]
    lines += [ink(x, "bold") for x in _wrapped(sentences.minimizes(audit), "", most=3)]
    good = "good" if audit.as_meant else "bad"
    lines += [ink(x, good) for x in _wrapped(sentences.as_meant(audit), "", most=2)]
    return [*lines, *_wrapped(sentences.certainty(audit), "", most=2)]


def _practice(audit: Audit) -> list[str]:
    return _wrapped(sentences.practice(audit), "  ", "", 3)


def _distances(audit: Audit) -> list[str]:
    return _wrapped(sentences.beside(audit), "  ", most=4)


def _groups(audit: Audit) -> list[str]:
    return _wrapped(sentences.groups(audit), "  ", most=3)


def _table(audit: Audit) -> list[str]:
    found = rows(audit.findings)
    wide = max(len(where) for where, _ in found) + 2
    lines = []
    for where, what in found:
        lines += _wrapped(what, " " * (wide + 2), f"  {where:<{wide}}", 2)
    return lines


def _remedy(audit: Audit, ink: _Ink, *, cut: bool) -> list[str]:
    """Return the remedy: lines that are to be written are printed in full, the reader's own may be cut."""
    if audit.remedy is None:
        return []
    lines = ["Instead:", *(f"  {line}" for line in audit.remedy.splitlines())]
    if cut:
        lines = [f"{x[: WIDTH - 4]} ..." if len(x) > WIDTH and x[:4] != "  + " else x for x in lines]
    styles = {"  + ": "good", "  - ": "bad"}
    return [ink(x, styles[x[:4]]) if x[:4] in styles else x for x in lines]


def _details(audit: Audit) -> list[str]:
    lines = ["Details"]
    if audit.same_as:
        lines.append(f"  sample by sample {number(audit.same_as[1])} x {audit.same_as[0]}, differentiated")
    for r in audit.reading.reads if audit.reading else ():
        lines += _wrapped(f"{r.name}: {r.role}, {r.said}{f'; {r.note}' if r.note else ''}", "      ", "  ")
    for name, value, what in audit.reading.constants if audit.reading else ():
        lines.append(f"  {name} = {value!r}: {what}")
    if audit.reading and audit.reading.result:
        lines.append(f"  result: {audit.reading.result}")
    for f in audit.findings:
        lines += _wrapped(f"{_where(f)}: {_named(f)}", "      ", "  ", 12)
    values = ", ".join(f"{number(c)} x {n}" for n, c in audit.value_matches.items())
    lines.append(f"  value: estimates {values or 'none of the known objectives'}")
    names = dict.fromkeys(t.objective for f in audit.findings for t in terms(f))
    return lines + [x for n in names for x in _wrapped(f"{n}: {OBJECTIVES[n].words}", "      ", "  ")]


def _where(finding: Finding) -> str:
    if finding.condition is None:
        return "given worlds"
    c = finding.condition
    samples, size = ("stale" if c.off_policy else "fresh"), ("near" if c.scale <= 1 else "far")
    return f"{samples}, {size}, {'lengths vary' if c.eos else 'one length'}"


def _named(finding: Finding) -> str:
    if finding.zero:
        return "zero"
    unit = {u: f" / {u}" for u in UNITS if u} | {"": "", COMMON: " x batch", VARIES: " (varies)"}
    said = " or ".join(
        " + ".join(f"{number(c)} x {n}{unit[units[n]]}" for n, c in m.items())
        for m, units in zip(finding.matches[:2], finding.units[:2], strict=True)
    )
    curl = finding.curl
    field = "curl not measured" if curl != curl else "no curl" if curl < _NO_CURL else f"curl {curl:.2g}"
    return f"{said or 'no known objective'} (residual {finding.residual:.0e}; {field})"
