"""What the first page says in numbers: what a wrong KL term costs, and the defaults that most people run."""

from __future__ import annotations

from kl_book import tables
from kl_book.framework_table import FrameworkTable, defaults_of

STUDIES = {
    "no KL": "none",
    "K1 in loss": "K1 in the loss",
    "K2 in loss": "K2 in the loss",
    "K3 in loss": "K3 in the loss",
    "K1 in reward": "K1 in the reward",
    "K3 in reward": "K3 in the reward",
}
BETA = 0.1
FIRST = ("trl", "verl", "openrlhf")


def costs() -> str:
    """Reward and KL at the end of runs of a real model, one KL term each, as a table in Markdown.

    Raises:
        FileNotFoundError: the table `real_rl` is missing; the message says how to make it.
    """
    runs = tables.load("real_rl")
    last = runs[(runs.step == 20) & runs.beta.isin([0.0, BETA])].groupby("study")
    reward, kl = last.reward_in.mean(), last.kl.mean()
    lines = ["| KL term | reward | KL to the reference, nats per answer |", "| :-- | :-- | :-- |"]
    lines += [f"| {said} | {reward[name]:.2f} | {kl[name]:.1f} |" for name, said in STUDIES.items()]
    return "\n".join(lines)


def first_rows() -> FrameworkTable:
    """Of the table of frameworks, the defaults of those that most people run."""
    return defaults_of(FIRST)
