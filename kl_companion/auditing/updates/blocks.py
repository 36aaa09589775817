"""The verdict on a whole update in blocks: what it maximizes, its coefficient by prompt, where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kl_companion.auditing.judgment.card import CardBlock, CardLine, wrapped
from kl_companion.auditing.judgment.term import read_block
from kl_companion.auditing.updates.meaning import (
    FAR,
    IDLE,
    advice,
    by_size,
    comes_to,
    equal_rewards,
    fault,
    given_advantages,
    headline,
    largest,
    outside,
    runs,
    short,
    turned,
    unknown,
    wanted,
)

if TYPE_CHECKING:
    from kl_companion.auditing.updates.record import OnPrompt, UpdateAudit

_LARGE = {0: "large groups", 1: "large: n x", -1: "large: 1/n x"}


def blocks(audit: UpdateAudit, *, details: bool = False) -> list[CardBlock]:
    """Return the blocks of an update's card.

    Args:
        audit: The verdict.
        details: Gain, coefficient and rest of every prompt and group too.
    """
    wrong = fault(audit)
    first = [x for text in audit.warnings for x in wrapped(text, most=3, style="bad")]
    first += wrapped(headline(audit), style="bold bad" if wrong else "bold")
    first += wrapped(wanted(audit), style="good" if audit.met else "bad")
    advised = advice(audit)
    found = [
        read_block(audit.step.reading),
        CardBlock(first),
        CardBlock(wrapped(given_advantages(audit), style="bad")),
        CardBlock(wrapped(outside(audit), style="bad")),
        CardBlock(wrapped(runs(audit), most=4)),
        CardBlock(_table(audit)),
        CardBlock(wrapped(by_size(audit))),
        CardBlock(wrapped(equal_rewards(audit))),
        CardBlock(wrapped(_stale(audit), "  ", "")),
        CardBlock(wrapped(comes_to(audit), "  ", "")),
        CardBlock([CardLine(x) for x in (f"Instead: {advised[0]}", *advised[1:])] if advised else []),
        CardBlock(_details(audit) if details else []),
    ]
    # without rewards there is nothing to compare the KL with
    return [*found[:5], *found[-2:]] if wrong == IDLE else found


def _table(audit: UpdateAudit) -> list[CardLine]:
    """The effective coefficient by prompt and group."""
    if not audit.penalties or unknown(audit):
        return []
    prompts = [s for s in largest(audit) if s.deviation > 0]
    unit = f"in units of beta = {audit.beta:g}" if audit.beta else "as a number"
    lines = [f"Effective beta, {unit}, by the share of right answers:"]
    lines.append(f"  {'':<14}" + "".join(f"{s.prompt:>8}" for s in prompts))
    for group in dict.fromkeys(s.group for s in audit.seen):
        row = [audit.at(p.prompt, group) for p in prompts]
        cells = ["-" if s is None else _cell(audit, s) for s in row]
        title = f"groups of {group}" if group else _LARGE[audit.order]
        lines.append(f"  {title:<14}" + "".join(f"{cell:>8}" for cell in cells))
    if any("*" in line for line in lines):
        worst = turned(audit.seen)
        lines.append(f"  * more than {FAR:g}° of the update is neither reward nor KL; {worst:.0f}° at most")
    return [CardLine(x) for x in lines]


def _cell(audit: UpdateAudit, seen: OnPrompt) -> str:
    return short(audit.effective(seen) / (audit.beta or 1.0)) + "*" * (seen.share.rest > FAR)


def _stale(audit: UpdateAudit) -> str:
    fresh, stale = turned(largest(audit)), turned(audit.stale)
    if stale <= max(FAR, fresh + 1):
        return ""
    return f"Stale samples (ratios 0.7 to 1.4): up to {stale:.0f}° of the update is neither reward nor KL."


def _details(audit: UpdateAudit) -> list[CardLine]:
    lines = [CardLine("Details: update = a grad E[R] - b grad KL + rest")]
    for title, found in (("fresh", audit.seen), ("stale", audit.stale)):
        lines += [CardLine(f"  {title}, {_numbers(s)}") for s in found]
    return lines


def _numbers(seen: OnPrompt) -> str:
    group = "large" if seen.group is None else f"groups of {seen.group}"
    grows = "" if seen.grows != seen.grows else f"  x {short(seen.grows)} at ten times beta"
    found = seen.share
    parts = f"a = {found.gain:.4g}  b = {found.charge:.4g}  rest {found.rest:.2g}°"
    return f"{seen.prompt:>6}, {group:<11} {parts}{grows}"
