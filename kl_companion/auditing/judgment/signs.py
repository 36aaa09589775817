"""Signs that nobody wants: a reward or an entropy that is minimized, a divergence that is maximized."""

from __future__ import annotations

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.summary import Part, curvature, divergence_of, regularizers, terms
from kl_companion.auditing.worlds.objectives import OBJECTIVES

CLEAR = 90.0  # degrees from E[R] below which a step lowers it


def wrong_signs(finding: Finding) -> tuple[Part, ...]:
    """Return the terms of a loss whose sign is wrong: rewards first, then divergences, then entropies.

    Divergences may be subtracted from others that hold the policy more: K3 in the reward is such a sum.
    """
    found, kl = terms(finding), regularizers(finding)
    subtracted = tuple(t for t in kl if t.sign < 0 and not t.objective.endswith("_mass"))
    known = len({t.unit for t in kl}) == 1 and all(divergence_of(t.objective) for t in kl)
    return (
        *(t for t in found if OBJECTIVES[t.objective].rewards and t.sign > 0),
        *(subtracted if len(subtracted) == len(kl) or (known and curvature(finding) < 0) else ()),
        *(
            t
            for t in found
            if OBJECTIVES[t.objective].sampler and not OBJECTIVES[t.objective].rewards and t.sign < 0
        ),
        *(t for t in found if t.objective.endswith("_entropy") and t.sign > 0),
    )


def minimizes_rewards(finding: Finding) -> bool:
    """Return whether the rewards of a loss are minimized."""
    return any(OBJECTIVES[t.objective].rewards for t in wrong_signs(finding))
