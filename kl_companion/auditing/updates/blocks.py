"""The verdict on a whole update in blocks: what it maximizes, its coefficient by prompt, where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kl_companion.auditing.judgment.card import CardBlock, CardLine, wrapped
from kl_companion.auditing.judgment.term import read_block
from kl_companion.auditing.updates import meaning
from kl_companion.auditing.updates.effective import IDLE, OnPrompt, turned
from kl_companion.auditing.updates.meaning import FAR, short

if TYPE_CHECKING:
    from kl_companion.auditing.updates.record import UpdateAudit

_LARGE = {0: "large groups", 1: "large: n x", -1: "large: 1/n x"}


def blocks(audit: UpdateAudit, *, details: bool = False) -> list[CardBlock]:
    """Return the blocks of an update's card.

    Args:
        audit: The verdict.
        details: Gain, coefficient and rest of every prompt and group too.
    """
    first = [x for text in audit.warnings for x in wrapped(text, most=3, style="bad")]
    first += wrapped(audit.sentence, style="bold bad" if audit.fault else "bold")
    first += wrapped(meaning.sentence("wanted", audit), style="good" if audit.met else "bad")
    advised = meaning.advice(audit)
    advised[:1] = [f"Instead: {x}" for x in advised[:1]]
    found = [
        read_block(audit.step.reading),
        CardBlock(first),
        CardBlock(wrapped(meaning.given_advantages(audit), style="bad")),
        CardBlock(wrapped(meaning.sentence("outside_update", audit), style="bad")),
        CardBlock(wrapped(meaning.runs(audit), most=4)),
        CardBlock(_table(audit)),
        CardBlock(wrapped(meaning.sentence("order_in_batch", audit))),
        CardBlock(wrapped(meaning.equal_rewards(audit))),
        CardBlock(wrapped(meaning.sentence("stale_update", audit), "  ", "")),
        CardBlock(wrapped(meaning.comes_to(audit), "  ", "")),
        CardBlock([CardLine(x) for x in advised]),
        CardBlock(_details(audit) if details else []),
    ]
    # without rewards there is nothing to compare the KL with
    return [*found[:5], *found[-2:]] if audit.fault == IDLE else found


def _table(audit: UpdateAudit) -> list[CardLine]:
    """Return the effective coefficient by prompt and group."""
    if not audit.penalties or audit.unknown:
        return []
    prompts = [s.prompt for s in audit.largest if s.deviation > 0]
    unit = f"in units of beta = {audit.beta:g}" if audit.beta else "as a number"
    lines = [f"Effective beta, {unit}, by the share of right answers:", _row("", prompts)]
    for group in dict.fromkeys(s.group for s in audit.seen):
        cells = [_cell(audit, audit.at(prompt, group)) for prompt in prompts]
        lines.append(_row(f"groups of {group}" if group else _LARGE[audit.order], cells))
    if any("*" in line for line in lines):
        worst = turned(audit.seen)[1]
        lines.append(f"  * more than {FAR:g}° of the update is neither reward nor KL; {worst:.0f}° at most")
    return [CardLine(x) for x in lines]


def _row(title: str, cells: list[str]) -> str:
    return f"  {title:<14}" + "".join(f"{cell:>8}" for cell in cells)


def _cell(audit: UpdateAudit, seen: OnPrompt | None) -> str:
    if seen is None:
        return "-"
    return short(audit.effective(seen) / (audit.beta or 1.0)) + "*" * (seen.share.rest > FAR)


def _details(audit: UpdateAudit) -> list[CardLine]:
    lines = ["Details: update = a grad E[R] - b grad KL + rest"]
    for title, found in (("fresh", audit.seen), ("stale", audit.stale)):
        lines += [f"  {title}, {_numbers(s)}" for s in found]
    return [CardLine(x) for x in lines]


def _numbers(seen: OnPrompt) -> str:
    group = "large" if seen.group is None else f"groups of {seen.group}"
    grows = "" if seen.grows != seen.grows else f"  x {short(seen.grows)} at ten times beta"
    found = seen.share
    parts = f"a = {found.gain:.4g}  b = {found.charge:.4g}  rest {found.rest:.2g}°"
    return f"{seen.prompt:>6}, {group:<11} {parts}{grows}"
