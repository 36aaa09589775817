"""Tokens that the policy cannot have sampled: what an estimator makes of them says nothing against it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from kl_companion.estimators.registry import ESTIMATORS, get_estimator
from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.logs.quantities import Quantities
from kl_companion.monitor.logs.sentences import RunVerdict, sentence, steps_text
from kl_companion.monitor.logs.words import finite, number, probability, quoted

LEVEL = 1e-3  # by chance a token is called no sample of the policy in at most one of so many runs
LARGEST_VOCABULARY = 2**18  # where a run does not say its own
# e^20 is half a billion: no sample of 10^5 tokens has a log-ratio of -20 by chance (it has probability e^-20
# times at most), and no trained language model is that much surer than its reference of a word
NEVER_BY_CHANCE = 20.0
_EXPLAINED = 0.2  # of the logged number, that may differ from what the tokens make of it


def tokens_at(q: Quantities, step: float) -> tuple[LargeToken, ...]:
    """Return the tokens with the largest log-ratios of a step."""
    return tuple(q.log.recorded.tokens.get(int(step), ())) if q.log.recorded else ()


@lru_cache(maxsize=4)
def unlikely_tokens(q: Quantities) -> dict[float, LargeToken]:
    """Return the tokens that are no sample of the policy, by step, of each step the least likely one.

    Of N samples one has, by chance, with a probability of at most

    * N V p a token of probability p or less, with V tokens in the vocabulary;
    * N exp(-L) a log-ratio of -L or less: the policy has exp(-L) of what the reference has on such tokens;
    * 1 / z^2 an estimate that is z standard errors away from its expectation (Chebyshev), where the logged
      number is the estimate of the tokens that were kept.
    """
    n = sum(finite(q.observed_tokens()))
    log_vocabulary = math.log(q.setting("vocabulary") or LARGEST_VOCABULARY)
    least = math.log(LEVEL / 3) - math.log(max(n, 1))
    by_step = {}
    for i, step in enumerate(q.log.steps):
        tokens = [t for t in tokens_at(q, step) if not math.isnan(t.logp)]
        unlikely = [t for t in tokens if min(t.logp + log_vocabulary, t.log_ratio) <= least]
        if not unlikely and _is_their_deviation(q, i):
            unlikely = [t for t in tokens if t.log_ratio < 0]
        if unlikely:
            by_step[step] = min(unlikely, key=lambda t: t.logp)
    return by_step


def _is_their_deviation(q: Quantities, row: int) -> bool:
    """Whether the logged number is the estimate of these tokens, too far from its expectation for chance."""
    share = share_of_tokens(q, row)
    columns = [q.recorded(name) for name in ("logged", "logged_expected", "logged_error")]
    if share is None or not all(columns):
        return False
    logged, expected, error = (column[row] for column in columns)
    rest = logged - share * logged - expected
    far = math.sqrt(len(q.log.steps) / (LEVEL / 3)) * (error or math.inf)
    return abs(rest) <= _EXPLAINED * abs(logged) and abs(logged - expected) >= far


def share_of_tokens(q: Quantities, row: int) -> float | None:
    """Return the share of the logged number that the kept tokens make, by the estimator's own formula."""
    named, tokens, logged = q.setting("estimator"), tokens_at(q, q.log.steps[row]), q.recorded("logged")
    if (
        named not in ESTIMATORS
        or not tokens
        or not logged
        or not math.isfinite(logged[row])
        or not logged[row]
    ):
        return None
    entry = get_estimator(named)
    pairs = [(t.logp, t.ref_logp) for t in tokens if math.isfinite(t.logp) and math.isfinite(t.ref_logp)]
    if entry.inputs != "sampled" or not pairs:
        return None
    logp, ref_logp = torch.tensor(pairs, dtype=torch.float64).T
    return float(entry.fn(logp, ref_logp).sum()) / (q.observed_tokens()[row] * logged[row])


def steps_of_no_sample(q: Quantities) -> set[float]:
    """Return the steps with a token that is named as no sample of the policy, or of the reference."""
    return {*_far_steps(q), *unlikely_tokens(q)}


def _far_steps(q: Quantities) -> dict[float, float]:
    """Return the largest log-ratio of every step in which it is beyond chance."""
    sizes = zip(q.log.steps, q.recorded("largest_log_ratio"), strict=False)
    return {step: size for step, size in sizes if size >= NEVER_BY_CHANCE}


def impossible_tokens(q: Quantities) -> Iterator[RunVerdict]:
    """A log-ratio, or a probability, that no sample of the policy has: KLs in the billions."""
    sizes, tokens = _far_steps(q), unlikely_tokens(q)
    if sizes:
        step = max(sizes, key=lambda s: sizes[s])
        first = next(iter(tokens_at(q, step)), None)
        yield sentence(
            "recorded_token",
            step=step,
            ratio=math.copysign(sizes[step], 1.0 if first is None else first.log_ratio),
            token=f": {quoted(first)}" if first else "",
            **_gaps(q, step, list(sizes), first),
        )
    elif tokens:
        step = min(tokens, key=lambda s: tokens[s].logp)
        token = tokens[step]
        yield sentence(
            "unlikely_token",
            step=step,
            p=probability(token.logp),
            token=quoted(token),
            runs=round(1 / LEVEL),
            **_gaps(q, step, list(tokens), token._replace(log_ratio=-abs(token.log_ratio))),
        )


def _gaps(q: Quantities, step: float, steps: list[float], token: LargeToken | None) -> dict[str, Any]:
    """Return what both sentences have in common: cause, remedy, other steps, and the numbers of the step."""
    row = list(q.log.steps).index(step)
    why, todo = _sides(token)
    logged, kl = (column[row] if (column := q.recorded(x)) else math.nan for x in ("logged", "kl"))
    exact = "" if math.isnan(kl) else f", the exact KL {number(kl)}"
    return {
        "why": why,
        "todo": todo,
        "again": f" It happens at {steps_text(steps)}." if len(steps) > 1 else "",
        "logged": "" if math.isnan(logged) else f" The logged number is {number(logged)} there{exact}.",
    }


def _sides(token: LargeToken | None) -> tuple[str, str]:
    """Return what a token means and what to do, by which of the two models never says it."""
    if token is None or token.log_ratio > 0:
        text = "The policy says it and the reference practically never does."
        if token is not None:
            theirs, mine = probability(token.ref_logp), probability(token.logp)
            text = f"The policy says it with probability {mine}, the reference {theirs}: practically never."
        return text, (
            "Compare the two models on this token: a token that was added to the vocabulary after the "
            "reference was trained, a mask of logits that only one of them gets, or another chat template. "
            "Give both the same mask, or leave the token out of the KL."
        )
    return (
        f"It stands in an answer, though the policy gives it the probability {probability(token.logp)} and "
        f"the reference {probability(token.ref_logp)}: it is no sample of this policy."
    ), (
        "Look for log-probs that are shifted by one position, for padding or tool output inside the "
        "completion mask, and for an engine that samples with other weights, another temperature or another "
        "template."
    )
