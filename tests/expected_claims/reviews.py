"""Rows of shah2025comedy and summary2025pitfalls."""

SHAH = {
    "SH-objective": "holds",
    "SH-K1-reward": "holds",
    "SH-K1-path": "holds",
    "SH-K3-both": "holds",
    "SH-eq6": "holds",
    "SH-table1": "not reproducible here",
    "SH-find1": "holds",
    "SH-find2": "not reproducible here",
    "SH-find3": "not reproducible here",
}
SUMMARY = {
    "AI-1": "false as printed",
    "AI-2": "not reproducible here",
}
