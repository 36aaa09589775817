"""The rows in one table, the questions of the guide, and which of the rows it reads."""

from __future__ import annotations

from kl_companion.recommendations.logged import LOGGED
from kl_companion.recommendations.off_policy import OFF_POLICY
from kl_companion.recommendations.on_policy import ON_POLICY
from kl_companion.recommendations.records import Recommendation

TRAINED: tuple[Recommendation, ...] = (*ON_POLICY, *OFF_POLICY)
RECOMMENDATIONS: dict[str, Recommendation] = {r.key: r for r in (*LOGGED, *TRAINED)}
# what the guide of the first page asks; the keys are those of the records
QUESTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "samples": ("I have samples from", {"policy": "the policy itself", "older": "an older policy"}),
    "place": ("I put the KL in the", {"loss": "loss", "reward": "reward"}),
    "want": (
        "I want",
        {
            "token": "reverse KL of tokens",
            "sequence": "reverse KL of answers",
            "forward": "forward KL of tokens",
        },
    ),
}
GUIDE: tuple[Recommendation, ...] = tuple(r for r in TRAINED if r.want in QUESTIONS["want"][1])


def logged_for(trained: Recommendation) -> Recommendation:
    """What to log beside a term of the guide: close to the reference, from the same samples."""
    if trained.samples == "older":
        return RECOMMENDATIONS[f"log-{trained.want}-older"]
    return RECOMMENDATIONS["log-forward" if trained.want == "forward" else "log-near"]


def recommended_for(divergence: str, level: str) -> Recommendation | None:
    """The term for the loss, with samples of any policy; None where the table has `ANY_DIVERGENCE` only.

    Args:
        divergence: A name in ``DIVERGENCES``.
        level: ``"token"`` or ``"sequence"``.
    """
    objective = f"{level}_{divergence}"
    found = (r for r in TRAINED if r.place == "loss" and r.samples == "older" and r.lines)
    return next((r for r in found if r.objective == objective), None)
