"""Verdicts of the ledger as its table has them; `test_ledger.py` compares each with its check."""

from kl_book import tables
from tests.support.data import data

_TABLE = tables.load("claims")
VERDICT_OF = dict(zip(_TABLE["id"], _TABLE["verdict"], strict=True))
CORRECTED = tuple(_TABLE["id"][_TABLE["corrected_error"].notna()])  # whose check computes a corrected form
# rows that fail and whose correction is words alone, or a condition
UNCORRECTED = (
    *("EMA-H-note3", "TM-3-near-optimal", "TM-fig2-LOO", "TM-fig3-slower", "TM-4.2-LOO-var"),
    *("TM-6-unique", "AI-first-misuse", "AI-2+tabular", "AI-2"),
)
# rows that compare printed numbers, which no sabotage reaches: one of the numbers is altered for each
_DATA = data(__file__)
CELLS, VALUES, RESTING = _DATA["cells"], _DATA["values"], _DATA["resting"]
ALTERED = (*CELLS, *VALUES)
