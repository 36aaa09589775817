"""Signs that nobody wants: a reward or an entropy that is minimized, a divergence that is maximized."""

from __future__ import annotations

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.summary import Part, regularizers, terms
from kl_companion.auditing.worlds.objectives import OBJECTIVES


def wrong_signs(finding: Finding) -> tuple[Part, ...]:
    """Return the terms of a loss whose sign is wrong: rewards first, then divergences, then entropies."""
    parts = terms(finding)
    kl = regularizers(finding)
    return (
        *(t for t in parts if OBJECTIVES[t.objective].rewards and t.sign > 0),
        *(kl if all(t.sign < 0 for t in kl) else ()),
        *(t for t in parts if t.objective.endswith("_entropy") and t.sign > 0),
    )


def minimizes_rewards(finding: Finding) -> bool:
    """Return whether the rewards of a loss are minimized."""
    return any(OBJECTIVES[t.objective].rewards for t in wrong_signs(finding))


def warning(name: str, finding: Finding) -> str:
    """Return a sentence about the wrong signs of a loss; "" without one.

    Args:
        name: What the loss is called.
        finding: What it minimizes.
    """
    parts = [_words(t) for t in wrong_signs(finding)]
    return f"Check the signs: {name} {'; it '.join(parts)}." if parts else ""


def _words(part: Part) -> str:
    of = OBJECTIVES[part.objective]
    if of.rewards:
        return f"minimizes the rewards ({of.short}), which makes better answers less likely"
    if of.regularizer:
        return f"maximizes {of.short}, which pushes the policy away from the reference"
    return f"lowers the entropy ({of.short})"
