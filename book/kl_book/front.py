"""Numbers of the first page: one log line, what a wrong KL term costs, how far K3 is turned, and defaults."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from kl_book import tables
from kl_book.coins import coin_share
from kl_book.framework_table import FrameworkTable, lines_of
from kl_book.lab.comparisons import compare
from kl_companion import audit

if TYPE_CHECKING:
    from kl_companion.plotting import ThemedFigure

_ROOT = Path(__file__).resolve().parents[2]
# the log line of the box: nats per token, coefficient, tokens of an answer, answers of a group, share solved
KL, BETA, TOKENS, GROUP, SOLVED = 0.02, 0.04, 500, 8, 0.3
RATES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)  # of prompts, for the range of the effective coefficient
REWARD = 0.35  # at which the KLs of runs are compared
AT = 0.3  # coefficient of those runs
# {words on the page: (study of `llm_rl`, color)}
TERMS = {
    "K2 in the loss": ("K2 in loss", "k2"),
    "exact KL in the loss": ("exact in loss", "exact"),
    "K1 in the reward": ("K1 in reward", "k1"),
    "K3 in the loss": ("K3 in loss", "k3"),
    "no KL term": ("no KL", ""),
    "K1 in the loss": ("K1 in loss", "k1"),
    "K2 in the reward": ("K2 in reward", "k2"),
    "K3 in the reward": ("K3 in reward", "k3"),
}
INK = "#1f2933"
# settings to the option of theirs that decides
FIRST = {
    "trl.grpo": "GRPOConfig(beta=...)",
    "trl.rloo": "RLOOConfig(beta=0.05)",
    "verl.loss_k3": "kl_loss_type=low_var_kl",
    "verl.reward_k1": "use_kl_in_reward=True",
    "openrlhf.loss_k1": "--algo.kl.use_loss",
    "openrlhf.reward_k1": "--algo.kl.init_coef 0.01",
}


def log_line() -> str:
    """Return what one line of a log says, worked out, as a list in Markdown."""
    sigma = math.sqrt(SOLVED * (1 - SOLVED))
    nats, per_token = KL * TOKENS, BETA * KL
    large = effective_beta(SOLVED, None)
    biased, unbiased = (effective_beta(SOLVED, GROUP, unbiased=u) for u in (False, True))
    every = [effective_beta(p, GROUP, unbiased=u) for p in RATES for u in (False, True)]
    price = per_token * TOKENS
    spread = f"√({SOLVED:g} · {1 - SOLVED:g}) = {sigma:.2f}"
    solved = " to ".join(f"{100 * rate:g} %" for rate in (RATES[0], RATES[-1]))
    rows = {
        "How far is the policy?": f"{KL:g} nats per token × {TOKENS} tokens = **{nats:g} nats per answer**",
        "What does that cost?": (
            f"{BETA:g} × {KL:g} = **{per_token:g} per token** and **{price:g} per answer**, in units of the "
            f"standard deviation σ of the rewards, by which they are divided. For rewards of 0 and 1 it is "
            f"{spread}, so an answer loses {price * sigma:.2f} of a reward of 1"
        ),
        "What is β worth?": (
            f"β·σ = **{large:.3f}** in large groups. In groups of {GROUP} it is **{unbiased:.3f}** if the "
            f"variance is divided by G − 1 (TRL, verl) and {biased:.3f} if by G; for prompts that are solved "
            f"in {solved} of the cases, {min(every):.3f} to {max(every):.3f}. "
            "{ref}`Why <chapter-whole-update>`"
        ),
        "Does the term act?": (
            "Double β. If the KL stays where it is, the term does not regularize. "
            "{ref}`The test <test-raise-beta>`"
        ),
    }
    return "\n".join(f"* *{question}* {answer}." for question, answer in rows.items())


def edition() -> str:
    """Return version, date and licenses of the book, from `CITATION.cff`, as a line in Markdown."""
    cited = yaml.safe_load((_ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    licenses = " and ".join(cited["license"])
    version = f"Version {cited['version']}, {cited['date-released']}"
    return f"{version}; {licenses}; {{ref}}`how to cite <how-to-cite>`."


def effective_beta(success: float, group: int | None, *, unbiased: bool = False) -> float:
    """Return what `BETA` is worth, relative to undivided rewards, where rewards of 0 and 1 are divided.

    Args:
        success: Chance that an answer is right.
        group: Answers per group; None for large groups.
        unbiased: Whether the variance has G − 1 in the denominator.
    """
    return coin_share(success, BETA, group, before=False, unbiased=unbiased).effective_beta


def turned_k3() -> str:
    """Return how far the gradient of K3 in the loss is from that of the reverse KL, as a sentence.

    The distances are those of the card that `kl-companion audit k3` prints, in the worlds of the audit.
    """
    each = [f"{d.degrees:.0f}° at {d.kl:g}" for d in audit("k3").distances]
    return (
        f"The difference grows with the distance: in the audit's four small worlds K3 turns the gradient by "
        f"{', '.join(each[:-1])} and {each[-1]} nats per token. "
        "Other mistakes cost more: K1 in the loss has no expected gradient at all."
    )


def kl_at_reward(runs: pd.DataFrame) -> dict[str, list[float]]:
    """Return the KL, in nats per answer, at which each run of a term first passes the common reward.

    Args:
        runs: Rows of the table `llm_rl`.

    Returns:
        {words of `TERMS`: one KL per seed, between two records by linear interpolation; NaN for a run that
        never passes}.
    """
    named = runs.assign(study=runs.study.str.removesuffix(", more"))
    at_beta = named[named.beta.isin([0.0, AT])].sort_values("step")
    spent = {key: _first_pass(path) for key, path in at_beta.groupby(["study", "seed"])}
    return {
        words: [kl for (name, _), kl in spent.items() if name == study] for words, (study, _) in TERMS.items()
    }


def _first_pass(path: pd.DataFrame) -> float:
    above = (path.reward_in >= REWARD).to_numpy()
    if not above.any():
        return math.nan
    first = int(above.argmax())
    around = path.iloc[max(first - 1, 0) : first + 1]
    return float(np.interp(REWARD, around.reward_in, around.kl))


def costs() -> ThemedFigure:
    """Return the KL that each term spends until a common reward, with 95 % intervals, as a figure.

    Raises:
        FileNotFoundError: the table `llm_rl` is missing; the message says how to make it.
        ImportError: Matplotlib or seaborn is missing (extra ``plots``).
    """
    from kl_companion.plotting import figure

    spent = kl_at_reward(tables.load("llm_rl"))

    def draw(axis: Any) -> None:
        for place, (words, kls) in enumerate(spent.items()):
            _row(axis, place, words, kls)
        axis.set_yticks(range(len(spent)), list(spent))
        axis.set(ylim=(len(spent) - 0.5, -0.5), xlim=(0, None), xlabel="nats per answer")

    never = [words for words, kls in spent.items() if any(map(math.isnan, kls))]
    return figure(
        draw,
        size=(7.4, 3.6),
        alt=(
            f"KL spent until the reward passes {REWARD:g}, by KL term. K2, the exact KL and K3 in the "
            "loss and K1 in the reward need less than half of what no KL term, K1 in the loss and "
            "K2 in the reward need. "
            f"{' and '.join(never)} never gets there."
        ),
        caption=(
            f"KL to the start when the reward first passes {REWARD:g} (it starts at 0.21), with 95 % "
            f"intervals over three to five seeds, β = {AT:g}. A transformer of 75,000 parameters that "
            "sorts digits."
        ),
    )


def _row(axis: Any, place: int, words: str, kls: list[float]) -> None:
    from kl_companion.plotting import color

    shade = color(TERMS[words][1]) if TERMS[words][1] else INK
    if any(map(math.isnan, kls)):
        axis.text(0.03, place, "never gets there", color=shade, va="center")
        return
    mean = compare(kls)
    bars = [[mean.difference - mean.low], [mean.high - mean.difference]]
    axis.errorbar(mean.difference, place, xerr=bars, fmt="o", color=shade, capsize=3)


def first_rows() -> FrameworkTable:
    """Return the defaults of the frameworks that most people run, in a line each."""
    return lines_of(FIRST)
