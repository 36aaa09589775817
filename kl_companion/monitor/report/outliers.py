"""Verdicts on single values that stand out: NaN, billions, jumps, and what a clamp hides of them."""

from __future__ import annotations

import math
from typing import Any

from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.observation import Observation
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.unlikely_tokens import LEVEL, share_of_tokens, unlikely_tokens
from kl_companion.monitor.report.verdicts import (
    LEAST_KL,
    Level,
    RunVerdict,
    at_steps,
    median,
    number,
    percent,
    probability,
    quoted,
    recent,
    verdict,
)

# e^20 is half a billion: no sample of 10^5 tokens has a log-ratio of -20 by chance (it has probability e^-20
# times at most), and no trained language model is that much surer than its reference of a word
NEVER_BY_CHANCE = 20.0
OVERFLOW = {"float16": 11.09, "float32": 88.72}  # the log-ratio whose exponential is infinite, inside K3
SPIKE = 4.0  # times the median of the neighbors: less is the usual spread of a batch
NEIGHBORS = 5  # observations on each side
FEW_TOKENS = 0.5  # of the number, by the at most eight tokens that are kept of an observation
LEAST_OBSERVATIONS = 5  # before "usual" has a meaning
DEAD_TO_NOTE = 0.01  # of the tokens: the far tail of the log-ratios, where the KL sits
DEAD_TO_ACT = 0.1


def not_a_number(run: MonitoredRun) -> RunVerdict | None:
    """NaN or infinity in what is logged, the loss, or the exact KL."""
    names = {"logged": "logged number", "loss": "loss", "kl": "exact KL", "entropy": "entropy"}
    for row in run.observations:
        bad = [n for n in names if _broken(row, n)]
        if not bad:
            continue
        said = " and ".join(f"the {names[n]} is {number(getattr(row, n))}" for n in bad)
        later = sum(any(_broken(r, n) for n in names) for r in run.observations)
        count, cause = len(run.observations), _why_no_number(row, bad)
        return verdict("not_a_number", step=row.step, said=said, later=later, count=count, cause=cause)
    return None


def _broken(row: Observation, name: str) -> bool:
    x = getattr(row, name)
    return x is not None and not math.isfinite(x)


def _why_no_number(row: Observation, bad: list[str]) -> str:
    if "kl" not in bad and row.kl is not None:
        lead = f"The exact KL of the same tokens is {number(row.kl)}: the two distributions are in order."
    else:
        lead = (
            "The exact KL has none either: a model's own output is broken, or gives a token no probability."
        )
    largest = row.largest_log_ratio
    if largest is None or largest < OVERFLOW["float16"]:
        return lead
    kind = "any precision" if largest > OVERFLOW["float32"] else "float16"
    return f"{lead} The largest log-ratio is {number(largest)}: its exponential overflows in {kind}."


def impossible_token(run: MonitoredRun) -> RunVerdict | None:
    """A log-ratio, or a probability, that no sample of the policy has: KLs in the billions."""
    rows = [r for r in run.observations if (r.largest_log_ratio or 0) >= NEVER_BY_CHANCE]
    if not rows:
        return _unlikely_token(run)
    row = max(rows, key=lambda r: r.largest_log_ratio or 0)
    largest = row.largest_log_ratio or 0.0
    token = next(iter(run.tokens.get(row.step, ())), None)
    side = 1.0 if token is None else token.log_ratio
    logged = "" if row.logged is None else f" The logged number is {number(row.logged)} there"
    if logged:
        logged += "." if row.kl is None else f", the exact KL {number(row.kl)}."
    why, todo = _sides(token)
    again = f"It happens {at_steps(rows)}. " if len(rows) > 1 else ""
    return verdict(
        "impossible_token",
        step=row.step,
        ratio=math.copysign(largest, side),
        at=at_steps([row]),
        token=f": {quoted(token)}" if token else "",
        why=why,
        logged=logged,
        again=again,
        todo=todo,
    )


def _unlikely_token(run: MonitoredRun) -> RunVerdict | None:
    """A token that the policy cannot have sampled, with a log-ratio that two models may have."""
    tokens = unlikely_tokens(run)
    if not tokens:
        return None
    rows = [r for r in run.observations if r.step in tokens]
    row = min(rows, key=lambda r: tokens[r.step].logp)
    token = tokens[row.step]
    why, todo = _sides(token._replace(log_ratio=-abs(token.log_ratio)))
    again = f" It happens {at_steps(rows)}." if len(rows) > 1 else ""
    logged = (
        ""
        if row.logged is None
        else (f" The logged number is {number(row.logged)} there; of such tokens it need not be wrong.")
    )
    given: dict[str, Any] = {
        "why": why,
        "runs": round(1 / LEVEL),
        "again": again,
        "logged": logged,
        "todo": todo,
    }
    p, at = probability(token.logp), at_steps([row])
    return verdict("unlikely_token", step=row.step, p=p, at=at, token=quoted(token), **given)


def _sides(token: LargeToken | None) -> tuple[str, str]:
    if token is None or token.log_ratio > 0:
        said = "The policy says it and the reference practically never does."
        if token is not None:
            theirs, mine = probability(token.ref_logp), probability(token.logp)
            said = f"The policy says it with probability {mine}, the reference {theirs}: practically never."
        return said, (
            "Compare the two models on this token: a token that was added to the vocabulary after the "
            "reference was trained, a mask of logits that only one of them gets, or another chat template. "
            "Give both the same mask, or leave the token out of the KL."
        )
    said = (
        f"It stands in an answer, though the policy gives it the probability {probability(token.logp)} and "
        f"the reference {probability(token.ref_logp)}: it is no sample of this policy."
    )
    return said, (
        "Look for log-probs that are shifted by one position, for padding or tool output inside the "
        "completion mask, and for an engine that samples with other weights, another temperature or another "
        "template."
    )


def usual(run: MonitoredRun, name: str) -> list[float | None]:
    """Median of a column around each observation, itself left out."""
    series = run.series(name)
    return [
        median([*series[max(0, i - NEIGHBORS) : i], *series[i + 1 : i + 1 + NEIGHBORS]])
        for i in range(len(series))
    ]


def spike(run: MonitoredRun) -> RunVerdict | None:
    """One logged number far above its neighbors, made by few tokens."""
    if len(run.observations) < LEAST_OBSERVATIONS:
        return None
    around = {row.step: x or 0.0 for row, x in zip(run.observations, usual(run, "logged"), strict=True)}
    rows = [r for r in run.observations if r.logged is not None and _above(r.logged, around[r.step])]
    unlikely = unlikely_tokens(run)
    rows = [r for r in rows if (r.largest_log_ratio or 0) < NEVER_BY_CHANCE and r.step not in unlikely]
    rows = [r for r in rows if (share_of_tokens(run, r) or 0) >= FEW_TOKENS]
    if not rows:
        return None
    row = max(rows, key=lambda r: r.logged or 0)
    tokens, share = run.tokens[row.step], share_of_tokens(run, row) or 0
    exact = "" if row.kl is None else f" The exact KL of the same tokens is {number(row.kl)}."
    return verdict(
        "spike",
        step=row.step,
        logged=row.logged,
        times=(row.logged or 0) / around[row.step],
        few=len(tokens),
        tokens=row.tokens,
        share=percent(min(share, 1)),
        token=quoted(tokens[0]),
        ratio=tokens[0].log_ratio,
        exact=exact,
        at=at_steps(rows),
    )


def _above(x: float, around: float) -> bool:
    return around >= LEAST_KL and SPIKE * around < x < math.inf


def jump(run: MonitoredRun) -> RunVerdict | None:
    """One exact KL far above its neighbors: the answers of that batch, not the estimator."""
    if len(run.observations) < LEAST_OBSERVATIONS:
        return None
    pairs = zip(run.observations, usual(run, "kl"), strict=True)
    found = [(row, x) for row, x in pairs if row.kl is not None and x is not None and _above(row.kl, x)]
    found = [(row, x) for row, x in found if row.kl_low is None or row.kl_low > x]
    if not found:
        return None
    row, around = max(found, key=lambda pair: pair[0].kl or 0)
    others = f" Such jumps are seen {at_steps([r for r, _ in found])}." if len(found) > 1 else ""
    return verdict("jump", step=row.step, kl=row.kl, times=(row.kl or 0) / around, others=others)


def dead_zone(run: MonitoredRun) -> RunVerdict | None:
    """Tokens whose gradient a clamp takes away."""
    share, clamp = recent(run, "dead_zone"), run.settings.get("clamp")
    if share is None or share < DEAD_TO_NOTE:
        return None
    bounds = "" if clamp is None else f" to [{', '.join(number(x) if x is not None else '…' for x in clamp)}]"
    level: Level = "wrong" if share >= DEAD_TO_ACT else "attention"
    return verdict("dead_zone", level, bounds=bounds, share=percent(share))
