"""Sentences on terms that hold the policy near the one that sampled: they act on stale samples only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.summary import effects, explanation, regularizers, row, terms, to_sampler
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.verdict import Audit


def held(finding: Finding) -> Finding:
    """Return a finding with nothing but its distances to the policy that sampled."""
    i = explanation(finding)
    match = {} if i is None else finding.matches[i]
    names = [n for n in match if to_sampler(n)]
    units = ({n: finding.units[i][n] for n in names},) if i is not None and finding.units else ()
    return replace(finding, matches=({n: match[n] for n in names},) if names else (), units=units)


def stale_finding(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of stale samples of several lengths, near the reference; None without one."""
    return next((f for f in findings if f.condition and f.condition.off_policy and f.condition.eos), None)


def anchored(audit: Audit) -> Finding | None:
    """Return the distances to the sampler in a loss; None without one."""
    candidates = [stale_finding(audit.findings), audit.unrewarded]
    return next((h for f in candidates if f is not None and (h := held(f)).matches), None)


def minimizes(audit: Audit, fresh: str) -> str:
    """Return a sentence without its full stop: what a loss with such a term minimizes; "" without one.

    Args:
        audit: The verdict.
        fresh: What the loss does on fresh samples, with a verb; "" where that is not known.
    """
    found, main = anchored(audit), audit.main
    if found is None:
        return ""
    if main.condition == found.condition:
        return f"{audit.name} minimizes {row(main if main.matches else found)}"
    if main.zero:
        only = "on stale samples only, for on fresh ones its expected gradient is zero"
        return f"{audit.name} minimizes {row(found)}: {only}"
    known = fresh or "minimizes no objective that is known here"
    return f"{audit.name} {known}; on stale samples it also minimizes {row(found)}"


def acts_alone(audit: Audit) -> bool:
    """Whether such terms are all that acts: nothing does on fresh samples."""
    return audit.main.zero and anchored(audit) is not None


def meant_by(divergence: str) -> set[str]:
    """Return the objectives that a loss of the sampler may minimize whose name says a divergence."""
    levels = ("token_", "sequence_", "sampled_mean_", "")
    return {n for level in levels if (n := f"{level}{divergence}_to_sampler") in OBJECTIVES}


def practice(audit: Audit) -> list[str]:
    """Return what follows of such terms, a sentence each."""
    found = anchored(audit)
    return [] if found is None or found.condition == audit.main.condition else effects(found)


def rest(audit: Audit) -> str:
    """Return what is known of a loss on stale samples where rewards have no known objective."""
    if audit.unrewarded is None:
        return ""
    return f"On stale samples where all rewards are 0 it minimizes {row(audit.unrewarded)}."


def warning(audit: Audit) -> str:
    """Return a sentence about a distance to the sampler that is maximized; "" without one.

    Beside a KL to the reference it may be right: an advantage of old log-ratios is a reward that is frozen.
    """
    found, stale = anchored(audit), stale_finding(audit.findings)
    parts = terms(found) if found is not None else ()
    held_by_reference = stale is not None and any(t.sign > 0 for t in regularizers(stale))
    if not parts or any(t.sign > 0 for t in parts) or held_by_reference:
        return ""
    words = " and ".join(OBJECTIVES[t.objective].short for t in parts)
    away = "which pushes the policy away from the one that sampled"
    return f"Check the signs: on stale samples {audit.name} maximizes {words}, {away}."
