"""Verdicts on the number that the trainer logs: what it estimates, its bias and its noise."""

from __future__ import annotations

import math
from typing import Any

from kl_companion.estimators.registry import ESTIMATORS, get_estimator
from kl_companion.monitor.observation import Observation
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.unlikely_tokens import unlikely_tokens
from kl_companion.monitor.report.verdicts import (
    LEAST_KL,
    RECENT,
    RunVerdict,
    finite,
    is_finite,
    mean,
    median,
    number,
    percent,
    recent,
    verdict,
    visible,
)
from kl_companion.plotting import label

BIAS_TO_NOTE = 0.1  # a target KL that is a tenth off is well within what anyone tunes
BIAS_TO_ACT = 0.5  # from here on, comparing with another run's KL misleads
NOISE_TO_NOTE = 0.5  # a standard error of half the KL: one value says no more than its order of magnitude
NOT_NOISE = 4.0  # standard errors, of half of the observations: by chance once in 15,000 of a single one
ONE_SIDED = 1.5  # standard errors, and all to one side: by chance once in 3,000 runs of MANY observations
MANY = 10
MOSTLY = 3.0  # times the other part of a difference


def name_of(run: MonitoredRun) -> str:
    """The estimator that the trainer logs, in words."""
    named = run.settings.get("estimator")
    exact = {"exact_kl": "the exact KL", "exact_forward_kl": "the exact forward KL"}
    return exact.get(named) or visible(label(named)) if named else "the trainer's number"


def of_forward(run: MonitoredRun) -> bool:
    """Whether what is logged estimates the forward KL."""
    named = run.settings.get("estimator")
    return named in ESTIMATORS and get_estimator(named).target == "forward_kl"


def not_its_noise(run: MonitoredRun) -> RunVerdict | None:
    """A logged number that deviates from its own expectation by more than sampling explains."""
    z = z_scores(run)
    middle, size = median(z), median([abs(x) for x in z])
    if middle is None or size is None:
        return None
    sided = len(z) >= MANY and abs(middle) >= ONE_SIDED
    off = mean([abs(x) for x in finite(run.series("logged_noise"))])
    if (size < NOT_NOISE and not sided) or (off or 0) < BIAS_TO_NOTE * (mean(run.series("kl")) or 0):
        return None
    averages = (mean(run.series(name)) or 0.0 for name in ("logged", "logged_expected", "kl"))
    given: dict[str, Any] = dict(zip(("logged", "expected", "kl"), averages, strict=True))
    return verdict("not_its_noise", name=name_of(run), size=size, count=len(z), **given)


def z_scores(run: MonitoredRun) -> list[float]:
    """Noise of the logged number in units of its standard error, where both are known.

    Observations with a token that is no sample of the policy are left out: that noise is not the estimator's.
    """
    unlikely = unlikely_tokens(run)
    return [
        row.logged_noise / row.logged_error
        for row in run.observations
        if is_finite(row.logged_noise)
        and is_finite(row.logged_error)
        and row.logged_error
        and row.step not in unlikely
    ]


def bias(run: MonitoredRun) -> RunVerdict | None:
    """A number whose expectation is not the exact KL."""
    kl, off, named = recent(run, "kl"), recent(run, "logged_bias"), run.settings.get("estimator")
    if kl is None or off is None or kl < LEAST_KL or abs(off) < BIAS_TO_NOTE * kl:
        return None
    if of_forward(run):
        return verdict("other_divergence", name=name_of(run), forward=kl + off, kl=kl)
    share = off / kl
    return verdict(
        "bias",
        "wrong" if abs(share) >= BIAS_TO_ACT else "attention",
        name=name_of(run),
        verb="overstates" if off > 0 else "understates",
        share=percent(abs(share)),
        expected=kl + off,
        kl=kl,
        gradient=" As a loss, K2 has the gradient of the reverse KL all the same." * (named == "k2"),
        last=_last(run),
    )


def negative(run: MonitoredRun) -> RunVerdict | None:
    """Negative logged numbers: noise of K1, or no KL at all."""
    rows = [r for r in run.observations if r.logged is not None and -math.inf < r.logged < 0]
    if not rows:
        return None
    lowest = min(rows, key=lambda r: r.logged or 0)
    seen = f"The logged number is negative at {len(rows)} of {len(run.observations)} observations, "
    seen += f"{number(lowest.logged or 0)} at the lowest (step {lowest.step})"
    named = run.settings.get("estimator")
    if named in ("k2", "k3", "exact_kl"):
        return verdict("negative_sum", step=lowest.step, seen=seen, name=label(named))
    error = lowest.logged_error
    if named != "k1" or not error or lowest.logged_noise is None:
        return None
    worst = abs(lowest.logged_noise / error)
    if worst > NOT_NOISE:
        return None  # `not_its_noise`, or an outlier among many
    quieter = "" if lowest.k3_error is None else f"; K3 would have had {number(lowest.k3_error)}"
    return verdict("negative", step=lowest.step, seen=seen, worst=worst, error=error, quieter=quieter)


def noise(run: MonitoredRun) -> RunVerdict | None:
    """A number that is mostly noise."""
    kl, errors = recent(run, "kl"), finite(run.series("logged_error"))[-RECENT:]
    if kl is None or not errors or kl < LEAST_KL:
        return None
    error = math.sqrt(sum(x * x for x in errors) / len(errors))
    if error < NOISE_TO_NOTE * kl:
        return None
    others = {n.upper(): recent(run, f"{n}_error") for n in ("k1", "k2", "k3")}
    known = {n: x for n, x in others.items() if x is not None and n != "K2"}
    best = min(known, key=lambda n: known[n]) if known else ""
    better = bool(best) and known[best] < error / 2
    return verdict(
        "noise",
        error=error,
        kl=kl,
        values=math.ceil((error / kl / 0.1) ** 2),
        better=f" On the same tokens {best} would have {number(known[best])}." if better else "",
        best=best if better else "the exact KL",
    )


def what_it_is(run: MonitoredRun) -> RunVerdict | None:
    """The last logged number, taken apart into KL, bias and noise."""
    row = run.last
    if not is_finite(row.logged) or not is_finite(row.kl):
        return None
    given: dict[str, Any] = {"step": row.step, "logged": row.logged, "kl": row.kl, "name": name_of(run)}
    if row.logged_noise is None or row.logged_bias is None:
        return verdict("logged_unknown", **given)
    if of_forward(run) and row.forward_kl is not None:
        return verdict("logged_forward", forward=row.forward_kl, **given)
    return verdict("logged", off=_off(row), tokens=row.tokens, parts=_parts(row), **given)


def _last(run: MonitoredRun) -> str:
    if not is_finite(run.last.logged):
        return ""
    return f" The last logged number is {number(run.last.logged)}.{_parts(run.last)}"


def _parts(row: Observation) -> str:
    """The difference between the logged number and the exact KL, taken apart."""
    if row.logged is None or row.logged_bias is None or row.logged_noise is None:
        return ""
    said = f" Of the difference, {number(row.logged_bias)} is bias and {number(row.logged_noise)} is noise"
    if row.logged_error is None:
        return f"{said}."
    return f"{said}, whose standard error is {number(row.logged_error)}."


def _off(row: Observation) -> str:
    """How far the logged number is from the exact KL, and by what."""
    noise, bias = row.logged_noise or 0.0, row.logged_bias or 0.0
    difference = noise + bias
    if abs(difference) < 5e-6:
        return "the exact KL"
    cause = "bias and noise"
    if row.logged_error is not None and abs(noise) > NOT_NOISE * row.logged_error:
        cause = "more than noise"
    elif abs(noise) >= MOSTLY * abs(bias):
        cause = "noise"
    elif abs(bias) >= MOSTLY * abs(noise):
        cause = "bias"
    return f"{number(abs(difference))} too {'high' if difference > 0 else 'low'}: {cause}"


def negative_loss(run: MonitoredRun) -> RunVerdict | None:
    """Negative losses, which are normal."""
    below = [x for x in finite(run.series("loss")) if x < 0]
    if not below:
        return None
    return verdict("negative_loss", below=len(below), count=len(run.observations))
