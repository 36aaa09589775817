"""Tests of a log that are exact: values that no estimator has, and samples that no policy gives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.inequalities import (
    CHANCE,
    largest_product,
    mean_ratio,
    negative_mean_exponent,
    pair_bounds,
    tail_threshold,
)
from kl_companion.monitor.logs.keys import plain, possible_metrics
from kl_companion.monitor.logs.quantities import MOST_ANSWERS, KlNumber, Quantities
from kl_companion.monitor.logs.sentences import RunVerdict, sentence, steps_text
from kl_companion.monitor.logs.words import finite, median, number

NEVER_NEGATIVE = ("K2", "K3", "abs", "exact")
UNLIKELY = math.log(1e6)  # of a product of ratios: by chance once in a million logs


def impossible_values(q: Quantities) -> Iterator[RunVerdict]:
    """Values outside the range of what their key is."""
    for kl in q.kls:
        low = min(finite(kl.series), default=0.0)
        if kl.estimator in NEVER_NEGATIVE and low < -max(q.half_digit(kl.key), 1e-6):
            yield sentence("negative_estimator", key=kl.key, estimator=kl.estimator, low=low)
        clamp = kl.metrics[0].clamp if kl.metrics else ""
        high = max(finite(kl.series), default=0.0)
        if clamp == "value 10" and kl.estimator == "K3" and kl.certain and high > 10.01:
            yield sentence("above_clamp", key=kl.key, high=high)
    for key, series in q.log.columns.items():
        metric = next(iter(possible_metrics(key, q.release)), None)
        values = finite(series)
        if metric is None or not values:
            continue
        if metric.kind == "share" and not -1e-6 <= min(values) <= max(values) <= 1 + 1e-6:
            yield sentence("not_a_share", key=key, low=min(values), high=max(values))
        if metric.kind == "entropy" and min(values) < -max(q.half_digit(key), 1e-6):
            yield sentence("negative_entropy", key=key, low=min(values))
        if metric.name == "token_mult_prob_error" and min(values) < 1 - 1e-3:
            yield sentence("below_one", key=key, low=min(values))


def infinite_values(q: Quantities) -> Iterator[RunVerdict]:
    """Infinities in KLs, loss and gradient, and NaN where it is told from a cell that is empty."""
    names = (q.keys[name] for name in ("loss", "grad_norm", "entropy") if name in q.keys)
    for key in (*(x.key for x in q.kls), *names):
        every = zip(q.log.steps, q.log.columns[key], strict=True)
        broken = [(s, x) for s, x in every if math.isinf(x)]
        broken = list(q.log.recorded.broken.get(key, ())) if q.log.recorded else broken
        if broken:
            topic = "not_a_number" if math.isnan(broken[0][1]) else "infinite"
            steps = [s for s, _ in broken]
            cause = _overflow(q, key, steps[0])
            yield sentence(topic, key=key, steps=steps_text(steps), step=steps[0], cause=cause)


OVERFLOW = {"float16": 11.09, "float32": 88.72}  # the log-ratio whose exponential is infinite, inside K3


def _overflow(q: Quantities, key: str, step: float) -> str:
    """Return what the exact KL and the largest log-ratio of a row say of a number that is none."""
    row = list(q.log.steps).index(step)
    exact, largest = (x[row] if (x := q.recorded(name)) else math.nan for name in ("kl", "largest_log_ratio"))
    text = ""
    if key == "kl" and q.log.recorded:
        text = " A model's own output is broken, or gives a token no probability."
    elif math.isfinite(exact):
        text = f" The exact KL of the same tokens is {number(exact)}: the two distributions are in order."
    if largest >= OVERFLOW["float16"]:
        kind = "any precision" if largest > OVERFLOW["float32"] else "float16"
        text += f" The largest log-ratio is {number(largest)}: its exponential overflows in {kind}."
    return text


def pairs(q: Quantities, first: str, second: str) -> Iterator[tuple[KlNumber, KlNumber]]:
    """Yield two KLs of the same tokens with these estimators."""
    for a in (x for x in q.kls if x.estimator == first):
        for b in (x for x in q.kls if x.estimator == second):
            same = a.pair == b.pair and a.average == b.average and a.pair not in ("", "old/new", "new/old")
            if same and not any(m.clamp for x in (a, b) for m in x.metrics[:1]):
                yield a, b


def _rows(q: Quantities, *series: Sequence[float]) -> list[tuple[float, ...]]:
    """Return step and values of the rows in which all are known."""
    every = zip(q.log.steps, *series, strict=True)
    return [row for row in every if all(math.isfinite(x) for x in row)]


def mean_ratios(q: Quantities) -> Iterator[RunVerdict]:
    """K1 and K3 of the same tokens: the mean of reference/policy has an expectation of at most 1."""
    for k1, k3 in pairs(q, "K1", "K3"):
        rows = _rows(q, k1.series, k3.series)
        ratios = [mean_ratio(a, b) for _, a, b in rows]
        if not ratios:
            continue
        half = q.half_digit(k1.key) + q.half_digit(k3.key)
        if min(ratios) < -half:
            yield sentence("not_same_tokens", k1=k1.key, k3=k3.key, low=min(ratios))
        elif largest_product(max(x - half, 1e-12) for x in ratios) > UNLIKELY:
            yield _ratio_sentence(q, k1.key, k3.key, median(ratios) or 0.0, len(ratios))
    noted, own = q.log.config.get("k1"), q.reference
    if isinstance(noted, float) and own is not None and not own.metrics and finite(own.series):
        last = finite(own.series)[-1]
        ratio = mean_ratio(noted, last)
        if ratio > 10:
            yield sentence("mean_ratio_in_prose", k1=noted, k3=last, key=own.key, ratio=ratio)
    top, mean = q.log.config.get("kl max"), q.log.config.get("kl mean")
    if isinstance(top, float) and isinstance(mean, float) and mean > 0 and top > 20:
        yield sentence("one_token_mean", tokens=top / mean, mean=mean, top=top, r=-math.log(top))


def _ratio_sentence(q: Quantities, k1: str, k3: str, ratio: float, rows: int) -> RunVerdict:
    key = "mean_ratio_sampled" if q.sampled_otherwise else "mean_ratio"
    return sentence(key, k1=k1, k3=k3, ratio=ratio, rows=rows, why_not=q.sampled_otherwise)


def second_moments(q: Quantities) -> Iterator[RunVerdict]:
    """K1 and K2 of the same tokens: K2 is at least K1^2 / 2."""
    for k1, k2 in pairs(q, "K1", "K2"):
        wrong = [row for row in _rows(q, k1.series, k2.series) if not pair_bounds(row[1], row[2])]
        if wrong:
            step, a, b = wrong[0]
            yield sentence("second_moment", k1=k1.key, k2=k2.key, a=a, b=b, rows=len(wrong), step=step)


def impossible_answers(q: Quantities) -> Iterator[RunVerdict]:
    """One answer per row by the maxima of verl: its log-ratio is at most -(rewards/max - score/max)/beta."""
    beta = beta_of(q).value
    if not beta or not {"score_max", "rewards_max"} <= set(q.keys):
        return
    betas = q.betas() or [beta] * len(q.log.steps)
    rows = [x for x in _rows(q, q.series("score_max"), q.series("rewards_max"), betas) if x[3] > 0]
    half = q.half_digit(q.keys["score_max"]) + q.half_digit(q.keys["rewards_max"])
    answers = q.options.answers or float(MOST_ANSWERS)
    longest = max(finite(q.series("longest")), default=0.0)
    limit = tail_threshold(answers * max(1, len(rows))) + longest * q.cut_off
    nats = [(step, (high - score - half) / each) for step, score, high, each in rows]
    beyond = [(step, c) for step, c in nats if c > limit]
    if not beyond:
        return
    step, most = max(beyond, key=lambda x: x[1])
    steps, grad = [s for s, _ in beyond], ""
    norms = _rows(q, q.series("grad_norm")) if "grad_norm" in q.keys else []
    inside = [x for s, x in norms if s in set(steps)]
    outside = [x for s, x in norms if s not in set(steps)]
    if inside and outside and (median(inside) or 0) > 2 * (median(outside) or 0):
        grad = f" In these rows the norm of the gradient is {number(median(inside) or 0)} in the median, "
        grad += f"against {number(median(outside) or 0)} in the others."
    cut = f" First rule out {q.sampled_otherwise} of the sampler." if q.sampled_otherwise else ""
    yield sentence(
        "impossible_answer",
        rows=len(beyond),
        count=len(rows),
        steps=steps_text(steps),
        most=most,
        limit=limit,
        answers=f"{answers:,.0f}",
        grad=grad,
        cut=cut,
        step=step,
    )


def negative_means(q: Quantities) -> Iterator[RunVerdict]:
    """Means of K1 that are more negative than any sample of the policy allows, and those that are noise."""
    for kl in q.kls:
        if kl.estimator not in ("K1", "-K1", "") or (
            kl.metrics and (kl.metrics[0].factor or not kl.to_reference)
        ):
            continue  # a new policy was trained on the samples of the old one
        turned, half = kl.estimator == "-K1", max(q.half_digit(kl.key), 1e-9)
        rows = [
            (s, -x if turned else x, i) for i, (s, x) in enumerate(zip(q.log.steps, kl.series, strict=True))
        ]
        negative = [row for row in rows if math.isfinite(row[1]) and row[1] < -half]
        if not negative:
            continue
        if not kl.metrics and not _is_token_mean(kl):
            continue
        step, low, row = min(negative, key=lambda r: -_exponent(q, kl, r[1], r[2]))
        c = _exponent(q, kl, low, row)
        never = sum(_exponent(q, kl, x, i) > CHANCE + math.log(len(rows)) for _, x, i in negative)
        if never:
            key = "never_negative" if kl.metrics else "never_negative_own"
            yield sentence(
                key,
                key=kl.key,
                low=low,
                c=c,
                rows=never,
                count=len(rows),
                step=step,
                of=_sum_of(q, row),
                token=_lowest_token(q, kl),
                start=-(q.early(kl.series) or 0.0),
                end=-(q.late(kl.series) or 0.0),
            )
        elif kl.metrics and kl.estimator == "K1":
            yield sentence("negative_noise", key=kl.key, rows=len(negative), count=len(rows))


def _lowest_token(q: Quantities, kl: KlNumber) -> str:
    """Return a sentence on the minimum that an own key logs beside its mean."""
    series = q.log.columns.get(kl.key.removesuffix("mean") + "min", [])
    low = min(finite(series), default=0.0)
    if low > -1 or not kl.key.endswith("mean"):
        return ""
    return (
        f" Its minimum of {number(low)} is then a token that the reference gives e^{number(low)} of the "
        "policy's probability."
    )


def _is_token_mean(kl: KlNumber) -> bool:
    """Whether a key of no framework says that it is a mean over tokens, as by "token" and "mean"."""
    return "token" in kl.key and kl.key.endswith("mean")


def _exponent(q: Quantities, kl: KlNumber, mean: float, row: int) -> float:
    """Return c: this mean, or a lower one, has a probability of at most exp(-c)."""
    answers, lengths, shortest = q.answers or 1.0, q.series("length"), q.series("shortest")
    if kl.average == "sum":
        return negative_mean_exponent(mean + (lengths[row] if lengths else 0.0) * q.cut_off, answers)
    mean += q.cut_off
    if kl.average == "answers":
        return negative_mean_exponent(mean, (shortest[row] if shortest else 1.0) * answers)
    return negative_mean_exponent(mean, q.tokens(row) or (lengths[row] if lengths else 1.0))


def _sum_of(q: Quantities, row: int) -> str:
    answers, lengths = q.answers, q.series("length")
    if answers:
        return f"the {answers:,.0f} answers of its row"
    return "a single answer of mean length" if lengths and math.isfinite(lengths[row]) else "a single token"


def impossible_tokens(q: Quantities) -> Iterator[RunVerdict]:
    """The smallest log-ratio of a token beside its mean: P(r <= -c) <= exp(-c)."""
    names = {plain(key): key for key in q.log.columns}
    for kl in q.kls:
        stem = plain(kl.key).removesuffix("/mean").removesuffix("_mean")
        low = names.get(f"{stem}/min", names.get(f"{stem}_min"))
        if low is None or kl.estimator != "K1":
            continue
        rows = _rows(q, q.log.columns[low])
        tokens = max((q.tokens(i) or 1e7 for i in range(len(q.log.steps))), default=1e7)
        limit = tail_threshold(tokens * max(1, len(rows)), math.exp(-q.cut_off))
        beyond = [(s, -x) for s, x in rows if -x > limit]
        if beyond:
            step, most = max(beyond, key=lambda x: x[1])
            yield sentence(
                "impossible_token",
                key=low,
                rows=len(beyond),
                count=len(rows),
                most=most,
                limit=limit,
                step=step,
            )


CHECKS = (
    impossible_answers,
    impossible_tokens,
    negative_means,
    mean_ratios,
    second_moments,
    impossible_values,
    infinite_values,
)
