"""Sentences on terms that hold the policy near the one that sampled: they act on stale samples only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.summary import explanation, to_sampler
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


def acts_alone(audit: Audit) -> bool:
    """Whether such terms are all that acts: nothing does on fresh samples."""
    return audit.main.zero and anchored(audit) is not None


def meant_by(divergence: str) -> set[str]:
    """Return the objectives that a loss of the sampler may minimize whose name says a divergence."""
    levels = ("token_", "sequence_", "sampled_mean_", "")
    return {n for level in levels if (n := f"{level}{divergence}_to_sampler") in OBJECTIVES}
