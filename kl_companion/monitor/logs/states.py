"""States of a log that its columns show together: no gradient, no KL, a term in the loss, two engines."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.keys import RECORDED, bounds, looks_like_kl, plain, possible_metrics
from kl_companion.monitor.logs.quantities import KlNumber, Quantities
from kl_companion.monitor.logs.sentences import RunVerdict, sentence
from kl_companion.monitor.logs.words import finite, number, percent, two_digits

NO_KL, LEAST_ROWS = 1e-7, 5  # nats per token: rounding of two passes of one model in float32; and rows
ENGINES = ("trainer/engine", "engine/trainer", "sampler/trainer")
UNSAMPLED = 0.01  # of the trainer's probability, on tokens that the engine does not sample
BF16 = 2e-2  # nats per token, mean absolute difference of log-probs that bfloat16 alone explains


def no_gradient(q: Quantities) -> Iterator[RunVerdict]:
    """A gradient of exactly 0 although rewards differ and the learning rate is not 0."""
    norms, sigma, rates = (finite(q.series(name)) for name in ("grad_norm", "sigma", "lr"))
    if len(norms) >= 2 and not any(norms) and any(sigma) and any(rates):
        equal = finite(q.series("equal_groups"))
        groups = (
            f" ({percent(1 - max(equal))} of the groups differ at least)" if equal and max(equal) < 1 else ""
        )
        yield sentence("no_gradient", rows=len(norms), sigma=max(sigma), groups=groups)


def no_kl(q: Quantities) -> Iterator[RunVerdict]:
    """A column of a KL that is empty, NaN, or 0."""
    for kl in q.kls:
        recorded = bool(kl.metrics) and kl.metrics[0].framework == RECORDED
        if (recorded and kl is not q.reference) or not (kl.to_reference or not kl.metrics):
            continue
        values = finite(kl.series)
        if kl.estimator == "exact" and len(values) >= LEAST_ROWS and max(values) <= NO_KL:
            yield sentence("no_kl", key=kl.key, count=len(values))
            return
        if not values:
            yield sentence("kl_is_nan", key=kl.key, release=_default_zero(q))
        elif not any(values) and len(values) > 1:
            norms = finite(q.series("grad_norm"))
            yield sentence(
                "kl_is_zero_without_gradient" if norms and not any(norms) else "kl_is_zero", key=kl.key
            )
        elif values[0] == 0 and len(values) > 1 and q.log.steps[0] <= 1:
            half = q.half_digit(kl.key)
            note = f" The column is rounded: 0 is anything below {number(half)}." if half else ""
            yield sentence("first_row_zero", key=kl.key, note=note)


def _default_zero(q: Quantities) -> str:
    if q.release.framework != "TRL GRPO":
        return ""
    return " TRL's default is β = 0 from 0.19.0 on (0.04 before), and then it computes no KL."


def reference_not_logged(q: Quantities) -> Iterator[RunVerdict]:
    """No distance to a reference in the log at all."""
    if any(kl.to_reference for kl in q.kls):
        return
    named = [kl for kl in q.kls if kl.metrics]
    own = [kl.key for kl in q.kls if not kl.metrics]
    if named:
        pairs = dict.fromkeys(kl.pair for kl in named)
        keys = "; ".join(f"{', '.join(kl.key for kl in named if kl.pair == x)} (between {x})" for x in pairs)
        other = f" What {own[0]} is, only its code says." if own else ""
        yield sentence("no_reference", keys=keys, other=other)
    elif not own:
        yield sentence("no_kl_at_all")


def other_pair(q: Quantities) -> Iterator[RunVerdict]:
    """KLs between old and new policy, which are read as the reference's."""
    for kl in q.kls:
        if kl.pair not in ("old/new", "new/old", "old/policy") or kl.estimator == "K2":
            continue
        size = max((abs(x) for x in finite(kl.series)), default=0.0)
        half = q.half_digit(kl.key)
        shown = two_digits(size) if size else f"0, rounded by {number(half)}" if half else "0"
        yield sentence("old_new", key=kl.key, size=shown, zero=_ZERO if size < 1e-3 else "")


_ZERO = " A value near 0 is usual (exactly 0 with one update per batch) and says nothing of that distance."


def last_micro_batch(q: Quantities) -> Iterator[RunVerdict]:
    """verl's actor/kl_loss, whose average and factor change with the release."""
    kl = next((x for x in q.kls if plain(x.key) == "actor/kl_loss" and x.metrics), None)
    if kl is None or q.release.framework != "verl":
        return
    if len(kl.metrics) > 1:
        yield sentence("verl_kl_loss", key=kl.key)
    elif bounds(kl.metrics[0].releases)[1] == "0.4":
        yield sentence("verl_last_micro_batch", key=kl.key)
    half = q.half_digit(kl.key)
    values = finite(kl.series)
    if half and values and max(values) <= 20 * half:
        low, high = max(0.0, max(values) - half), max(values) + half
        yield sentence("rounded", key=kl.key, shown=max(values), low=low, high=high)


def sign_is_open(q: Quantities) -> Iterator[RunVerdict]:
    """A term in the loss whose sign no log shows."""
    kl = q.reference
    if kl is None or not kl.metrics or kl.place != "loss" or not any(finite(kl.series)):
        return
    forks = (
        ": forks of this age have had it wrong (look at the line policy_loss - kl_loss * coef of dp_actor.py)"
    )
    old = q.release.framework == "verl" and q.release.high in ("0.3", "0.2", "0.1")
    yield sentence("sign_open", forks=forks if old else "")


def is_loss(q: Quantities) -> Iterator[RunVerdict]:
    """A KL of an own key that equals the loss where all rewards are equal: it is the term of the loss."""
    for kl in _terms(q):
        rows = _equal_rows(q, kl)
        low, high = min(finite(kl.series)), max(finite(kl.series))
        signed = low < -1e-6
        beta = beta_of(q).value
        nats = f" Divided by β = {number(beta)} it reaches {number(high / beta)} nats" if beta else ""
        length = q.late(q.series("length"))
        if nats and length:
            nats += (
                f", {number(high / beta / length) if beta else ''} per token if it is a sum over the answer"
            )
        yield sentence(
            "k1_in_the_loss" if signed else "term_of_the_loss",
            key=kl.key,
            rows=len(rows),
            low=low,
            high=high,
            nats=f"{nats}." if nats else "",
        )


def _terms(q: Quantities) -> list[KlNumber]:
    """Return the own keys that are the loss itself wherever rewards are equal."""
    own = ((kl, _equal_rows(q, kl)) for kl in q.kls if not kl.metrics)
    return [
        kl for kl, rows in own if len(rows) >= 3 and all(abs(a - b) <= 1e-6 + 1e-4 * abs(b) for a, b in rows)
    ]


def _equal_rows(q: Quantities, kl: KlNumber) -> list[tuple[float, float]]:
    """Return loss and KL of the rows in which all rewards are equal."""
    loss, spread = q.series("loss"), q.series("advantage_std") or q.series("sigma")
    every = zip(loss, kl.series, spread, strict=False)
    return [(a, b) for a, b, s in every if s == 0 and math.isfinite(a) and math.isfinite(b) and b != 0]


def rounded_rate(q: Quantities) -> Iterator[RunVerdict]:
    """A learning rate that is printed as 0 because of its few decimals."""
    rates = finite(q.series("lr"))
    half = q.half_digit(q.keys["lr"]) if rates else 0.0
    if rates and not any(rates) and half:
        yield sentence("rate_prints_zero", key=q.keys["lr"], half=half)


def zero_loss(q: Quantities) -> Iterator[RunVerdict]:
    """A loss that prints 0, and a negative one: both are normal."""
    if "loss" not in q.keys:
        return
    loss = finite(q.series("loss"))
    zeros = [x for x in loss if x == 0]
    moves = any(x > 0 for x in finite(q.series("grad_norm"))) or (
        "grad_norm" not in q.keys and q.reference is not None and any(finite(q.reference.series))
    )
    if len(zeros) >= max(1, len(loss) // 20) and moves and q.release.framework in ("TRL GRPO", "Unsloth"):
        yield sentence("loss_prints_zero", rows=len(zeros), count=len(loss))
    if any(x < 0 for x in loss):
        yield sentence("negative_loss")


def equal_rewards(q: Quantities) -> Iterator[RunVerdict]:
    """Rows whose rewards are all equal: no gradient but that of the KL."""
    sigma, series = q.series("sigma"), q.reference
    rows = [s for s, x in zip(q.log.steps, sigma, strict=False) if x == 0]
    known = finite(sigma)
    if rows and series is not None and len(rows) < len(known):
        yield sentence("equal_rewards", rows=len(rows), count=len(known), key=q.keys["sigma"])


def engine(q: Quantities) -> Iterator[RunVerdict]:
    """The distance of the engine that samples to the trainer that scores."""
    means: dict[str, tuple[str, float]] = {}
    for key, series in q.log.columns.items():
        metric = next(iter(possible_metrics(key, q.release)), None)
        last = q.late(series)
        if metric is None or last is None or metric.pair not in ENGINES:
            continue
        if key == "mismatch" and last >= BF16 and q.recorded("mismatch_rounding"):
            continue  # by its causes, which the monitor tells apart
        if metric.kind == "tv":
            yield sentence("engine_bound", key=key, size=last, bound=two_digits(last * last / 2))
        elif metric.kind == "difference" and last > 0:
            size = "engine_normal" if last < BF16 else "engine_far"
            yield sentence(size, key=key, size=last, bound=two_digits(last * last / 2))
        elif metric.kind == "kl":
            size = "engine_kl" if abs(last) < 5e-3 else "engine_kl_far"
            means[f"{metric.estimator} of {metric.pair}"] = key, last
            error, estimator = two_digits(math.sqrt(2 * abs(last))), metric.estimator.replace("-", "minus ")
            yield sentence(
                size, key=key, size=two_digits(last), error=error, estimator=estimator, pair=metric.pair
            )
    (key, k1), (other, k3) = (means.get(f"{x} of engine/trainer", ("", math.nan)) for x in ("K1", "K3"))
    if k1 - k3 > UNSAMPLED:
        yield sentence("engine_unsampled", key=key, other=other, mass=two_digits(k1 - k3))


def scaled_keys(q: Quantities) -> Iterator[RunVerdict]:
    """Numbers that are a KL times beta."""
    for kl in q.kls:
        if kl.metrics and kl.metrics[0].factor and finite(kl.series):
            yield sentence("scaled", key=kl.key, factor="−β" if kl.metrics[0].factor == "-beta" else "β")


def no_kl_despite_its_name(q: Quantities) -> Iterator[RunVerdict]:
    """Keys that are named like a KL, and are none in their framework."""
    for key in q.log.columns:
        metric = next(iter(possible_metrics(key, q.release)), None)
        if metric is not None and metric.kind == "other" and looks_like_kl(key) and metric.note:
            yield sentence("no_kl_by_name", key=key, framework=metric.framework, note=metric.note)


def own_keys(q: Quantities) -> Iterator[RunVerdict]:
    """Keys that are named like a KL and are of no framework."""
    own: list[KlNumber] = [x for x in q.kls if not x.metrics and any(finite(x.series))]
    explained = {x.key for x in _terms(q)}
    heads = [
        x
        for x in own
        if x.key not in explained and not any(x.key.startswith(f"{y.key}/") for y in q.kls if y is not x)
    ]
    if heads:
        yield sentence("own_key", keys=", ".join(x.key for x in heads[:4]))


CHECKS = (
    no_gradient,
    is_loss,
    no_kl,
    reference_not_logged,
    other_pair,
    last_micro_batch,
    engine,
    scaled_keys,
    no_kl_despite_its_name,
    equal_rewards,
    zero_loss,
    rounded_rate,
    own_keys,
    sign_is_open,
)
