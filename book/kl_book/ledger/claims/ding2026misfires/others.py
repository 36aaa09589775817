"""What is not computed here: training runs, and rows that nobody has examined yet (ding2026misfires)."""

from __future__ import annotations

MAIN = (
    "training runs of Qwen2.5-32B with DAPO and the source's settings, or a log of its gradients, and its "
    "test sets"
)
LONG = "training runs of Qwen3-4B on long contexts with the source's settings, and its test sets"
RUNS = (
    "ZCPO-tab1-main",
    "ZCPO-tab1-dapo",
    "ZCPO-tab1-ablations",
    "ZCPO-tab1-F1",
    "ZCPO-5-similar",
    "ZCPO-5-F1share",
    "ZCPO-5-F2",
    "ZCPO-5-F4",
    "ZCPO-5-F5",
    "ZCPO-5-F6",
    "ZCPO-5-F7",
    "ZCPO-A-cost",
    "ZCPO-tab3",
    "ZCPO-tab5",
)
OPEN = (
    "ZCPO-1-papo",
    "ZCPO-1-orz",
    "ZCPO-1-omit",
    "ZCPO-adv",
    "ZCPO-score",
    "ZCPO-baseline",
    "ZCPO-def-A",
    "ZCPO-def-C",
    "ZCPO-def-L",
    "ZCPO-tab1-largest",
    "ZCPO-F1C-alpha",
    "ZCPO-5-17.5",
    "ZCPO-5-30.1",
    "ZCPO-5-cR",
    "ZCPO-A-length",
    "ZCPO-A-second",
    "ZCPO-tab4",
    "ZCPO-C-linear",
    "ZCPO-E-ablation",
    "ZCPO-G-lambda",
    "ZCPO-G-tradeoff",
    "ZCPO-G1-nopull",
    "ZCPO-H-frozen",
    "ZCPO-H-nocorrection",
)
