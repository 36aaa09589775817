"""Rows of shah2025comedy and summary2025pitfalls."""

SHAH = {
    "SH-abstract-reasoning": "not reproducible here",
    "SH-objective": "holds",
    "SH-abstract-nostudy": "not reproducible here",
    "SH-abstract-discrepancy": "holds",
    "SH-prior": "not reproducible here",
    "SH-K1-reward": "holds",
    "SH-K1-path": "holds",
    "SH-K3-both": "holds",
    "SH-eq6": "holds",
    "SH-table1": "not reproducible here",
    "SH-practice": "not reproducible here",
    "SH-clip": "not reproducible here",
    "SH-find1": "holds",
    "SH-find2": "not reproducible here",
    "SH-find3": "not reproducible here",
}
SUMMARY = {
    "AI-first-misuse": "false as printed",
    "AI-1": "false as printed",
    "AI-derivation": "holds",
    "AI-derivation+first": "not reproducible here",
    "AI-paradigm": "holds",
    "AI-2+tabular": "false as printed",
    "AI-2": "false as printed",
    "AI-abstract-seen": "not reproducible here",
    "AI-abstract-incorrect": "holds",
    "AI-abstract-partial": "holds",
}

# rows that fail and whose correction is words alone, or a condition
SUMMARY_UNCORRECTED = ("AI-first-misuse", "AI-2+tabular", "AI-2")
