"""The KL term: which model it is measured to, in which form, and whether anything multiplies or cuts it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kl_companion.auditing.judgment.words import divergence_words
from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import (
    call_line,
    clamp_lines,
    formula_line,
    graded_advantages,
    source_of,
)
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import ABS, NOTHING, off_share, same, words
from kl_companion.monitor.doctor.term_measurements import (
    entropy_beside,
    mixture,
    of_log_ratios,
    rises_with_ratio,
    twice,
)
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Line, Trace

_ALIKE = 1e-3  # of the gradient with another reference: log-probs in float32 are not alike to the last digit
_NOTHING_ACTS = " Nor has anything else."
_DIFFERENCES = ("sub", "rsub", "isub", "subtract", "kl_div", "mse_loss")
_SUMS = (*_DIFFERENCES, "add", "radd", "iadd", "stack", "cat")
# what the code calls a divergence of whole distributions
_CLAIMS = {"jensen_shannon": r"(?<![a-z])g?jsd?(?![a-z])|jensen"}


def reference(probe: Probe) -> Iterator[DoctorFinding]:
    """Which model the KL is measured to."""
    declared, trace = probe.subject.declared, probe.trace
    if probe.plain.reference > NOTHING and not probe.reads_reference:
        yield finding("reference.exchanged", trace.meeting((FROZEN, POLICY), REFERENCE))
        return
    if probe.plain.reference > NOTHING:
        yield finding("reference.gradient", call_line(probe, REFERENCE))
    if probe.reads_reference:
        if not (probe.plain.reference > NOTHING or (probe.form is not None and probe.form.exchanged)):
            yield finding("reference.fine")  # else said above, or by the form
        return
    if probe.form is not None:  # K1, whose gradient no reference changes: see `form`
        return
    if abs(probe.plain.loss - probe.elsewhere.loss) > NOTHING:
        acts = probe.rewarded.completion.abs().max() > NOTHING
        line = trace.last([POLICY], ("detach",)) or call_line(probe, POLICY)
        yield finding("reference.detached", line, nothing_acts="" if acts else _NOTHING_ACTS)
        return
    if (
        probe.step is not None
        and off_share(probe.stale[0], probe.rewarded) > _ALIKE
        and probe.plain.completion.abs().max() <= NOTHING
    ):
        level = "reference.sampler" if probe.takes_reference else "reference.sampler-only"
        yield finding(level, trace.meeting(POLICY, "old log-probs"))
        return
    frozen = [f for f in trace.forwards if f.model == "policy" and not f.gradient and not f.base]
    frozen = frozen if _added(trace, (FROZEN, REFERENCE)) else []  # else it only weights advantages
    both = [f for f in trace.forwards if f.model == "policy" and not f.base]
    both = both if len(both) > 1 and declared.beta != 0 and _subtracted(trace) else []
    if trace.merged is not None:
        yield finding("reference.merged", trace.merged)
    elif frozen or both:
        line = (frozen or both)[-1].call
        yield finding("reference.policy", line, same=declared.names.get("same", ""))
    elif any(f.model == "reference" for f in trace.forwards) and declared.beta != 0:
        yield finding("reference.unread", call_line(probe, REFERENCE))
    elif probe.plain.completion.abs().max() > NOTHING:
        yield finding("reference.other")
    else:
        key = "reference.beta-0" if declared.beta == 0 else "reference.none"
        yield finding(key, beta=declared.names.get("beta", ""))


def _added(trace: Trace, origins: tuple[str, ...]) -> bool:
    """Whether something of these origins is added to what advantages multiply, or meets none of them."""
    ops = [op for op in trace.operations if op.all_origins & set(origins)]
    meeting = [
        op
        for op in ops
        if any(x & set(origins) and "advantages" not in x for x in op.origins)
        and "advantages" in op.all_origins
    ]
    return any(op.name in _SUMS for op in meeting) or (bool(ops) and not meeting)


def _subtracted(trace: Trace) -> bool:
    """Whether two things of the policy's are subtracted from each other, before advantages multiply them."""
    return any(
        op.name in _DIFFERENCES and sum(POLICY in x and "advantages" not in x for x in op.origins) > 1
        for op in trace.operations
    )


def alike(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that a reference which is equal to the policy leaves no gradient of a KL."""
    kl_form, placement = probe.form, probe.placement
    if not placement or (placement == "loss" and kl_form is not None and kl_form.name in ("k1", ABS)):
        return  # they have a gradient also where their value is 0
    share = off_share(probe.alike, probe.plain)
    if share <= _ALIKE or not probe.reads_reference:
        return
    meeting = probe.trace.meeting(POLICY, REFERENCE)
    if (placement == "loss" and kl_form is not None and kl_form.beside) or entropy_beside(probe):
        yield finding("alike.beside")
    elif placement == "whole":
        yield finding("alike.whole", meeting, share=f"{share:.0%}")
    elif placement == "reward":
        line = graded_advantages(probe.trace)
        yield finding("alike.reward-graded", line) if line else finding("alike.reward", meeting)
    elif probe.one_coefficient(probe.alike):
        yield finding("alike.formula", formula_line(probe), share=f"{share:.0%}")
    else:
        yield finding("alike.loss", call_line(probe, REFERENCE) or meeting)


def form(probe: Probe) -> Iterator[DoctorFinding]:
    """Name the KL of one token as a function of the log-ratio, and whether anything multiplies it."""
    if not probe.placement or (not probe.reads_reference and probe.form is None):
        return  # what acts is no KL: said by `reference`
    if probe.placement == "whole":
        yield from _whole(probe)
        return
    near, rewarded = probe.near, probe.near_rewarded
    meeting = probe.trace.meeting(POLICY, REFERENCE) or probe.trace.meeting((POLICY, FROZEN), REFERENCE)
    plain = (near.own - near.own[0])[1:]
    mixed = (rewarded.own - rewarded.own[0])[1:]
    if probe.placement == "loss" and not same(plain, mixed):
        yield _with_rewards(probe, meeting)
        return
    term = probe.form
    if term is None:
        yield _unknown(probe, meeting)
        return
    if term.name == "k1" and not (term.exchanged or term.ratio) and probe.placement == "loss":
        yield finding("form.k1-loss", meeting)
    elif not of_log_ratios(probe):
        yield finding("form.probability", formula_line(probe))
        return
    elif term.weight < 0:
        line = probe.trace.meeting(REFERENCE, "advantages") or meeting
        yield finding(f"form.sign-{probe.placement}", line, title=term.title)
    elif term.exchanged:
        or_sign = ", or the sign is wrong" if term.name == "k1" else ""
        yield finding("form.exchanged", meeting, or_sign=or_sign, title=term.title)
    else:
        times = ", times a ratio that carries a gradient" if term.ratio else ""
        times += probe.scaled_by
        yield finding("form.fine", title=term.title, times=times, placement=probe.placement)
    yield from _clipped(probe, meeting)


def _whole(probe: Probe) -> Iterator[DoctorFinding]:
    """Name the divergence whose gradient a whole distribution has, and compare it with the code's name."""
    name, t = probe.divergence
    sampled = probe.subject.declared.temperature
    at = "" if t == sampled else f" at temperature {t:g}; answers are sampled at {sampled:g}"
    words_of_it = f"the exact {divergence_words(name)}" if name else mixture(probe)
    claimed = next((x for x, pattern in _CLAIMS.items() if re.search(pattern, source_of(probe), re.I)), "")
    line = formula_line(probe)
    if claimed and claimed != name:
        what = words_of_it or "no divergence that is known"
        yield finding("form.misnamed", line, claimed=divergence_words(claimed), of=what)
    elif words_of_it:
        yield finding("form.whole", of=words_of_it, at=at)
    elif not rises_with_ratio(probe):
        yield finding("form.no-divergence", line)
    else:
        yield finding("form.whole-unknown", line)


def _with_rewards(probe: Probe, meeting: Line | None) -> DoctorFinding:
    """Return the finding of a term in the loss that unequal rewards change."""
    trace, delta = probe.trace, probe.near.delta
    by_rewards = (probe.near_rewarded.own - probe.near.own).abs()
    acts = by_rewards > 1e-6 * by_rewards.max()  # a clip takes the gradient of large ratios away
    levels = by_rewards[acts].log() - delta[acts]
    if len(levels) > 1 and levels.max() - levels.min() < 1e-3:
        return finding("form.ratio-to-reference", trace.source("advantages", POLICY, REFERENCE) or meeting)
    return finding("form.times-advantage", trace.meeting(REFERENCE, "advantages") or meeting)


def _unknown(probe: Probe, meeting: Line | None) -> DoctorFinding:
    """Return the finding of a term that is no estimator: what its coefficient does as the log-ratio grows."""
    near, placement = probe.near, probe.placement
    both = twice(probe)
    if both is not None:
        line = probe.trace.meeting(REFERENCE, "advantages") or meeting
        return finding("form.twice", line, reward=both[0].title, loss=both[1].title)
    order = near.delta.argsort()
    delta, own = near.delta[order], near.own[order]
    steps, least = own.diff(), 1e-4 * (own.max() - own.min())
    flat = steps.abs() <= least
    for side, inside in (("below", delta[1:] <= 0), ("above", delta[:-1] >= 0)):
        if inside.any() and flat[inside].all() and not flat.all():
            clamps = clamp_lines(probe.trace)
            return finding("form.flat", clamps[-1] if clamps else formula_line(probe), side=side)
    if placement == "loss" and (steps < -least).any():
        at = delta[1:][steps < -least]
        where = f"{at.min().item():.2g} to {at.max().item():.2g}"
        return finding("form.away", formula_line(probe), where=where)
    low, high = delta.min().item(), delta.max().item()
    return finding(f"form.unknown-{placement}", formula_line(probe), low=low, high=high)


def _clipped(probe: Probe, meeting: Line | None) -> Iterator[DoctorFinding]:
    """Where the term stops being what it is for small log-ratios."""
    limits = probe.limits
    if not limits:
        return
    term = probe.form
    assert term is not None
    dead = all(abs(limit.own) < 1e-9 * abs(term.weight) for limit in limits) and probe.placement == "loss"
    what = "its gradient is 0" if dead else "it is no longer what it is for small ones"
    where = words([f"{'below' if limit.delta < 0 else 'above'} {limit.delta:.2g}" for limit in limits])
    clamps = clamp_lines(probe.trace)
    yield finding("clip.cut", clamps[-1] if clamps else meeting, where=where, what=what)
