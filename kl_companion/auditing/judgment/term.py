"""The verdict on a loss in blocks: how it was read, what it minimizes, how far that is, the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.judgment import sampler, sentences
from kl_companion.auditing.judgment.card import WIDTH, CardBlock, CardLine, wrapped
from kl_companion.auditing.judgment.inputs import CLIP, WRONG_CLIP, notes, said_as
from kl_companion.auditing.judgment.signs import warning
from kl_companion.auditing.judgment.summary import number, row, rows, terms
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.fit.findings import Finding
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.auditing.reading.subject import Reading

_NO_CURL = 1e-5
_MANY = 12  # lines of a remedy, beyond which those that only show where it belongs are left out


def blocks(audit: Audit, *, details: bool = False) -> list[CardBlock]:
    """Return the blocks of a loss's card.

    Args:
        audit: The verdict.
        details: Every condition with residual and curl, the registered names, how names were read in full.
    """
    return [
        read_block(audit.reading),
        CardBlock(_headline(audit)),
        CardBlock(_table(audit)),
        CardBlock([x for text in notes(audit.inputs) for x in wrapped(text, "    ", "  ", 4)]),
        CardBlock(wrapped(sentences.inside(audit), "  ")),
        CardBlock(wrapped(sentences.first_update(audit), "  ", most=5), spare=4),
        CardBlock(
            wrapped(sentences.tool(audit), "  "), spare=int(audit.tool is not None and audit.tool.same)
        ),
        CardBlock(
            [x for text in said_as(CLIP, audit.inputs) for x in wrapped(text, "    ", "  ", 3)], spare=1
        ),
        CardBlock(wrapped(sentences.parts(audit), "  ")),
        CardBlock(wrapped(sampler.rest(audit), "  ")),
        CardBlock(wrapped(sentences.summed(audit), "  ")),
        CardBlock(wrapped(sentences.practice(audit), "  ", "", 4), spare=2),
        CardBlock(wrapped(sentences.beside(audit), "  ", most=4), spare=3),
        CardBlock(wrapped(sentences.groups(audit), "  ", most=3), spare=1),
        CardBlock(_remedy(audit, cut=not details)),
        CardBlock(_details(audit) if details else []),
    ]


def verdict_lines(audit: Audit) -> list[str]:
    """Headline and rows, plain: the verdict where a framework's own facts follow it."""
    return [line.text for line in (*_headline(audit), *_table(audit))]


def read_block(reading: Reading | None) -> CardBlock:
    """Return how each parameter was read; what was assumed is marked."""
    return CardBlock(wrapped(sentences.read_as(reading), "      ", "", 5, "dim"))


def _headline(audit: Audit) -> list[CardLine]:
    return [
        *wrapped(warning(audit.name, audit.main, audit.parts), most=3, style="bad"),
        *(x for text in said_as(WRONG_CLIP, audit.inputs) for x in wrapped(text, most=3, style="bad")),
        *wrapped(sampler.warning(audit), most=3, style="bad"),
        *wrapped(sentences.minimizes(audit), most=3, style="bold"),
        *wrapped(sentences.as_meant(audit), most=2, style="good" if audit.as_meant else "bad"),
        *wrapped(sentences.certainty(audit), most=2),
    ]


def _table(audit: Audit) -> list[CardLine]:
    found = rows(audit.findings)
    if audit.tool and not audit.tool.same:
        found.append(("tool inside", row(audit.tool.finding)))
    wide = max(len(where) for where, _ in found) + 2
    lines = []
    for where, what in found:
        lines += wrapped(what, " " * (wide + 2), f"  {where:<{wide}}", 3)
    return lines


def _remedy(audit: Audit, *, cut: bool) -> list[CardLine]:
    """Return the remedy: lines that go and come are whole; those that stay are cut, or left out of many."""
    if audit.remedy is None:
        return []
    lines = ["Instead:", *(f"  {line}" for line in audit.remedy.splitlines())]
    styles = {"  + ": "good", "  - ": "bad"}
    if cut:
        needed = ("Instead", "#", "def ", "class ", "async ", "@", "- ", "+ ")
        if len(lines) > _MANY:
            lines = [x for x in lines if x.strip().startswith(needed)]
        lines = [f"{x[: WIDTH - 4]} ..." if len(x) > WIDTH and x[:4] not in styles else x for x in lines]
    return [CardLine(x, styles.get(x[:4], "")) for x in lines]


def _details(audit: Audit) -> list[CardLine]:
    lines = [CardLine("Details")]
    if audit.same_as:
        lines.append(
            CardLine(f"  sample by sample {number(audit.same_as[1])} x {audit.same_as[0]}, differentiated")
        )
    for r in audit.reading.reads if audit.reading else ():
        lines += wrapped(f"{r.name}: {r.role}, {r.said}{f'; {r.note}' if r.note else ''}", "      ", "  ")
    for name, value, what in audit.reading.constants if audit.reading else ():
        lines.append(CardLine(f"  {name} = {value!r}: {what}"))
    if audit.reading and audit.reading.result:
        lines.append(CardLine(f"  result: {audit.reading.result}"))
    for f in audit.findings:
        lines += wrapped(f"{_where(f)}: {_named(f)}", "      ", "  ", 12)
    values = ", ".join(f"{number(c)} x {n}" for n, c in audit.value_matches.items())
    lines.append(CardLine(f"  value: estimates {values or 'none of the known objectives'}"))
    names = dict.fromkeys(t.objective for f in audit.findings for t in terms(f))
    return lines + [x for n in names for x in wrapped(f"{n}: {OBJECTIVES[n].words}", "      ", "  ")]


def _where(finding: Finding) -> str:
    if finding.condition is None:
        return "given worlds"
    c = finding.condition
    samples, size = ("stale" if c.off_policy else "fresh"), ("near" if c.scale <= 1 else "far")
    return f"{samples}, {size}, {'lengths vary' if c.eos else 'one length'}"


def _named(finding: Finding) -> str:
    if finding.zero:
        return "zero"
    unit = {u: f" / {u}" for u in UNITS if u} | {"": "", COMMON: " x batch"}
    said = " or ".join(
        " + ".join(f"{number(c)} x {n}{unit[units[n]]}" for n, c in m.items())
        for m, units in zip(finding.matches[:2], finding.units[:2], strict=True)
    )
    curl = finding.curl
    field = "curl not measured" if curl != curl else "no curl" if curl < _NO_CURL else f"curl {curl:.2g}"
    return f"{said or 'no known objective'} (residual {finding.residual:.0e}; {field})"
