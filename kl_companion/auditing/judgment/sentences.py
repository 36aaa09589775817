"""What a verdict says, sentence by sentence: for the card of the command line, and for a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.fit.least_squares import TOLERANCE
from kl_companion.auditing.fit.observations import LARGEST_GROUP
from kl_companion.auditing.fit.parts import REWARDS
from kl_companion.auditing.judgment.summary import (
    UNREGULARIZED,
    effects,
    headline,
    maximized,
    number,
    regularizers,
    row,
    stale_finding,
    terms,
    unit_of,
    wrong_signs,
)
from kl_companion.auditing.judgment.templates import filled
from kl_companion.auditing.reading.arguments import ATTENDED, anchors_apart
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.fit.findings import Finding
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.auditing.reading.subject import Reading

_CLEAR = 90.0  # degrees from E[R] below which a step lowers it
_SECOND = 1.5  # between the orders 1 and 2


def read_as(reading: Reading | None) -> str:
    """Return how each parameter was read; what was assumed is marked."""
    if reading is None or not (reading.reads or reading.constants):
        return ""
    names_of: dict[str, list[str]] = {}
    for r in reading.reads:
        role = r.said.removeprefix("whole-vocabulary ").partition(":")[0]
        names_of.setdefault(role, []).append(r.name + "*" * r.by_default)
    parts = [f"{', '.join(names)} = {role}" for role, names in names_of.items()]
    parts += [f"{name} = {value!r}" for name, value, _ in reading.constants]
    parts += [f"tensors are {reading.layout.words}"] * bool(reading.layout.words)
    if ", not " in (taken := reading.result.partition(": ")[0]):
        parts.append(f"loss = {taken}")
    assumed = any(r.by_default for r in reading.reads)
    text = f"Read: {'; '.join(parts)}{' (*: assumed; the name does not say whose)' * assumed}"
    return ". ".join([text, *reading.notes])


def warnings(audit: Audit) -> list[str]:
    """Return sentences on wrong signs: a reward that is minimized, a distance that is maximized."""
    near = [p.near for p in audit.parts if p.subject == REWARDS and p.near]
    wrong = [n.objective for n in near if n.sign > 0 and n.most < _CLEAR]
    wrong += [t.objective for f in (audit.main, *(p.finding for p in audit.parts)) for t in wrong_signs(f)]
    signs = dict.fromkeys(map(_wrong_sign, wrong))
    sentences = [filled("wrong_signs", audit, signs="; it ".join(signs))] if signs else []
    away, stale = terms(audit.anchored) if audit.anchored else (), stale_finding(audit.findings)
    # beside a KL to the reference it may be right: an advantage of old log-ratios is a reward that is frozen
    regularizing = [*away, *(regularizers(stale) if stale else ())]
    if away and all(t.sign < 0 for t in regularizing):
        sentences.append(filled("stale_signs", audit, terms=" and ".join(t.short for t in away)))
    return sentences


def _wrong_sign(objective: str) -> str:
    of = OBJECTIVES[objective]
    return filled("wrong_sign", of, pushes="away from the " in of.opposite)


def minimizes(audit: Audit) -> str:
    """Return what a loss minimizes: the headline."""
    main, held = audit.main, audit.anchored
    at_once = held and main.condition == held.condition  # it acts on fresh samples too
    roles = [r.role for r in audit.reading.reads] if audit.reading else []
    return filled(
        "minimizes",
        audit,
        main,
        **_words(main),
        anchored=row(main if at_once and main.matches else held) if held else "",
        at_once=at_once,
        unregularized=headline(main) == UNREGULARIZED,
        reads_reference=any(role.startswith("ref_") or role == "log_ratio" for role in roles),
        tool_same=audit.tool and audit.tool.same,
    )


def _words(finding: Finding) -> dict[str, Any]:
    """Return facts for sentences about a finding, beside its attributes."""
    return {
        "row": row(finding),
        "maximized": maximized(finding),
        "exact": finding.residual < TOLERANCE,
        "percent": 100 * finding.residual,
        "common": any(t.unit == COMMON for t in terms(finding)),
    }


def as_meant(audit: Audit) -> str:
    """Return whether that is what was wanted, or what the name of the loss says; "" where nobody says."""
    return filled("as_meant", audit, who=audit.meant[0] if audit.meant else "")


def certainty(audit: Audit) -> str:
    """Return how sure the headline is."""
    size = audit.group_size or 1
    few = size > (1 if audit.head else LARGEST_GROUP)
    facts = {"few": few, "grouped": size > 1, "vocab": audit.head + 2, **_words(audit.main)}
    return filled("certainty", audit, audit.main, **facts)


def parts(audit: Audit) -> str:
    """Return what is known of a loss that is no known objective."""
    sentences, explained = [], inside(audit)
    for piece in audit.parts:
        if explained and piece.near:  # by numbers outside the mask, of which nothing is near
            continue
        facts = {"of_rewards": piece.subject == REWARDS, **_words(piece.finding)}
        if near := piece.near:
            facts["objective"] = "- " * (near.sign < 0) + OBJECTIVES[near.objective].short
            facts["even"] = f"{near.least:.0f}" == f"{near.most:.0f}"
        sentences.append(filled("part", piece, piece.finding, near, **facts))
    return " ".join(sentences)


def first_update(audit: Audit) -> str:
    """Return what a loss does at the first update on a batch of another sampler; "" where it reads no two."""
    names = anchors_apart(audit.reading.reads) if audit.reading else None
    finding = audit.first_update
    if finding is None or names is None:
        return ""
    return filled("first_update", finding, old=names[0], sampler=names[1], row=row(finding))


def tool(audit: Audit) -> str:
    """Return whether and how a tool's text inside an answer enters the loss; "" where that was not tried."""
    reads = audit.reading.reads if audit.reading else ()
    named = [r.name for r in reads if r.role == "lengths" or ATTENDED.search(r.name)]
    counting, are = " and ".join(named), "are" if len(named) > 1 else "is"
    return filled("tool", audit.tool, counting=counting, are=are) if audit.tool else ""


def inside(audit: Audit) -> str:
    """Return what a loss minimizes with zeros outside the mask, where numbers there hide it."""
    finding = audit.inside
    return filled("inside", row=row(finding)) if finding and (finding.matches or finding.zero) else ""


def unrewarded(audit: Audit) -> str:
    """Return what is known of a loss on stale samples where rewards have no known objective."""
    return filled("unrewarded", row=row(audit.unrewarded)) if audit.unrewarded else ""


def summed(audit: Audit) -> str:
    """Return that the batch is summed over, where it is."""
    return filled("summed", audit.main)


def practice(audit: Audit) -> str:
    """Return what follows for the policy."""
    held, main = audit.anchored, audit.main
    each = [] if held is None or held.condition == main.condition else effects(held)
    if not (each and main.zero):
        each = [*effects(main), *each]
    return filled("practice", several=len(each) > 1, each=" ".join(each))


def beside(audit: Audit) -> str:
    """Return how far the gradient is from the one that was meant."""
    name, coefficient = audit.coefficient
    size, unit = abs(coefficient or 1.0), unit_of(audit.main)
    compared = f"{number(size)} x " * (size != 1) + OBJECTIVES[audit.compared].short
    if unit in ("tokens", "positions"):
        compared = f"[{compared}] / {UNITS[unit]}"
    each = [f"{d.kl:g}, turned by {d.degrees:.0f}°{_length(d.percent / 100)}" for d in audit.distances]
    facts = {"single": audit.head == 1, "scaled": size != 1, "second_order": audit.order > _SECOND}
    words = {"beta": name, "value": number(coefficient or 1.0), "compared": compared}
    return filled("beside", audit, audit.main, at="; at ".join(each), **words, **facts)


def _length(ratio: float) -> str:
    return "" if ratio != ratio else f" and {times(ratio)} times as long"


def times(ratio: float) -> str:
    """Return a positive factor with two or three significant digits: 0.0065, 0.50, 9.81, 1240."""
    ratio = float(f"{ratio:.3g}")
    if not 1e-4 <= ratio < 1e6:
        return f"{ratio:.2e}"
    two_digits = ratio < 1 and f"{ratio:e}"[0] != "1"  # after a leading 1 the second digit says less
    return f"{ratio:.{max(0, 2 - math.floor(math.log10(ratio)) - two_digits)}f}"


def groups(audit: Audit) -> str:
    """Return what small groups do, where a loss couples the answers of a batch."""
    gaps = audit.main.gaps
    turned = [g for g in gaps if not math.isnan(g.degrees)]
    apart = {
        r: ", ".join(str(g.size) for g in gaps if g not in turned and g.ratio == r) for r in (math.inf, 0)
    }
    return filled(
        "groups",
        audit.main,
        parts="; of ".join(f"{g.size}, turned by {g.degrees:.0f}°{_length(g.ratio)}" for g in turned),
        not_zero=apart[math.inf],
        no_gradient=apart[0],
        fails=", ".join(str(g.size) for g in gaps if g.fails),
    )
