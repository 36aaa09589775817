"""The KL of a log per token and per answer, its noise, and its price beside the gain of the reward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, NamedTuple

from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.inequalities import k1_error, k1_error_from_k2, k3_error, small_sample_factor
from kl_companion.monitor.logs.keys import AVERAGES, possible_metrics
from kl_companion.monitor.logs.quantities import EARLY, FEWEST, LATE, KlNumber, Quantities
from kl_companion.monitor.logs.sentences import RunVerdict, sentence
from kl_companion.monitor.logs.words import LEAST_KL, between, finite, median, number, percent

WIDE = 0.5  # half the interval in units of the KL: less leaves no doubt about its size
IDLE = 0.05  # of sigma, of the gain, or of the score: a term that costs less hardly acts


class Amount(NamedTuple):
    """The KL of an answer at the start and at the end of a log.

    Attributes:
        first: Nats per answer in the first rows.
        last: Nats per answer in the last rows.
        exact: Whether no average stands between: it is a sum over answers.
        source: How it was computed, as words.
    """

    first: float
    last: float
    exact: bool
    source: str


@lru_cache(maxsize=4)
def amount_of(q: Quantities) -> Amount | None:
    """Return the KL of an answer; None where it does not follow from the log."""
    nats, exact, source = _per_answer(q)
    first, last = q.early(nats), q.late(nats)
    return None if first is None or last is None else Amount(first, last, exact, source)


def nats_per_answer(q: Quantities) -> Sequence[float]:
    """Return the KL of an answer in every row; [] where it does not follow from the log."""
    return _per_answer(q)[0]


def _per_answer(q: Quantities) -> tuple[Sequence[float], bool, str]:
    """Return the KL of an answer per row, whether no average stands between, and how it was computed."""
    rewards = paid(q)
    beta = beta_of(q).value
    if rewards and beta:
        nats = [
            x / each if each else math.nan
            for x, each in zip(rewards, q.betas() or [beta] * len(rewards), strict=True)
        ]
        if finite(nats[-q.window(LATE) :]):
            return nats, True, "(score - rewards)/β"
    kl = q.reference
    if kl is None or not kl.metrics or kl.metrics[0].kind != "kl" or kl.scaled_by_batches:
        return [], False, ""
    sums = [x for x in q.kls if x.average == "sum" and x.estimator == kl.estimator == "exact"]
    if sums and finite(sums[0].series):
        return sums[0].series, True, sums[0].key
    if kl.average == "sum":
        return kl.series, True, "a sum over the answer already"
    lengths, sign = q.series("length"), -1.0 if kl.estimator.startswith("-") else 1.0
    nats = [sign * x * n for x, n in zip(kl.series, lengths, strict=True)] if lengths else []
    return nats, kl.average == "tokens", f"{kl.key} × mean length"


def paid(q: Quantities) -> Sequence[float]:
    """Return score - rewards per row, what verl subtracts from the reward; [] where nothing is subtracted."""
    if not {"reward", "rewards_mean"} <= set(q.keys) or q.keys["reward"] != "critic/score/mean":
        return []
    cost = [a - b for a, b in zip(q.series("reward"), q.series("rewards_mean"), strict=True)]
    half = q.half_digit(q.keys["reward"]) + q.half_digit(q.keys["rewards_mean"])
    return cost if any(abs(x) > half + 1e-9 for x in finite(cost)) else []


def sigma_of(q: Quantities) -> tuple[float, str] | None:
    """Return the standard deviation of the rewards to one prompt, and a note on it."""
    values = finite(q.series("sigma"))
    if not any(values):
        return None
    sigma, note = fmean(values), ""
    group = q.options.group or q.setting("group")
    metric = next(iter(possible_metrics(q.keys["sigma"], q.release)), None)
    if isinstance(group, int | float) and 2 <= group <= 16:
        factor = small_sample_factor(float(group))
        sigma /= factor
        note = f", reward_std / {factor:.2f} for groups of {group:g}"
    if metric is not None and metric.average == "batch":
        note += "; of the whole batch in this release, so more than within a group"
    return sigma, note


def unit_of_the_kl(q: Quantities) -> Iterator[RunVerdict]:
    """Nats per token and per answer."""
    kl, amount = q.reference, amount_of(q)
    if kl is None or amount is None or not any(finite(kl.series)):
        return
    first, last = q.early(kl.series), q.late(kl.series)
    if first is None or last is None:
        return
    lengths = q.series("length")
    gaps: dict[str, Any] = {
        "key": kl.key,
        "estimator": kl.estimator,
        "first": first,
        "last": last,
        "answer_first": amount.first,
        "answer_last": amount.last,
        "source": amount.source,
        "begin": "in the first row" if q.window(EARLY) == 1 else f"in the first {q.window(EARLY)} rows",
        "end": "in the last row" if q.window(LATE) == 1 else f"in the last {q.window(LATE)}",
    }
    if len(q.log.steps) == 1:
        yield sentence("unit_of_one_row", **gaps)
    elif kl.average == "sum":
        yield sentence("unit_sum", **gaps)
    else:
        yield sentence("unit", **gaps)
    if amount.exact and kl.average == "answers" and lengths:
        at_first = amount.first >= amount.last
        nats, logged = (amount.first, first) if at_first else (amount.last, last)
        per_token = nats / ((q.early(lengths) if at_first else q.late(lengths)) or math.nan)
        if per_token > 20 * q.half_digit(kl.key) and not 0.8 < logged / per_token < 1.25:
            yield sentence("average_matters", key=kl.key, logged=logged, true=per_token)
    elif not amount.exact:
        yield sentence("average_unknown", key=kl.key, average=AVERAGES[kl.average] or "not known here")


def noise_of_the_kl(q: Quantities) -> Iterator[RunVerdict]:
    """The noise of one row, by its number of tokens or by the scatter from row to row."""
    kl = q.reference
    if kl is not None and kl.estimator == "exact":
        yield from _recorded_interval(q, kl)
    if kl is None or kl.estimator not in ("K1", "K3") or not kl.metrics or kl.scaled_by_batches:
        return
    last, row = q.late(kl.series), len(q.log.steps) - 1
    tokens = q.tokens(row)
    if last is None or last <= 0 or kl.average == "sum":
        return
    if tokens:
        band = k1_error(last, tokens) if kl.estimator == "K1" else k3_error(last, tokens)
        if band is None:
            yield sentence("noise_without_a_band", key=kl.key, last=last)
        else:
            least = "" if q.series("tokens") or q.options.answers else "at least "
            yield sentence("noise", key=kl.key, tokens=tokens, band=_span(band), least=least)
        return
    if kl.estimator == "K3" and last > 0.1:
        yield sentence("noise_without_a_band", key=kl.key, last=last)
    elif len(finite(kl.series)) >= FEWEST:
        late = finite(kl.series)[-max(FEWEST, q.window(5)) :]
        jumps = [abs(a - b) / math.sqrt(2) for a, b in itertools.pairwise(late)]
        scatter = 1.48 * (median(jumps) or 0.0)
        if scatter > q.half_digit(kl.key):
            yield sentence("noise_by_scatter", key=kl.key, scatter=scatter, share=percent(scatter / last))


def _recorded_interval(q: Quantities, kl: KlNumber) -> Iterator[RunVerdict]:
    """The interval of the last exact KL, in which answers are the independent units."""
    low, nats, high, answers = (
        x[q.observed] if (x := q.recorded(name)) else math.nan
        for name in ("kl_low", "kl", "kl_high", "answers")
    )
    answers = q.series("answers")[q.observed] if math.isnan(answers) and q.log.recorded else answers
    if not nats >= LEAST_KL or not math.isfinite(low + high + answers):
        return
    half = high - nats  # the lower end may be cut at 0
    yield sentence(
        "too_few_answers" if half > WIDE * nats else "interval",
        key=kl.key,
        nats=nats,
        low=low,
        high=high,
        answers=f"{answers:,.0f}",
        enough=f"{math.ceil(answers * (half / (0.2 * nats)) ** 2):,}",
        step=q.log.steps[q.observed],
    )


def _span(band: tuple[float, float]) -> str:
    """Return the ends of a band in two digits, once where they are the same."""
    low, high = (float(f"{x:.2g}") for x in band)
    return number(low) if low == high else between(low, high)


class Price(NamedTuple):
    """What the KL costs and what the reward gained, in standard deviations of the rewards to one prompt.

    Attributes:
        price: Beta times the KL of an answer at the end.
        gain: The reward at the end minus that at the start.
        error: Standard error of the gain, by the scatter from row to row.
        first: The reward at the start.
        last: The reward at the end.
    """

    price: float
    gain: float
    error: float
    first: float
    last: float


def price_and_gain(q: Quantities) -> Price | None:
    """Return price and gain of a KL in the loss; None where something of it is not in the log."""
    beta, amount, sigma, kl = beta_of(q).value, amount_of(q), sigma_of(q), q.reference
    rewards = q.series("reward")
    first, last = q.early(rewards), q.late(rewards)
    if beta is None or amount is None or sigma is None or first is None or last is None:
        return None
    if kl is None or kl.place == "reward" or len(q.log.steps) < FEWEST:
        return None
    size = sigma[0]
    error = float(f"{_error_of_a_gain(q, rewards) / size:.1g}")
    return Price(beta * amount.last, (last - first) / size, error, first, last)


def price_of_the_kl(q: Quantities) -> Iterator[RunVerdict]:
    """What the KL costs beside what the reward gained, in units of the reward or of its sigma."""
    cost = paid(q)
    if cost:
        yield from _price_in_rewards(q, cost)
        return
    beta, amount, sigma = beta_of(q), amount_of(q), sigma_of(q)
    if beta.value == 0:
        yield sentence("beta_zero", beta=beta.text)
        return
    if q.reference is None or amount is None or beta.value is None or not any(finite(q.reference.series)):
        return
    price = beta.value * amount.last
    rewards = q.series("reward")
    last = q.late(rewards)
    if q.reference.place == "reward":
        if last is not None:
            yield sentence("price_reward", beta=beta.text, price=price, nats=amount.last, score=last)
        return
    size_of = finite(q.series("advantage_max"))
    if size_of and sigma is None and price < 0.01 * max(size_of):
        yield sentence(
            "idle_beside_advantages", beta=beta.text, price=price, nats=amount.last, size=max(size_of)
        )
        return
    paired = price_and_gain(q)
    if paired is None or sigma is None:
        yield sentence("price_alone", beta=beta.text, price=price, nats=amount.last)
        return
    gain, error = paired.gain, paired.error
    gaps: dict[str, Any] = {
        "beta": beta.text,
        "nats": amount.last,
        "price": price,
        "gain": gain,
        "first": paired.first,
        "last": paired.last,
        "sigma": sigma[0],
        "note": sigma[1],
        "net": gain - price,
        "minus": price - gain,
        "error": error,
        "k3": _OF_K3 if q.reference.estimator == "K3" else "",
    }
    if price > max(gain, 0) + IDLE + 2 * error:
        yield sentence("worse_than_the_start", **gaps)
    elif price < IDLE * max(1.0, gain):
        yield sentence("idle_term", **gaps)
    else:
        share = f"{percent(price / gain)} of" if gain > 0 else "beside"
        yield sentence("price", share=share, **gaps)


_OF_K3 = "; K3's is that of the forward KL, with weights that few tokens carry"


def _error_of_a_gain(q: Quantities, rewards: Sequence[float]) -> float:
    """Return the standard error of the late mean minus the early one, by the scatter from row to row."""
    known = finite(rewards)
    if len(known) < FEWEST:
        return 0.0
    jumps = [abs(a - b) / math.sqrt(2) for a, b in itertools.pairwise(known)]
    return 1.48 * (median(jumps) or 0.0) * math.sqrt(1 / q.window(EARLY) + 1 / q.window(LATE))


def _price_in_rewards(q: Quantities, cost: Sequence[float]) -> Iterator[RunVerdict]:
    """The price where the KL is subtracted from verl's score."""
    beta, lengths = beta_of(q), finite(q.series("length"))
    first, last, score = q.early(cost), q.late(cost), q.late(q.series("reward"))
    if first is None or last is None or score is None:
        return
    high, low = finite(q.series("score_max")), finite(q.series("score_min"))
    span = max(high) - min(low) if high and low else math.inf
    start = next(x for x in cost if math.isfinite(x))
    fell = bool(lengths) and fmean(lengths[-q.window(LATE) :]) < 0.5 * lengths[0]
    if start > span:
        nats = f"{number(start / beta.value)} nats per answer" if beta.value else "unknown, because β is"
        length = f" The mean length fell from {number(lengths[0])} to {number(lengths[-1])}." if fell else ""
        yield sentence(
            "price_above_range", start=start, span=span, times=start / span, nats=nats, length=length
        )
        return
    share = last / abs(score) if score else math.inf
    nats = f": {number(last / beta.value)} nats per answer" if beta.value else ""
    key = "idle_in_rewards" if share < IDLE else "price_in_rewards"
    yield sentence(key, cost=last, score=score, share=percent(share), nats=nats, beta=beta.text)


def growth_per_answer(q: Quantities) -> Iterator[RunVerdict]:
    """A KL that falls per token and grows per answer, or the other way round, because the length changed."""
    kl, lengths = q.reference, q.series("length")
    if kl is None or not lengths or kl.average == "sum" or len(q.log.steps) < FEWEST:
        return
    sign = -1.0 if (q.early(kl.series) or 0) < 0 else 1.0
    first, last = q.early(kl.series), q.late(kl.series)
    amount = amount_of(q)
    per_answer = (amount.first, amount.last) if amount else None
    if per_answer is None:
        both = [sign * x * n for x, n in zip(kl.series, lengths, strict=True)]
        start, end = q.early(both), q.late(both)
        per_answer = (start, end) if start is not None and end is not None else None
    if first is None or last is None or per_answer is None:
        return
    token = (sign * first, sign * last)
    if min(*token, *per_answer) <= 0:
        return
    up, down = per_answer[1] / per_answer[0], token[1] / token[0]
    if (up > 1.25 and down < 0.8) or (up < 0.8 and down > 1.25):
        yield sentence(
            "other_way_per_answer",
            token=f"{number(token[0])} to {number(token[1])}",
            answer=f"{number(per_answer[0])} to {number(per_answer[1])}",
            length=f"{number(q.early(lengths) or 0.0)} to {number(q.late(lengths) or 0.0)}",
            key=kl.key,
            verb="grows" if up > 1 else "falls",
            other="falls" if up > 1 else "grows",
        )


def second_moment_noise(q: Quantities) -> Iterator[RunVerdict]:
    """K1 beside K2: the standard error of K1 by K2, and whether the two agree."""
    for k1 in (x for x in q.kls if x.estimator == "K1" and x.metrics):
        for k2 in (x for x in q.kls if x.estimator == "K2" and x.pair == k1.pair):
            yield from _agreement(q, k1, k2)


def _agreement(q: Quantities, k1: KlNumber, k2: KlNumber) -> Iterator[RunVerdict]:
    rows = [
        (a, b, n) for i, (a, b) in enumerate(zip(k1.series, k2.series, strict=True)) if (n := q.tokens(i))
    ]
    rows = [row for row in rows if math.isfinite(row[0]) and row[1] > 0]
    if not rows:
        return
    errors = [k1_error_from_k2(b, n) for _, b, n in rows]
    off = fmean(b / a - 1 for a, b, _ in rows if a > 0) if any(a > 0 for a, _, _ in rows) else 0.0
    most = max(abs(b - a) / e for (a, b, _), e in zip(rows, errors, strict=True))
    if abs(off) < 0.3 or most < 6:
        gaps: dict[str, Any] = {
            "error": _span((min(errors), max(errors))),
            "most": most,
        }
        yield sentence(
            "k2_near_k1",
            k1=k1.key,
            k2=k2.key,
            off=percent(abs(off)),
            way="above" if off > 0 else "below",
            **gaps,
        )


CHECKS = (
    price_of_the_kl,
    growth_per_answer,
    unit_of_the_kl,
    noise_of_the_kl,
    second_moment_noise,
)
