"""The verdict on one screen: how it was read, what it minimizes, how far that is, what to write instead."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kl_companion.auditing.matching import UNITS, VARIES
from kl_companion.auditing.objectives import OBJECTIVES
from kl_companion.auditing.summary import NOTHING, UNNAMED, effects, headline, number, row, rows, terms

if TYPE_CHECKING:
    from kl_companion.auditing.adapt import Reading
    from kl_companion.auditing.findings import Finding
    from kl_companion.auditing.verdict import Audit

WIDTH, HEIGHT = 80, 24
_COLORS = {"bold": "1", "good": "32", "bad": "31", "dim": "2"}
_NO_CURL = 1e-5
_THEIRS = ("  - ", "  de")  # lines of the reader's own, which may be cut


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
        _summed(audit),
        _practice(audit),
    ]
    blocks = [
        b for b in (*blocks, _distances(audit), _groups(audit), _remedy(audit, ink, cut=not details)) if b
    ]
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
    if reading is None or not (reading.reads or reading.constants):
        return []
    said: dict[str, list[str]] = {}
    for r in reading.reads:
        what = r.said.removeprefix("whole-vocabulary ").partition(":")[0]
        said.setdefault(what, []).append(r.name + ("*" if "no word for whose" in r.note else ""))
    parts = [f"{', '.join(names)} = {what}" for what, names in said.items()]
    parts += [f"{name} = {value!r}" for name, value, _ in reading.constants]
    if any("no word for whose" in r.note for r in reading.reads):
        parts.append("(* by default: nothing says whose)")
    return _wrapped("; ".join(parts), "      ", "Read: ", 5)


def _headline(audit: Audit, ink: _Ink) -> list[str]:
    finding = audit.main
    kind = headline(finding)
    if kind == NOTHING and finding.zero:
        said = f"{audit.name} minimizes nothing: its expected gradient is zero."
    elif kind == NOTHING:
        said = f"{audit.name} has no KL term that acts: it minimizes {row(finding)}."
    elif kind == UNNAMED and not finding.matches:
        said = f"{audit.name} minimizes no objective that is known here."
    else:
        said = f"{audit.name} minimizes {row(finding)}."
    lines = [ink(x, "bold") for x in _wrapped(said, "", most=3)]
    meant = audit.meant
    if meant:
        good = audit.as_meant
        verdict = f"That is what {meant[0]}." if good else f"That is not what {meant[0]}."
        lines += [ink(x, "good" if good else "bad") for x in _wrapped(verdict, "", most=2)]
    return [*lines, *_wrapped(_certainty(audit), "", most=2)]


def _certainty(audit: Audit) -> str:
    """How sure the headline is."""
    finding = audit.main
    worlds = f"four small worlds of {audit.head + 2} tokens" if audit.head else "four small worlds"
    where = f"{worlds}, every answer counted" if finding.condition else "the given worlds"
    if finding.zero:
        return f"Exact on {where}."
    if not finding.matches:
        return f"The nearest sum of known objectives misses by {100 * finding.residual:.2g} % on {where}."
    if finding.residual < 1e-9:
        return f"Exact on {where}: what is left is rounding."
    return f"All but {finding.residual:.0e} of it, on {where}: a small constant, such as log(p + 1e-8)."


def _table(audit: Audit) -> list[str]:
    found = rows(audit.findings)
    wide = max(len(where) for where, _ in found) + 2
    lines = []
    for where, what in found:
        lines += _wrapped(what, " " * (wide + 2), f"  {where:<{wide}}", 2)
    return lines


def _summed(audit: Audit) -> list[str]:
    if not audit.main.sums or audit.main.zero:
        return []
    said = "It is a sum over the batch, and the above is the part of one answer:"
    return _wrapped(f"{said} a batch of twice the size makes twice the step.", "  ")


def _practice(audit: Audit) -> list[str]:
    said = effects(audit.main)
    return _wrapped(" ".join(said), "  ", "In practice: ", 3) if said else []


def _distances(audit: Audit) -> list[str]:
    if audit.head and audit.main.matches:
        return _wrapped(f"How far that is from the KL of all tokens depends on {_rest(audit.head)}.", "  ")
    if not audit.distances:
        return []
    what = OBJECTIVES[audit.compared].short
    long = ["" if d.percent != d.percent else f", {d.percent:.0f} % long" for d in audit.distances]
    parts = [f"{d.kl:g}: {d.degrees:.0f}° turned{x}" for d, x in zip(audit.distances, long, strict=True)]
    return _wrapped(f"Beside the gradient of {what}, at a KL per token of {'; '.join(parts)}.", "  ", most=3)


def _rest(k: int) -> str:
    return f"how much probability is outside the {'likeliest token' if k == 1 else f'{k} likeliest'}"


def _groups(audit: Audit) -> list[str]:
    gaps = audit.main.gaps
    if not gaps:
        return []
    said = "It couples the answers of a batch: the above is for large ones."
    parts = [f"{g.size}: {g.degrees:.0f}° turned, {100 * g.ratio:.0f} % long" for g in gaps if not g.fails]
    if parts:
        said += f" In groups of {'; '.join(parts)}."
    if fails := [str(g.size) for g in gaps if g.fails]:
        said += f" Some groups of {', '.join(fails)} have no gradient (NaN), as those of equal rewards."
    return _wrapped(said, "  ", most=3)


def _remedy(audit: Audit, ink: _Ink, *, cut: bool) -> list[str]:
    if audit.remedy is None:
        return []
    lines = ["Instead:", *(f"  {line}" for line in audit.remedy.splitlines())]
    if cut:
        lines = [f"{x[: WIDTH - 4]} ..." if len(x) > WIDTH and x[:4] in _THEIRS else x for x in lines]
        if max(map(len, lines)) > WIDTH:
            return ["Instead: see --details."]
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
    unit = {u: f" / {u}" for u in UNITS if u} | {"": "", VARIES: " (varies)"}
    said = " or ".join(
        " + ".join(f"{number(c)} x {n}{unit[units[n]]}" for n, c in m.items())
        for m, units in zip(finding.matches[:2], finding.units[:2], strict=True)
    )
    curl = finding.curl
    field = "curl not measured" if curl != curl else "no curl" if curl < _NO_CURL else f"curl {curl:.2g}"
    return f"{said or 'no known objective'} (residual {finding.residual:.0e}; {field})"
