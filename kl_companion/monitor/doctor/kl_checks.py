"""The KL term: which model it is measured to, in which form, and whether anything multiplies or cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from kl_companion.auditing.judgment.words import divergence_words
from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import call_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import ABS, NOTHING, same, words
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Line, Trace

_ALIKE = 1e-3  # of the gradient with another reference: log-probs in float32 are not alike to the last digit
_NOTHING_ACTS = " Nor has anything else: if the step calls zero_grad() after backward(), leave that out."
_DIFFERENCES = ("sub", "rsub", "isub", "subtract", "kl_div", "mse_loss")
_SUMS = (*_DIFFERENCES, "add", "radd", "iadd", "stack", "cat")
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max", "minimum", "maximum", "min", "max")


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
    """Whether policy and reference are scored in the same way: where they are equal there is no KL."""
    known = probe.form
    placement = probe.placement
    if not placement or (placement == "loss" and known is not None and known.name in ("k1", ABS)):
        return  # they have a gradient also where their value is 0
    off = probe.alike.completion.abs().max().item()
    if off <= _ALIKE * probe.plain.completion.abs().max().item() or not probe.reads_reference:
        return
    meeting = probe.trace.meeting(POLICY, REFERENCE)
    if placement == "loss" and known is not None and known.beside:
        yield finding("alike.beside")
    elif placement != "loss":
        yield finding(f"alike.{placement}", meeting)
    else:
        yield finding("alike.loss", call_line(probe, REFERENCE) or meeting)


def form(probe: Probe) -> Iterator[DoctorFinding]:
    """What the KL of one token is as a function of the log-ratio, and whether anything multiplies it."""
    if not probe.placement:
        return
    if probe.placement == "whole":
        name, t = probe.divergence
        of = f"the exact {divergence_words(name)}" if name else "no known divergence"
        sampled = probe.subject.declared.temperature
        at = "" if t == sampled else f" at temperature {t:g}; answers are sampled at {sampled:g}"
        yield finding("form.whole", of=of, at=at)
        return
    if not probe.reads_reference and probe.form is None:
        return  # what acts is no KL: said by `reference`
    near, rewarded = probe.near, probe.near_rewarded
    meeting = probe.trace.meeting(POLICY, REFERENCE) or probe.trace.meeting((POLICY, FROZEN), REFERENCE)
    plain = (near.own - near.own[0])[1:]
    mixed = (rewarded.own - rewarded.own[0])[1:]
    if probe.placement == "loss" and not same(plain, mixed):
        yield finding("form.times-advantage", probe.trace.meeting(REFERENCE, "advantages") or meeting)
        return
    found = probe.form
    if found is None:
        yield finding(f"form.unknown-{probe.placement}", meeting)
        return
    if found.name == "k1" and not (found.exchanged or found.ratio) and probe.placement == "loss":
        yield finding("form.k1-loss", meeting)
    elif found.weight < 0:
        line = probe.trace.meeting(REFERENCE, "advantages") or meeting
        yield finding(f"form.sign-{probe.placement}", line, title=found.title)
    elif found.exchanged:
        or_sign = ", or the sign is wrong" if found.name == "k1" else ""
        yield finding("form.exchanged", meeting, or_sign=or_sign, title=found.title)
    else:
        times = ", times a ratio that carries a gradient" if found.ratio else ""
        yield finding("form.fine", title=found.title, times=times, placement=probe.placement)
    yield from _clipped(probe, meeting)


def _clipped(probe: Probe, meeting: Line | None) -> Iterator[DoctorFinding]:
    """Where the term stops being what it is for small log-ratios."""
    limits = probe.limits
    if not limits:
        return
    found = probe.form
    assert found is not None
    dead = all(abs(limit.own) < 1e-9 * abs(found.weight) for limit in limits) and probe.placement == "loss"
    what = "its gradient is 0" if dead else "it is no longer what it is for small ones"
    where = words([f"{'below' if limit.delta < 0 else 'above'} {limit.delta:.2g}" for limit in limits])
    clamps = [
        op.line
        for op in probe.trace.operations
        if op.name in _CLAMPS and REFERENCE in op.all_origins and "advantages" not in op.all_origins
    ]
    yield finding("clip.cut", clamps[-1] if clamps else meeting, where=where, what=what)
