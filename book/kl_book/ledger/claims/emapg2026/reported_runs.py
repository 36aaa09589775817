"""The experiments of section 6 and appendix B: memory, starts and spread (emapg2026)."""

from __future__ import annotations

from typing import Any

from kl_book.ledger.claims.checks import words
from kl_book.ledger.claims.ground.printed_results import (
    GRPO,
    INSTRUCT,
    REVERSE,
    answers_per_aime_set,
    percent_above,
    printed_cells,
    scores,
)

BYTES = 18  # per weight: the weight, its gradient, Adam's master copy and two moments, and the anchor


@words("EMA-exp-math")
def memory_of_the_math_runs() -> dict[str, Any]:
    """Of 1.78 billion weights."""
    return {"gigabytes": BYTES * 1.78}


@words("EMA-exp-search")
def memory_of_the_search_runs() -> dict[str, Any]:
    """Of 3.09 billion weights."""
    return {"gigabytes": BYTES * 3.09}


@words("EMA-tab4-cold-start")
def starts() -> dict[str, Any]:
    """Averages that the same algorithm reaches from the base and from the instruct model."""
    rows = {"ppo": ("PPO", "PPO"), "grpo": (GRPO, GRPO), "ema_pg": (REVERSE, INSTRUCT)}
    return {
        **{f"{name}_base": printed_cells(2, base)["Avg."] for name, (base, _) in rows.items()},
        **{f"{name}_instruct": printed_cells(4, tuned)["Avg."] for name, (_, tuned) in rows.items()},
        "higher": percent_above(scores(2, REVERSE)["Avg."], scores(4, INSTRUCT)["Avg."]),
    }


@words("EMA-tab3-AIME2025")
def noise() -> dict[str, Any]:
    """How large the gain on AIME 2025 is beside the spread of as many independent draws."""
    theirs, ours = (scores(3, "AIME 2025")[c] for c in ("GRPO", "EMA-PG"))
    n = answers_per_aime_set()
    error = sum(x * (1 - x) / n for x in (theirs, ours)) ** 0.5
    return {"samples": n // 30, "draws": n, "gain": ours - theirs, "error": error}
