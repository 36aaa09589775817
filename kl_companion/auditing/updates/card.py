"""The verdict on a whole update as text of 80 columns and 24 lines."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kl_companion.auditing.judgment.card import HEIGHT, WIDTH, read_lines
from kl_companion.auditing.updates.meaning import (
    FAR,
    IDLE,
    advice,
    comes_to,
    equal_rewards,
    fault,
    given_advantages,
    headline,
    short,
    turned,
)

if TYPE_CHECKING:
    from kl_companion.auditing.updates.audit import OnPrompt, UpdateAudit


def card(audit: UpdateAudit, *, details: bool = False, color: bool = False) -> str:
    """The verdict, at most 80 columns wide and, without details, 24 lines high.

    Args:
        audit: The verdict.
        details: Gain, coefficient and rest of every prompt and group too.
        color: With escape sequences for a terminal.
    """
    wrong = fault(audit)
    blocks = [
        read_lines(audit.step.reading),
        _ink(_wrapped(headline(audit)), color, "1;31" if wrong else "1") + _wanted(audit, color),
        _ink(_wrapped(given_advantages(audit)), color, "31"),
    ]
    if wrong != IDLE:  # without rewards there is nothing to compare the KL with
        blocks += [
            _table(audit),
            _wrapped(equal_rewards(audit)),
            _stale(audit),
            _wrapped(comes_to(audit), "  "),
        ]
    blocks.append(_advice(audit))
    if details:
        blocks.append(_details(audit))
    kept = [b for b in blocks if b]
    text = [line for block in kept for line in block]
    if details or len(text) + len(kept) - 1 <= HEIGHT:
        return "\n\n".join("\n".join(b) for b in kept)
    return "\n".join(text if len(text) <= HEIGHT else [*text[: HEIGHT - 1], "  ... (--details)"])


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _ink(lines: list[str], color: bool, code: str) -> list[str]:
    return [f"\033[{code}m{x}\033[0m" for x in lines] if color else lines


def _wanted(audit: UpdateAudit, color: bool) -> list[str]:
    if audit.want is None:
        return []
    if audit.met:
        return _ink(_wrapped(f"That is what was wanted ({audit.want.text})."), color, "32")
    said = f"That is not what was wanted ({audit.want.text})"
    if audit.misses and not fault(audit):
        where = ", ".join(s.prompt for s in audit.misses)
        said += f", by groups of {audit.group_size} on: {where}"
    said += "."
    return _ink(_wrapped(said), color, "31")


def _table(audit: UpdateAudit) -> list[str]:
    """The effective coefficient by prompt and group."""
    if not audit.penalties:
        return []
    prompts = [s for s in audit.seen if s.group is None and s.deviation > 0]
    unit = f"in units of beta = {audit.beta:g}" if audit.beta else "as a number"
    lines = [f"Effective beta, {unit}, by the share of right answers:"]
    lines.append(f"  {'':<14}" + "".join(f"{s.prompt:>8}" for s in prompts))
    starred = False
    for group in dict.fromkeys(s.group for s in audit.seen):
        cells = []
        for p in prompts:
            seen = audit.at(p.prompt, group)
            value = "-" if seen is None else short(audit.effective(seen) / (audit.beta or 1.0))
            star = "*" if seen is not None and seen.share.rest > FAR else ""
            starred = starred or bool(star)
            cells.append(f"{value + star:>8}")
        lines.append(f"  {'large groups' if group is None else f'groups of {group}':<14}" + "".join(cells))
    if starred:
        worst = turned(audit.seen)
        lines.append(f"  * more than {FAR:g}° of the update is neither reward nor KL; {worst:.0f}° at most")
    return lines


def _stale(audit: UpdateAudit) -> list[str]:
    fresh = turned([s for s in audit.seen if s.group is None])
    stale = turned([s for s in audit.stale if s.group is None])
    if stale <= max(FAR, fresh + 1):
        return []
    return _wrapped(
        f"Stale samples (ratios 0.7 to 1.4): up to {stale:.0f}° of the update is neither reward nor KL.", "  "
    )


def _advice(audit: UpdateAudit) -> list[str]:
    lines = advice(audit)
    return [f"Instead: {lines[0]}", *lines[1:]] if lines else []


def _details(audit: UpdateAudit) -> list[str]:
    lines = ["Details: update = a grad E[R] - b grad KL + rest"]
    for title, found in (("fresh", audit.seen), ("stale", audit.stale)):
        lines += [f"  {title}, {_line(audit, s)}" for s in found]
    return lines


def _line(audit: UpdateAudit, seen: OnPrompt) -> str:
    group = "large" if seen.group is None else f"groups of {seen.group}"
    grows = "" if seen.grows != seen.grows else f"  x {short(seen.grows)} at ten times beta"
    found = seen.share
    parts = f"a = {found.gain:.4g}  b = {found.charge:.4g}  rest {found.rest:.2g}°"
    return f"{seen.prompt:>6}, {group:<11} {parts}{grows}"
