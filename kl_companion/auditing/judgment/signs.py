"""Signs that nobody wants: a reward or an entropy that is minimized, a divergence that is maximized."""

from __future__ import annotations

from collections.abc import Sequence

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.fit.parts import REWARDS, Piece
from kl_companion.auditing.judgment.summary import Part, curvature, divergence_of, regularizers, terms
from kl_companion.auditing.worlds.objectives import OBJECTIVES

_CLEAR = 90.0  # degrees from E[R] below which a step lowers it


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


def warning(name: str, finding: Finding, parts: Sequence[Piece] = ()) -> str:
    """Return a sentence about the wrong signs of a loss; "" without one.

    Args:
        name: What the loss is called.
        finding: What it minimizes.
        parts: What is known of it, where that is no known objective.
    """
    words = [
        _words(p.near.objective)
        for p in parts
        if p.subject == REWARDS and p.near and p.near.sign > 0 and p.near.most < _CLEAR
    ]
    words += [_words(t.objective) for f in (finding, *(p.finding for p in parts)) for t in wrong_signs(f)]
    return f"Check the signs: {name} {'; it '.join(dict.fromkeys(words))}." if words else ""


def _words(objective: str) -> str:
    of = OBJECTIVES[objective]
    if of.rewards:
        return f"minimizes the rewards ({of.short}), which makes better answers less likely"
    if not of.regularizer and not of.sampler:
        return f"lowers the entropy ({of.short})"
    away = "away from the one that sampled" if of.sampler else "away from the reference"
    return f"maximizes {of.short}" + f", which pushes the policy {away}" * (away in of.opposite)
