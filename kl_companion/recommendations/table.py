"""The rows of recommendations.toml, the questions of the guide, and which of the rows it reads."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

from kl_companion.recommendations.records import Recommendation, Term


def _terms(rows: list[dict[str, Any]]) -> tuple[Term, ...]:
    return tuple(Term(**row) for row in rows)


def _recommendations(rows: list[dict[str, Any]]) -> tuple[Recommendation, ...]:
    lists = ("alternatives", "pitfalls")
    return tuple(Recommendation(**{**row, **{k: _terms(row.get(k, [])) for k in lists}}) for row in rows)


_DATA = tomllib.loads((files("kl_companion.recommendations") / "recommendations.toml").read_text("utf-8"))
ANY_DIVERGENCE: str = _DATA["any_divergence"]
LENGTHS = _terms(_DATA["lengths"])
LOGGED = _recommendations(_DATA["logged"])
TRAINED = _recommendations([*_DATA["on_policy"], *_DATA["off_policy"]])
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
