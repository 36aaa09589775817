"""Verdicts of the ledger as its table has them; `test_ledger.py` compares each with its check."""

from kl_book import tables

_TABLE = tables.load("claims")
VERDICT_OF = dict(zip(_TABLE["id"], _TABLE["verdict"], strict=True))
CORRECTED = tuple(_TABLE["id"][_TABLE["corrected_error"].notna()])  # whose check computes a corrected form
# rows that fail and whose correction is words alone, or a condition
UNCORRECTED = (
    *("EMA-H-note3", "EMA-eq139-140", "EMA-tab6-alpha", "EMA-tab7-Pearson", "EMA-tab7-alpha"),
    *("EMA-tab7-alpha+caption", "TM-3-near-optimal", "TM-fig2-LOO", "TM-fig3-slower", "TM-4.2-LOO-var"),
    *("TM-4.2-cum-var", "TM-5.1-lowKL", "TM-6-unique", "WZ-var-regime", "AI-first-misuse"),
    *("AI-2+tabular", "AI-2"),
)
# rows that compare printed numbers, which no sabotage reaches: a test of each alters one of the numbers
ARITHMETIC = (
    *("EMA-abstract-numbers-tables", "EMA-abstract-average", "EMA-5.3-vocabulary", "EMA-exp-math-sets"),
    *("EMA-exp-search-sets", "EMA-tab2-average", "EMA-tab2-Improvement", "EMA-tab2-Improvement-average"),
    *("EMA-tab3-sets", "EMA-tab3-Average", "EMA-tab3-relative", "EMA-tab3-relative-average"),
    *("EMA-tab3-every", "EMA-6-numbers", "EMA-6-anchor-gain", "EMA-6-topk-forward-gain"),
    *("EMA-6-topk-reverse-gain", "EMA-6-reverse-better", "EMA-fig5-final", "EMA-appA-period"),
    *("EMA-tab4-average", "EMA-tab4-Improvement", "EMA-tab4-Improvement-average", "EMA-tab4-gain"),
)
ALTERED = (
    *("RPG-fig2-caption", "RPG-5-grpo-clip", "RPG-H-grpo-clip", "RPG-5-subfigures", "RPG-abs-6"),
    *("RPG-5-across", "RPG-tab3", "RPG-tab5", "RPG-tab6", "RPG-tab7", "RPG-tab8", "RPG-I1-4k"),
    *("RPG-I1-2k",),
)
