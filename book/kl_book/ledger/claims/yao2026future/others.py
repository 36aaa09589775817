"""What is not computed here: training runs, and rows that nobody has examined yet (yao2026future)."""

from __future__ import annotations

MAIN = (
    "training runs of Qwen3-1.7B-Base, Qwen3-4B-Base and Qwen3-30B-A3B-Base on the filtered DAPO-Math-17k "
    "with the source's code and settings, and its test sets"
)
RUNS = (
    "FRPO-6.1-gain",
    "FRPO-6.1-drift",
    "FRPO-6.1-small",
    "FRPO-6.2.1-direction",
    "FRPO-6.2.1-gap",
    "FRPO-tab2-baseline",
    "FRPO-6.2.3-gae",
    "FRPO-G2-mean",
    "FRPO-H-length",
)
OPEN = (
    "FRPO-2-notation",
    "FRPO-eq2.1",
    "FRPO-2-estimators",
    "FRPO-2-forward",
    "FRPO-eq3.1",
    "FRPO-3.1-stats",
    "FRPO-eq3.2",
    "FRPO-eq3.3",
    "FRPO-eq4.1",
    "FRPO-5.1-cost",
    "FRPO-eq5.2",
    "FRPO-5.2-approx",
    "FRPO-D4-lagrangian",
    "FRPO-6.1-ppokl",
    "FRPO-6.1-aime",
    "FRPO-tab1-4B",
    "FRPO-6.2.3-fold",
    "FRPO-B2-k2grad",
    "FRPO-C.1",
    "FRPO-alg1",
    "FRPO-alg1-line9",
    "FRPO-E-k3variant",
    "FRPO-F1-c",
    "FRPO-G-settings",
)
