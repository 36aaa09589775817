"""Verdicts on the policy: how far it went, how strongly beta holds it, whether it still chooses."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import (
    LEAST_KL,
    RECENT,
    Level,
    RunVerdict,
    between,
    finite,
    is_finite,
    number,
    percent,
    recent,
    verdict,
)

NO_KL = 1e-7  # nats per token: rounding of two passes of one model in float32
# One nat per token is the entropy of a chat model's next token or more: the policy writes another text
FAR = 0.3
VERY_FAR = 1.0
GROWTH_TO_NOTE = 0.1  # nats per token: below, growth is what training is
GROWTH = 2.0  # times the value of half the steps ago; a KL that grows with the steps doubles at most
# Rewards of 0 and 1 come to 2 to 4 by themselves, while 7 to 93 % of the answers are right
BETA_TO_NOTE = 4.0
BETA_TO_ACT = 20.0
EQUAL_TO_NOTE = 0.5  # of the groups: half of the batch gives no reward signal
EQUAL_TO_ACT = 0.9
COLLAPSE = 0.3  # of the entropy at the start: one choice in two is gone, in nats
COLLAPSE_TO_ACT = 0.1
LEAST_ENTROPY = 0.05  # nats: nearly every token is certain, whatever it was at the start
PULL_TO_NOTE = 0.01  # log-odds of ending per answer and unit of the loss's gradient: less is lost in noise
PULL_SHARE = 0.5  # of the reward's pull: less does not decide about lengths
WIDE = 0.5  # half the interval in units of the KL: less leaves no doubt about its size


def no_kl(run: MonitoredRun) -> RunVerdict | None:
    """A KL that stays zero."""
    seen = [r for r in run.observations if r.step > 0 and r.kl is not None]
    if len(seen) >= RECENT and all(abs(r.kl or 0) <= NO_KL for r in seen):
        return verdict("no_kl", count=len(seen), last=seen[-1].step)
    return None


def no_beta(run: MonitoredRun) -> RunVerdict | None:
    """A coefficient that is zero, which many trainers have as their default."""
    return verdict("no_beta") if run.settings.get("beta") == 0 else None


def far(run: MonitoredRun) -> RunVerdict | None:
    """A KL that is large, or grows faster than the steps."""
    kl = recent(run, "kl")
    if kl is None:
        return None
    answers = recent(run, "kl_of_answers")
    size = f"{number(kl)} nats per token" + ("" if answers is None else f" ({number(answers)} per answer)")
    grown = _growth(run, kl)
    if kl < FAR and grown is None:
        return None
    likelier = "" if answers is None else (
        f" A sampled answer is typically {_likelier(answers)} times likelier than under the reference, and "
        "rewards that were fitted on the reference's texts say little about it."
    )  # fmt: skip
    over = min(RECENT, len(run.observations))
    says = f"Over the last {over} observations the KL is {size}" if over > 1 else f"The KL is {size}"
    says += f", {number(grown[1])} times as much as around step {grown[0]}." if grown else "."
    level: Level = "wrong" if kl >= VERY_FAR else "attention"
    return verdict("far", level, says=says, likelier=likelier, bought=_bought(run))


def _likelier(nats: float) -> str:
    """A factor from its logarithm; beyond a thousand as a power of e."""
    return f"about {number(math.exp(nats))}" if nats < math.log(1000) else f"e^{number(nats)}"


def _growth(run: MonitoredRun, kl: float) -> tuple[int, float] | None:
    """(step, factor) since half the steps ago, where the growth is faster than the steps and beyond doubt."""
    rows = [r for r in run.observations if is_finite(r.kl)]
    if len(rows) < 2 * RECENT or kl < GROWTH_TO_NOTE:
        return None
    half = min(rows, key=lambda r: abs(2 * r.step - rows[-1].step - rows[0].step))
    place = rows.index(half)
    then = recent(run._replace(observations=tuple(rows[: place + RECENT // 2 + 1])), "kl")
    if not then or kl < GROWTH * then:
        return None
    apart = rows[-1].kl_low is None or half.kl_high is None or rows[-1].kl_low > half.kl_high
    return (half.step, kl / then) if apart else None


def _bought(run: MonitoredRun) -> str:
    rewards = finite(run.series("reward"))
    if len(rewards) < 2 * RECENT:
        return ""
    middle = len(rewards) // 2
    then, now = fmean(rewards[middle - RECENT // 2 :][:RECENT]), fmean(rewards[-RECENT:])
    return f" The reward went from {number(then)} to {number(now)} in the second half of the run."


def effective_beta(run: MonitoredRun) -> RunVerdict | None:
    """A beta that acts like another number."""
    beta, acts = run.settings.get("beta"), recent(run, "effective_beta")
    if not beta or acts is None or acts <= 0:
        return None
    factor = max(acts / beta, beta / acts)
    if factor < BETA_TO_NOTE:
        return None
    return verdict(
        "effective_beta",
        "wrong" if factor >= BETA_TO_ACT else "attention",
        beta=float(beta),
        acts=acts,
        factor=factor,
        weaker="weaker" if acts < beta else "stronger",
        larger="larger" if acts < beta else "smaller",
        deviation=acts / beta,
        instead=beta * beta / acts,
    )


def equal_groups(run: MonitoredRun) -> RunVerdict | None:
    """Groups in which no answer is better than another."""
    share = recent(run, "equal_groups")
    if share is None or share < EQUAL_TO_NOTE:
        return None
    return verdict("equal_groups", "wrong" if share >= EQUAL_TO_ACT else "attention", share=percent(share))


def entropy(run: MonitoredRun) -> RunVerdict | None:
    """A policy that has stopped choosing."""
    seen, now = finite(run.series("entropy")), recent(run, "entropy")
    if len(seen) < RECENT or now is None:
        return None
    start = fmean(seen[:3])
    if start <= 0 or (now > COLLAPSE * start and (now > LEAST_ENTROPY or start < 2 * LEAST_ENTROPY)):
        return None
    level: Level = "wrong" if now <= COLLAPSE_TO_ACT * start else "attention"
    choices, before = math.exp(now), math.exp(start)
    return verdict("entropy", level, start=start, now=now, choices=choices, before=before)


def length_pull(run: MonitoredRun) -> RunVerdict | None:
    """A KL term that makes answers shorter or longer."""
    kl, reward = recent(run, "length_pull_kl"), recent(run, "length_pull_reward")
    if kl is None or abs(kl) < PULL_TO_NOTE or (reward is not None and abs(kl) < PULL_SHARE * abs(reward)):
        return None
    beside = ""
    if reward is not None:
        beside = f", the reward term with {number(abs(reward))} for {_direction(reward)} ones"
    return verdict("length_pull", direction=_direction(kl), pull=abs(kl), beside=beside)


def _direction(pull: float) -> str:
    return "shorter" if pull > 0 else "longer"


def wide(run: MonitoredRun) -> RunVerdict | None:
    """Too few answers for a decision."""
    row = run.last
    kl = row.kl
    if kl is None or row.kl_low is None or row.kl_high is None or not kl >= LEAST_KL:
        return None
    half = row.kl_high - kl  # the lower end may be cut at 0
    if not half > WIDE * kl:
        return None
    needed = math.ceil(row.answers * (half / (0.2 * kl)) ** 2)
    given: dict[str, Any] = {
        "answers": row.answers,
        "kl": kl,
        "low": row.kl_low,
        "high": row.kl_high,
        "needed": needed,
    }
    return verdict("wide", step=row.step, **given)


def size(run: MonitoredRun) -> RunVerdict | None:
    """How far the policy is from the reference, where that is nothing to worry about."""
    row, kl = run.last, recent(run, "kl")
    if row.kl is None or kl is None or kl >= FAR:
        return None
    interval = between(row.kl_low, row.kl_high)
    span = f" ({interval} with 95 % confidence)" if interval else ""
    answers = "" if row.kl_of_answers is None else f", {number(row.kl_of_answers)} per answer"
    return verdict("size", step=row.step, kl=row.kl, span=span, answers=answers)
