"""The number that a trainer logs, beside the exact KL: what it is, its bias and its noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kl_companion.estimators.registry import ESTIMATORS, get_estimator
from kl_companion.monitor.logs.descriptions import describe
from kl_companion.monitor.logs.quantities import Quantities
from kl_companion.monitor.logs.recorded_tokens import unlikely_tokens
from kl_companion.monitor.logs.sentences import RunVerdict, sentence
from kl_companion.monitor.logs.words import LEAST_KL, finite, mean, median, number, percent, visible
from kl_companion.plotting import label

BIAS_TO_NOTE = 0.1  # a target KL that is a tenth off is well within what anyone tunes
BIAS_TO_ACT = 0.5  # from here on, comparing with another run's KL misleads
NOISE_TO_NOTE = 0.5  # a standard error of half the KL: one value says no more than its order of magnitude
NOT_NOISE = 4.0  # standard errors, of half of the observations: by chance once in 15,000 of a single one
ONE_SIDED = 1.5  # standard errors, and all to one side: by chance once in 3,000 runs of MANY observations
MANY = 10
MOSTLY = 3.0  # times the other part of a difference


def name_of(q: Quantities) -> str:
    """Return the estimator that the trainer logs, in words."""
    named = q.setting("estimator")
    exact = {"exact_kl": "the exact KL", "exact_forward_kl": "the exact forward KL"}
    return exact.get(named) or visible(label(named)) if named else "the trainer's number"


def of_forward(q: Quantities) -> bool:
    """Return whether the estimator that is logged is one of the forward KL."""
    named = q.setting("estimator")
    return named in ESTIMATORS and get_estimator(named).target == "forward_kl"


def equal_number(q: Quantities) -> Iterator[RunVerdict]:
    """An estimator, sign, average or pair that gives the logged number in every row to the last digit."""
    recorded, kl, named = q.log.recorded, q.logged, q.setting("estimator")
    if recorded is None or kl is None or recorded.number.lower() in ("", f"{named} policy/reference tokens"):
        return
    key = "turned_sign" if kl.estimator.startswith("-") else "another_number" if named else "equal_number"
    row = _last(q)
    numbers: dict[str, Any] = {name: row.get(name, math.nan) for name in ("logged", "kl")}
    yield sentence(key, name=describe(kl), rows=len(recorded.logged_as), named=name_of(q), **numbers)


def not_its_noise(q: Quantities) -> Iterator[RunVerdict]:
    """A logged number that deviates from its own expectation by more than sampling explains."""
    z = z_scores(q)
    middle, size = median(z), median([abs(x) for x in z])
    if middle is None or size is None:
        return
    sided = len(z) >= MANY and abs(middle) >= ONE_SIDED
    off = mean([abs(x) for x in finite(q.recorded("logged_noise"))])
    if (size < NOT_NOISE and not sided) or (off or 0) < BIAS_TO_NOTE * (mean(q.recorded("kl")) or 0):
        return
    averages = (mean(q.recorded(name)) or 0.0 for name in ("logged", "logged_expected", "kl"))
    gaps: dict[str, Any] = dict(zip(("logged", "expected", "kl"), averages, strict=True))
    yield sentence("not_its_noise", name=name_of(q), size=size, count=len(z), **gaps)


def z_scores(q: Quantities) -> list[float]:
    """Return the noise of the logged number in units of its standard error, where both are known.

    Rows with a token that is no sample of the policy are left out: their noise is not the estimator's.
    """
    unlikely = unlikely_tokens(q)
    every = zip(q.log.steps, q.recorded("logged_noise"), q.recorded("logged_error"), strict=False)
    return finite(noise / error for step, noise, error in every if error and step not in unlikely)


def bias(q: Quantities) -> Iterator[RunVerdict]:
    """A number whose expectation is not the exact KL."""
    kl, off, named = q.recent("kl"), q.recent("logged_bias"), q.setting("estimator")
    if kl is None or off is None or kl < LEAST_KL or abs(off) < BIAS_TO_NOTE * kl:
        return
    if of_forward(q):
        yield sentence("other_divergence", name=name_of(q), forward=kl + off, kl=kl)
        return
    share = off / kl
    last = _last(q)
    yield sentence(
        "bias",
        "wrong" if abs(share) >= BIAS_TO_ACT else "attention",
        name=name_of(q),
        verb="overstates" if off > 0 else "understates",
        share=percent(abs(share)),
        expected=kl + off,
        kl=kl,
        gradient=" As a loss, K2 has the gradient of the reverse KL all the same." * (named == "k2"),
        last=f" The last logged number is {number(last['logged'])}.{_parts(last)}"
        if "logged" in last
        else "",
    )


def noise(q: Quantities) -> Iterator[RunVerdict]:
    """A number that is mostly noise."""
    kl, error = q.recent("kl"), q.recent("logged_error")
    if kl is None or error is None or kl < LEAST_KL or error < NOISE_TO_NOTE * kl:
        return
    others = {name: q.recent(f"{name.lower()}_error") for name in ("K1", "K3")}
    errors = {name: x for name, x in others.items() if x is not None}
    best = min(errors, key=lambda name: errors[name]) if errors else ""
    better = bool(best) and errors[best] < error / 2
    yield sentence(
        "one_value",
        error=error,
        kl=kl,
        values=math.ceil((error / kl / 0.1) ** 2),
        better=f" On the same tokens {best} would have {number(errors[best])}." if better else "",
        best=best if better else "the exact KL",
    )


def what_it_is(q: Quantities) -> Iterator[RunVerdict]:
    """The last logged number, taken apart into KL, bias and noise."""
    row = _last(q)
    if not {"logged", "kl"} <= row.keys():
        return
    gaps: dict[str, Any] = {"logged": row["logged"], "kl": row["kl"], "name": name_of(q)}
    step = q.log.steps[q.observed]
    if not {"logged_noise", "logged_bias"} <= row.keys():
        yield sentence("logged_unknown", step=step, **gaps)
    elif of_forward(q) and "forward_kl" in row:
        yield sentence("logged_forward", step=step, forward=row["forward_kl"], **gaps)
    else:
        tokens = round(q.observed_tokens()[q.observed])
        yield sentence("logged", step=step, off=_off(row), tokens=tokens, parts=_parts(row), **gaps)


def _last(q: Quantities) -> dict[str, float]:
    """Return the recorded numbers of the last row that are known and finite."""
    names = ("logged", "kl", "forward_kl", "logged_bias", "logged_noise", "logged_error")
    values = {name: x[q.observed] for name in names if (x := q.recorded(name))}
    return {name: x for name, x in values.items() if math.isfinite(x)}


def _parts(row: dict[str, float]) -> str:
    """Return the difference between the logged number and the exact KL, taken apart, as a sentence."""
    if not {"logged_bias", "logged_noise"} <= row.keys():
        return ""
    text = (
        f" Of the difference, {number(row['logged_bias'])} is bias and {number(row['logged_noise'])} is noise"
    )
    return (
        f"{text}, whose standard error is {number(row['logged_error'])}."
        if "logged_error" in row
        else f"{text}."
    )


def _off(row: dict[str, float]) -> str:
    """Return how far the logged number is from the exact KL, and by what."""
    by_noise, by_bias = row["logged_noise"], row["logged_bias"]
    difference = by_noise + by_bias
    if abs(difference) < 5e-6:
        return "the exact KL"
    cause = "bias and noise"
    if abs(by_noise) > NOT_NOISE * row.get("logged_error", math.inf):
        cause = "more than noise"
    elif abs(by_noise) >= MOSTLY * abs(by_bias):
        cause = "noise"
    elif abs(by_bias) >= MOSTLY * abs(by_noise):
        cause = "bias"
    return f"{number(abs(difference))} too {'high' if difference > 0 else 'low'}: {cause}"


def verdict_on_the_number(q: Quantities) -> Iterator[RunVerdict]:
    """What is wrong with the logged number; its parts where nothing is."""
    parts = [*equal_number(q)] or [*not_its_noise(q)]
    parts += bias(q)
    yield from parts or what_it_is(q)
    yield from noise(q)
