"""The experiments of sections 1, 4 and 6 and appendix B: what it would take to run them (emapg2026)."""

from __future__ import annotations

from kl_book.ledger.claims.ground.printed_results import GAIN, GRPO, INSTRUCT, REVERSE, TABLE_2, TABLE_4
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
SEARCH = (
    "Qwen2.5-3B, base and instruct, the environment of Search-R1 (a retriever over Wikipedia, NQ, HotpotQA "
    f"and the test sets), {FULL.format(BYTES * 3.09)}, and {UNSAID}. {NOTEBOOK} has the losses; it lacks the "
    "search engine"
)
MATH_RUN = f"the math runs: the model, data and GPUs of EMA-exp-math; {NOTEBOOK} would run it"
SEARCH_RUN = "the search runs on the {} model: the data, environment and GPUs of EMA-exp-search"
ABLATION = (
    f"runs at the source's scale with and without the change, see EMA-exp-search; {NOTEBOOK} has the losses"
)
UNTRAINED = "{}, the test sets, and the prompts and the retriever of the source's evaluation; no training"
PROMPTED = {"3B-Inst": "Qwen2.5-3B-Instruct", "7B-Inst": "Qwen2.5-7B-Instruct", "3B-Base": "Qwen2.5-3B"}
STUDY = "of the table ema_pg, which that notebook writes for any model and problems,"


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


reported("EMA-abstract-numbers", f"{MATH_RUN}; and {SEARCH_RUN.format('base')}")
reported(
    "EMA-abstract-math",
    "the settings of the KL in the math runs, which the source does not print",
    "abstract, introduction and table 3 call the run EMA-PG, which is anchor and Top-k KL together; "
    "section 6 and figure 3 credit the EMA anchor",
)
reported("EMA-fig1", f"{MATH_RUN}; and {SEARCH_RUN.format('base')}", "the picture is not given in numbers")
reported("EMA-fig3", MATH_RUN, "the picture is not given in numbers; the notebook's table has pass_8")
reported("EMA-exp-math", MATH)
reported("EMA-exp-search", SEARCH)
reported("EMA-betagt0", ABLATION, f"the study 'no KL' {STUDY} trains at beta = 0")
reported("EMA-fig5", SEARCH_RUN.format("base"), "final averages are in table 2 (EMA-fig5-final)")
reported("EMA-fig6", ABLATION, f"the study 'k' {STUDY} varies k")
reported("EMA-fig7", ABLATION, f"the studies 'decay' and 'forward' {STUDY} vary both")
reported(
    "EMA-fig8",
    ABLATION,
    f"the studies 'stale' {STUDY} do so. Near the anchor the truncated and the published form share a bias, "
    "which a comparison of the two does not show (EMA-fig2, EMA-G2-critical)",
)
reported("EMA-fig9", ABLATION, f"the study 'stale, corrected' {STUDY} varies the clip")
reported(
    "EMA-fig9-normalization",
    ABLATION,
    "section 6 sees no noticeable difference, appendix B a slight gain from global normalization; the study "
    f"'advantages' {STUDY} varies it",
)
reported(
    "EMA-appA-hparams",
    f"the source's scripts, and {UNSAID}",
    "for the condition of stability with these numbers see EMA-lem4.2-eq9",
)
reported(
    "EMA-tab4-cold-start",
    JUDGEMENT,
    starts,
)
for _row in (x for x in TABLE_2 if x != GAIN):
    _model = next((m for end, m in PROMPTED.items() if _row.endswith(end)), "")
    _needs = UNTRAINED.format(_model) if _model else SEARCH_RUN.format("base")
    reported(f"EMA-tab2-{_row}", _needs)
for _row in (x for x in TABLE_4 if x != GAIN):
    _needs = UNTRAINED.format(PROMPTED["3B-Inst"]) if "before" in _row else SEARCH_RUN.format("instruct")
    reported(f"EMA-tab4-{_row}", _needs)
for _id in ("MATH500", "AMC2024", "Minerva", "AIME2024", "OlympiadBench"):
    reported(f"EMA-tab3-{_id}", MATH_RUN)
reported("EMA-tab3-AIME2025", MATH_RUN, noise)
