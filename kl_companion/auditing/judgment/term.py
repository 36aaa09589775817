"""The verdict on a loss in blocks: how it was read, what it minimizes, how far that is, the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.judgment import sentences
from kl_companion.auditing.judgment.card import WIDTH, CardBlock, CardLine, wrapped
from kl_companion.auditing.judgment.inputs import CLIP, WRONG_CLIP, notes, said_as
from kl_companion.auditing.judgment.summary import number, row, rows, terms
from kl_companion.auditing.reading.subject import Reading
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.fit.findings import Finding
    from kl_companion.auditing.judgment.verdict import Audit

_NO_CURL = 1e-5
_MANY = 12  # lines of a remedy, beyond which those that only show where it belongs are left out


def blocks(audit: Audit, *, details: bool = False) -> list[CardBlock]:
    """Return the blocks of a loss's card.

    Args:
        audit: The verdict.
        details: Every condition with residual and curl, the registered names, how names were read in full.
    """
    tool_spare = int(audit.tool is not None and audit.tool.same)
    return [
        read_block(audit.reading),
        CardBlock(_headline(audit)),
        CardBlock(_table(audit)),
        _block(notes(audit.inputs), 4, indent="    "),
        _block([sentences.inside(audit)]),
        _block([sentences.first_update(audit)], 5, spare=4),
        _block([sentences.tool(audit)], spare=tool_spare),
        _block(said_as(CLIP, audit.inputs), 3, spare=1, indent="    "),
        _block([sentences.parts(audit)]),
        _block([sentences.unrewarded(audit)]),
        _block([sentences.summed(audit)]),
        _block([sentences.practice(audit)], 4, spare=2, first=""),
        _block([sentences.beside(audit)], 4, spare=3),
        _block([sentences.groups(audit)], 3, spare=1),
        CardBlock(_remedy(audit, cut=not details)),
        CardBlock(_details(audit) if details else []),
    ]


def _block(
    texts: Sequence[str], most: int = 9, *, spare: int = 0, indent: str = "  ", first: str = "  "
) -> CardBlock:
    return CardBlock([line for text in texts for line in wrapped(text, indent, first, most)], spare)


def verdict_lines(audit: Audit) -> list[str]:
    """Headline and rows, plain: the verdict where a framework's own facts follow it."""
    return [line.text for line in (*_headline(audit), *_table(audit))]


def read_block(reading: Reading | None) -> CardBlock:
    """Return how each parameter was read; what was assumed is marked."""
    return CardBlock(wrapped(sentences.read_as(reading), "      ", "", 5, "dim"))


def _headline(audit: Audit) -> list[CardLine]:
    wrong = [*sentences.warnings(audit), *said_as(WRONG_CLIP, audit.inputs)]
    return [
        *(line for text in wrong for line in wrapped(text, most=3, style="bad")),
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
    reading = audit.reading or Reading()
    texts = [
        f"sample by sample {number(c)} x {n}, differentiated" for n, c in [audit.same_as or ("", 0.0)] if n
    ]
    texts += [f"{r.name}: {r.role}, {r.said}{f'; {r.note}' if r.note else ''}" for r in reading.reads]
    texts += [f"{name} = {value!r}: {meaning}" for name, value, meaning in reading.constants]
    texts += [f"result: {reading.result}"] * bool(reading.result)
    texts += [f"{_where(f)}: {_named(f)}" for f in audit.findings]
    values = ", ".join(f"{number(c)} x {n}" for n, c in audit.value_matches.items())
    texts.append(f"value: estimates {values or 'none of the known objectives'}")
    names = dict.fromkeys(t.objective for f in audit.findings for t in terms(f))
    texts += [f"{n}: {OBJECTIVES[n].words}" for n in names]
    return [CardLine("Details"), *(line for text in texts for line in wrapped(text, "      ", "  ", 12))]


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
