"""Verdicts on the number that the trainer logs: what it estimates, its bias and its noise."""

from __future__ import annotations

import math

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
    return RunVerdict(
        "wrong",
        "not_its_noise",
        f"The logged number is not {name_of(run)} of these tokens: it is {number(size)} standard errors "
        "away from what that has as expectation.",
        f"That is the middle of {len(z)} observations; noise alone gives 0.7. On average it is "
        f"{number(mean(run.series('logged')) or 0)} where "
        f"{number(mean(run.series('logged_expected')) or 0)} is expected and the exact KL is "
        f"{number(mean(run.series('kl')) or 0)}.",
        "See what the trainer averages: another mask (prompt or padding tokens), a mean per answer instead "
        "of per token, log-probs at another temperature, log-probs of before the update, or a number that β "
        "already multiplies.",
    )


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
        return RunVerdict(
            "attention",
            "other_divergence",
            f"{name_of(run)} estimates the forward KL, {number(kl + off)} nats per token; the reverse KL is "
            f"{number(kl)}.",
            "Both are divergences from the reference, but they are different numbers: a target or a plot of "
            "the one cannot be compared with the other.",
            "Say in the plot which one it is, or log K3, which estimates the reverse KL.",
        )
    share = off / kl
    verb = "overstates" if off > 0 else "understates"
    gradient = " As a loss, K2 has the gradient of the reverse KL all the same." * (named == "k2")
    level = "wrong" if abs(share) >= BIAS_TO_ACT else "attention"
    return RunVerdict(
        level,  # type: ignore[arg-type]
        "bias",
        f"{name_of(run)} {verb} the KL by {percent(abs(share))}: its expectation is {number(kl + off)}, the "
        f"exact KL {number(kl)} nats per token.",
        "That is bias, which no averaging removes. It matters where the number is used: for a target KL, "
        f"for a controller of β, and in comparisons with runs that log another estimator.{gradient}"
        f"{_last(run)}",
        "Log K3 or the exact KL; leave the loss as it is.",
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
        return RunVerdict(
            "wrong",
            "negative",
            f"{seen}: {label(named)} cannot be.",
            "It is a sum of terms of which none is negative.",
            "The trainer logs something else under this name: the loss, a KL with the sign turned, or K1.",
            lowest.step,
        )
    error = lowest.logged_error
    if named != "k1" or not error or lowest.logged_noise is None:
        return None
    worst = abs(lowest.logged_noise / error)
    if worst > NOT_NOISE:
        return None  # `not_its_noise`, or an outlier among many
    quieter = "" if lowest.k3_error is None else f"; K3 would have had {number(lowest.k3_error)}"
    return RunVerdict(
        "fine",
        "negative",
        f"{seen}: that is noise of K1, {number(worst)} standard errors from its expectation.",
        "A KL is never negative, but K1 of single tokens is, for those that the policy made less likely. "
        f"Its standard error is {number(error)} there{quieter}.",
        step=lowest.step,
    )


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
    return RunVerdict(
        "attention",
        "noise",
        f"One value of the logged number is mostly noise: its standard error is {number(error)}, the KL "
        f"{number(kl)}.",
        f"That is sampling of the tokens. A mean of {math.ceil((error / kl / 0.1) ** 2)} values would be "
        "known to 10 %."
        + (f" On the same tokens {best} would have {number(known[best])}." if better else ""),
        f"Log {best if better else 'the exact KL'} instead, or smooth the curve before reading it.",
    )


def what_it_is(run: MonitoredRun) -> RunVerdict | None:
    """The last logged number, taken apart into KL, bias and noise."""
    row = run.last
    if not is_finite(row.logged) or not is_finite(row.kl):
        return None
    said = f"Your logged {number(row.logged)} is {name_of(run)}; the exact KL is {number(row.kl)}."
    if row.logged_noise is None or row.logged_bias is None:
        return RunVerdict(
            "fine", "logged", said, "The run does not say which estimator the number is.", step=row.step
        )
    if of_forward(run) and row.forward_kl is not None:
        said = (
            f"Your logged {number(row.logged)} estimates the forward KL, which is {number(row.forward_kl)}."
        )
        return RunVerdict("fine", "logged", said, f"The reverse KL is {number(row.kl)}.", step=row.step)
    return RunVerdict(
        "fine",
        "logged",
        f"Your logged {number(row.logged)} is {_off(row)} (step {row.step}).",
        f"It is {name_of(run)} of {row.tokens:,} tokens, the exact KL is {number(row.kl)}.{_parts(row)}",
        step=row.step,
    )


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
    return RunVerdict(
        "fine",
        "negative_loss",
        f"The loss is negative at {len(below)} of {len(run.observations)} observations, which is normal.",
        "The reward term is −advantage times a ratio, and advantages have mean zero in a group: its value "
        "says nothing about progress. The KL term adds β times the logged number, and only that part cannot "
        "be below zero.",
    )
