"""The experiments of sections 1, 4 and 6 and appendix B: what it would take to run them (emapg2026)."""

from __future__ import annotations

from kl_book.ledger.claims.ground.printed_results import GRPO, INSTRUCT, REVERSE
from kl_book.ledger.claims.ground.reported import reported
from kl_book.ledger.claims.ground.scores import answers_per_aime_set, percent_above, printed_cells, scores
from kl_book.ledger.claims.standard import JUDGEMENT

NOTEBOOK = "book/experiments/ema_pg.ipynb"
UNSAID = "the batch and group sizes, the steps and the seeds, none of which the source prints"
BYTES = 18  # per weight: the weight, its gradient, Adam's master copy and two moments, and the anchor
FULL = "GPUs for full fine-tuning with Adam ({:.0f} GB for weights and optimizer, beside the activations)"
MATH = (
    "DeepSeek-R1-Distill-Qwen-1.5B, the 40,000 problems of DeepScaleR and the test sets, "
    f"{FULL.format(BYTES * 1.78)}, and {UNSAID}. On such a GPU {NOTEBOOK} would run it, with this model and "
    "task='data'"
)
MATH_RUN = f"the math runs: the model, data and GPUs of EMA-exp-math; {NOTEBOOK} would run it"


def starts() -> str:
    """Averages that the same algorithm reaches from the base and from the instruct model."""
    pairs = {"PPO": ("PPO", "PPO"), "GRPO": (GRPO, GRPO), "EMA-PG": (REVERSE, INSTRUCT)}
    said = []
    for name, (base, tuned) in pairs.items():
        a, b = printed_cells(2, base)["Avg."], printed_cells(4, tuned)["Avg."]
        said.append(f"{name} {a} and {b}")
    before = percent_above(scores(2, REVERSE)["Avg."], scores(4, INSTRUCT)["Avg."])
    return (
        f"averages from the base and from the instruct model: {', '.join(said)}. PPO and GRPO end higher "
        f"from the instruct model, EMA-PG {before:.0f}% higher from the base model. Instruction tuning is "
        "no cold start"
    )


def noise() -> str:
    """How large the gain on AIME 2025 is beside the spread of as many independent draws."""
    theirs, ours = (scores(3, "AIME 2025")[c] for c in ("GRPO", "EMA-PG"))
    n = answers_per_aime_set()
    error = sum(x * (1 - x) / n for x in (theirs, ours)) ** 0.5
    return (
        f"no spread is printed. The AIME scores fit 30 problems with {n // 30} samples each and no smaller "
        f"number; as {n} independent draws the gain of {ours - theirs:.3f} over GRPO would have a standard "
        f"error of {error:.3f}"
    )


reported(
    "EMA-tab4-cold-start",
    JUDGEMENT,
    starts,
)
reported("EMA-tab3-AIME2025", MATH_RUN, noise)
