"""What a verdict says, sentence by sentence: for the card of the command line, and for a page."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.fit.least_squares import TOLERANCE
from kl_companion.auditing.fit.observations import LARGEST_GROUP
from kl_companion.auditing.fit.parts import REWARDS
from kl_companion.auditing.judgment import sampler
from kl_companion.auditing.judgment.summary import (
    NOTHING,
    UNNAMED,
    UNREGULARIZED,
    effects,
    headline,
    number,
    row,
    terms,
    unit_of,
)
from kl_companion.auditing.reading.arguments import ATTENDED, anchors_apart
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.auditing.reading.subject import Reading

_SECOND = 1.5  # between the orders 1 and 2


def read_as(reading: Reading | None) -> str:
    """How each parameter was read; what was assumed is marked."""
    if reading is None or not (reading.reads or reading.constants):
        return ""
    names_of: dict[str, list[str]] = {}
    for r in reading.reads:
        what = r.said.removeprefix("whole-vocabulary ").partition(":")[0]
        names_of.setdefault(what, []).append(r.name + ("*" if "no word for whose" in r.note else ""))
    parts = [f"{', '.join(names)} = {what}" for what, names in names_of.items()]
    parts += [f"{name} = {value!r}" for name, value, _ in reading.constants]
    parts += [f"tensors are {reading.layout.words}"] * bool(reading.layout.words)
    if ", not " in (taken := reading.result.partition(": ")[0]):
        parts.append(f"loss = {taken}")
    assumed = any("no word for whose" in r.note for r in reading.reads)
    said = f"Read: {'; '.join(parts)}{' (*: assumed; the name does not say whose)' * assumed}"
    return ". ".join([said, *reading.notes])


def minimizes(audit: Audit) -> str:
    """What it minimizes: the headline."""
    finding = audit.main
    kind = headline(finding)
    where = "" if audit.tool is None or audit.tool.same else ", in answers without text of a tool"
    fresh = _rewards_only(finding) if kind == UNREGULARIZED else f"minimizes {row(finding)}"
    if sampled := sampler.minimizes(audit, fresh if finding.matches else ""):
        return f"{sampled}{where}."
    if kind == NOTHING:
        return f"{audit.name} minimizes nothing: its expected gradient is zero{where}."
    if kind == UNREGULARIZED:
        roles = [r.role for r in audit.reading.reads] if audit.reading else []
        read = any(role.startswith("ref_") or role == "log_ratio" for role in roles)
        kl = "no KL term acts" if read else "has no KL term"
        if read and finding.residual >= TOLERANCE:
            kl = f"its KL term is {finding.residual:.0e} of its gradient"
        return f"{audit.name} {_rewards_only(finding)}{where}, and {kl}."
    if kind == UNNAMED and not finding.matches:
        return f"{audit.name} minimizes no objective that is known here."
    return f"{audit.name} minimizes {row(finding)}{where}."


def _rewards_only(finding: Finding) -> str:
    """Return what is maximized, where all terms are; else what is minimized."""
    if any(t.sign > 0 for t in terms(finding)):
        return f"minimizes {row(finding)}"
    turned = tuple({n: -c for n, c in match.items()} for match in finding.matches)
    words = row(replace(finding, matches=turned))
    return f"maximizes {'E[R]' if words == OBJECTIVES['expected_reward'].short else words}"


def as_meant(audit: Audit) -> str:
    """Whether that is what was wanted, or what the name of the loss says; "" where nobody says."""
    if not audit.meant:
        return ""
    return f"That is{'' if audit.as_meant else ' not'} what {audit.meant[0]}."


def certainty(audit: Audit) -> str:
    """How sure the headline is."""
    finding = audit.main
    few = audit.group_size is not None and audit.group_size > (1 if audit.head else LARGEST_GROUP)
    worlds = f"{'three' if few else 'four'} small worlds{f' of {audit.head + 2} tokens' * bool(audit.head)}"
    answers = "answer" if audit.group_size in (None, 1) else f"group of {audit.group_size} answers"
    where = f"{worlds}, with every {answers} enumerated" if finding.condition else "the given worlds"
    where += f", as {audit.group_source} says" * bool(audit.group_source)
    if finding.zero:
        return f"Exact on {where}."
    if not finding.matches:
        return f"The nearest sum of known objectives misses by {100 * finding.residual:.2g} % on {where}."
    units = {t.unit for t in terms(finding)}
    if COMMON in units:
        return f"One positive factor was fitted to each of {where}; what is in brackets holds on all of them."
    if finding.residual < TOLERANCE:
        return f"Exact up to rounding on {where}."
    return f"All but {finding.residual:.0e} of it, on {where}: a small constant, such as log(p + 1e-8)."


def parts(audit: Audit) -> str:
    """Return what is known of a loss that is no known objective."""
    sentences = []
    for subject, finding, near in audit.parts:
        what = "has no expected gradient" if finding.zero else f"minimizes {row(finding)}"
        if near is not None:
            low, high = f"{near.least:.0f}°", f"{near.most:.0f}°"
            turned = low if low == high else f"{low} to {high}"
            name = f"{'- ' * (near.sign < 0)}{OBJECTIVES[near.objective].short}"
            what = f"is nearest to that of {name}: turned by {turned}"
            if subject == REWARDS:
                what = f"is turned by {turned} from that of {name}"
        sentences.append(f"{subject} {what}.")
    return " ".join(sentences)


def first_update(audit: Audit) -> str:
    """Return what a loss does at the first update on a batch of another sampler; "" where it reads no two."""
    names = anchors_apart(audit.reading.reads) if audit.reading else None
    if audit.first_update is None or names is None:
        return ""
    does = f"minimizes {row(audit.first_update)}" if audit.first_update.matches else "is no known objective"
    does = "has no expected gradient" if audit.first_update.zero else does
    old, sampler = names
    said = f"Stale samples: {old} and {sampler} are of one policy here."
    return f"{said} At a first update, with {old} of the policy itself and {sampler} of another, it {does}."


def tool(audit: Audit) -> str:
    """Return whether and how a tool's text inside an answer enters the loss; "" where that was not tried."""
    text = audit.tool
    if text is None:
        return ""
    if text.same:
        return "With text of a tool inside answers it does the same."
    reads = audit.reading.reads if audit.reading else ()
    named = [r.name for r in reads if r.role == "lengths" or ATTENDED.search(r.name)]
    verb = "are" if len(named) > 1 else "is"
    why = f" ({' and '.join(named)} {verb} read as counting them)" if named else ""
    if text.trained:
        lost = "; tokens that the policy wrote get none" * text.lost
        return f"A tool's tokens are trained on: their logits get gradient{why}{lost}."
    if text.before or text.after:
        where = "answer's own tokens" if text.before else "tokens after"
        where = f"the gradient of the {where}" if text.after else "the returns of the tokens before"
        return f"A tool's tokens enter: their log-probs count in {where}{why}."
    lost = "Tokens that the policy wrote get no gradient beside a tool's text. " * text.lost
    return lost or f"A tool's tokens are counted: a length or a mean of the answer includes them{why}."


def inside(audit: Audit) -> str:
    """What a loss minimizes with zeros outside the mask, where numbers there change it and it is known."""
    known = audit.inside is not None and (audit.inside.matches or audit.inside.zero)
    return f"With zeros outside the mask it minimizes {row(audit.inside)}." if audit.inside and known else ""


def summed(audit: Audit) -> str:
    """That the batch is summed over, where it is."""
    if not audit.main.sums or audit.main.zero:
        return ""
    said = "It is a sum over the batch, and the above is the part of one answer:"
    return f"{said} a batch of twice the size makes twice the step."


def practice(audit: Audit) -> str:
    """What follows for the policy."""
    each = sampler.practice(audit)
    if not (each and audit.main.zero):
        each = [*effects(audit.main), *each]
    by_itself = ", each term by itself" * (len(each) > 1)
    return f"In practice{by_itself}: {' '.join(each)}" if each else ""


def beside(audit: Audit) -> str:
    """How far the gradient is from the one that was meant."""
    if audit.head and audit.main.matches:
        return f"How far that is from the KL of all tokens depends on {_rest(audit.head)}."
    if not audit.distances:
        return ""
    name, coefficient = audit.coefficient
    what, why, unit = OBJECTIVES[audit.compared].short, "", unit_of(audit.main)
    if coefficient and abs(coefficient) != 1:
        what, why = f"{number(abs(coefficient))} x {what}", f" ({name} is {number(coefficient)})"
    if unit in ("tokens", "positions"):
        what = f"[{what}] / {UNITS[unit]}"
    parts = [f"{d.kl:g}, turned by {d.degrees:.0f}°{_length(d.percent / 100)}" for d in audit.distances]
    said = f"Compared with the gradient of {what}{why}: at a KL per token of {'; at '.join(parts)}."
    if audit.order > _SECOND:
        said += " Near the reference it is of second order: it does almost nothing there."
    return said


def _length(ratio: float) -> str:
    return "" if ratio != ratio else f" and {times(ratio)} times as long"


def times(ratio: float) -> str:
    """Return a positive factor with two or three significant digits: 0.0065, 0.50, 9.81, 1240."""
    ratio = float(f"{ratio:.3g}")
    if not 1e-4 <= ratio < 1e6:
        return f"{ratio:.2e}"
    two_digits = ratio < 1 and f"{ratio:e}"[0] != "1"  # after a leading 1 the second digit says less
    return f"{ratio:.{max(0, 2 - math.floor(math.log10(ratio)) - two_digits)}f}"


def _rest(k: int) -> str:
    return f"how much probability is outside the {'likeliest token' if k == 1 else f'{k} likeliest'}"


def groups(audit: Audit) -> str:
    """What small groups do, where a loss couples the answers of a batch."""
    gaps = audit.main.gaps
    if not gaps:
        return ""
    said = "It couples the answers of a batch: the above is for large ones."
    turned = [g for g in gaps if not math.isnan(g.degrees)]
    parts = [f"{g.size}, turned by {g.degrees:.0f}°{_length(g.ratio)}" for g in turned]
    if parts:
        said += f" In groups of {'; of '.join(parts)}."
    for ratio, what in ((math.inf, "not zero"), (0.0, "zero")):
        if sizes := [str(g.size) for g in gaps if math.isnan(g.degrees) and g.ratio == ratio]:
            said += f" In groups of {', '.join(sizes)} the expected gradient is {what}."
    if fails := [str(g.size) for g in gaps if g.fails]:
        said += f" Some groups of {', '.join(fails)} have no gradient (NaN), as those of equal rewards."
    return said
