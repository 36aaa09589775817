"""The KL term: which model it is measured to, in which form, and whether anything multiplies or cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from kl_companion.auditing.words import divergence_words
from kl_companion.monitor.doctor.findings import DoctorFinding
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
        yield DoctorFinding(
            "reference",
            "wrong",
            "Policy and reference are exchanged: the KL has a gradient by the reference's parameters and "
            "none by the policy's.",
            trace.meeting((FROZEN, POLICY), REFERENCE),
            "compute the reference's log-probs under torch.no_grad(), and the policy's with a gradient",
            "exchanged",
        )
        return
    if probe.plain.reference > NOTHING:
        yield DoctorFinding(
            "reference",
            "attention",
            "The loss has a gradient by the reference's parameters: unless they are frozen, they are "
            "trained.",
            call_line(probe, REFERENCE),
            "compute the reference's log-probs under torch.no_grad()",
            "reference-gradient",
        )
    if probe.reads_reference:
        if probe.plain.reference > NOTHING or (probe.form is not None and probe.form.exchanged):
            return  # said above, or by the form
        yield DoctorFinding(
            "reference", "fine", "The KL is measured to the reference, which carries no gradient."
        )
        return
    if probe.form is not None:  # K1, whose gradient no reference changes: see `form`
        return
    if abs(probe.plain.loss - probe.elsewhere.loss) > NOTHING:
        yield DoctorFinding(
            "reference",
            "wrong",
            "The KL is in the loss and has no gradient: it is a constant for the optimizer."
            + ("" if probe.rewarded.completion.abs().max() > NOTHING else _NOTHING_ACTS),
            trace.last([POLICY], ("detach",)) or call_line(probe, POLICY),
            "take the policy's log-probs with their gradient: no detach(), no no_grad()",
            "detached",
        )
        return
    acts = probe.plain.completion.abs().max() > NOTHING
    frozen = [f for f in trace.forwards if f.model == "policy" and not f.gradient and not f.base]
    frozen = frozen if _added(trace, (FROZEN, REFERENCE)) else []  # else it only weights advantages
    both = [f for f in trace.forwards if f.model == "policy" and not f.base]
    both = both if len(both) > 1 and declared.beta != 0 and _subtracted(trace) else []
    if trace.merged is not None:
        yield DoctorFinding(
            "reference",
            "wrong",
            "The reference is the merged model: adapters were put into the weights, so that without them it "
            "still is the policy, and the KL is 0.",
            trace.merged,
            "take the reference from the unmerged model: with model.disable_adapter(): ...",
            "merged-reference",
        )
    elif frozen or both:
        yield DoctorFinding(
            "reference",
            "wrong",
            f"The reference is the policy itself: {declared.names.get('same', '')}it follows every update, "
            "the KL is 0 and has no effect.",
            (frozen or both)[-1].call,
            "keep a frozen copy, made before training: ref_model = "
            "copy.deepcopy(model).eval().requires_grad_(False)",
            "policy-reference",
        )
    elif any(f.model == "reference" for f in trace.forwards) and declared.beta != 0:
        yield DoctorFinding(
            "reference",
            "wrong",
            "The reference is scored, and then nothing reads it, its coefficient is 0, or it has become a "
            "copy of the policy.",
            call_line(probe, REFERENCE),
            "update the reference's weights nowhere, and subtract its log-probs",
            "policy-reference",
        )
    elif acts:
        yield DoctorFinding(
            "reference", "attention", "Something acts with equal rewards, and it does not read the reference."
        )
    else:
        zero = " (beta is 0)" if declared.beta == 0 else ""
        yield DoctorFinding(
            "reference",
            "attention",
            f"There is no KL term: nothing reads the reference{zero}.",
            None,
            declared.names.get("beta", ""),
            "" if declared.beta == 0 else "no-reference",
        )


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
    if placement == "loss" and known is not None and known.beside:
        yield DoctorFinding(
            "alike",
            "fine",
            "Besides the KL something acts that does not read the reference, such as an entropy bonus.",
        )
    elif placement != "loss":
        other = "the log-probs in the reward are not detached"
        if placement == "whole":
            other = "policy and reference are not scored alike (temperature, alignment or mask differ)"
        yield DoctorFinding(
            "alike",
            "attention",
            "With equal rewards and a reference that is equal to the policy something still has a gradient: "
            f"there is a term besides the KL, such as an entropy bonus, or {other}.",
            probe.trace.meeting(POLICY, REFERENCE),
            "compute costs in the reward with logp.detach()" if placement == "reward" else "",
        )
    else:
        yield DoctorFinding(
            "alike",
            "wrong",
            "With a reference that is equal to the policy the KL term still has a gradient: the two are not "
            "scored alike (temperature, alignment or mask differ).",
            call_line(probe, REFERENCE) or probe.trace.meeting(POLICY, REFERENCE),
            "score policy and reference by one function",
            "scored-differently",
        )


def form(probe: Probe) -> Iterator[DoctorFinding]:
    """What the KL of one token is as a function of the log-ratio, and whether anything multiplies it."""
    if not probe.placement:
        return
    if probe.placement == "whole":
        name, t = probe.divergence
        of = f"the exact {divergence_words(name)}" if name else "no known divergence"
        sampled = probe.subject.declared.temperature
        at = "" if t == sampled else f" at temperature {t:g}; answers are sampled at {sampled:g}"
        yield DoctorFinding("form", "fine", f"Over the whole vocabulary the gradient is that of {of}{at}.")
        return
    if not probe.reads_reference and probe.form is None:
        return  # what acts is no KL: said by `reference`
    near, rewarded = probe.near, probe.near_rewarded
    meeting = probe.trace.meeting(POLICY, REFERENCE) or probe.trace.meeting((POLICY, FROZEN), REFERENCE)
    plain = (near.own - near.own[0])[1:]
    mixed = (rewarded.own - rewarded.own[0])[1:]
    if probe.placement == "loss" and not same(plain, mixed):
        yield DoctorFinding(
            "form",
            "wrong",
            "The KL is multiplied by advantages: it pulls to the reference after good answers and away from "
            "it after bad ones, and with equal rewards there is none.",
            probe.trace.meeting(REFERENCE, "advantages") or meeting,
            "add the KL to the loss after the advantages: loss = policy_loss + beta * kl",
            "kl-times-advantage",
        )
        return
    found, in_reward = probe.form, probe.placement == "reward"
    if found is None:
        yield DoctorFinding(
            "form",
            "attention",
            f"The KL term in the {probe.placement} is no estimator that the doctor knows"
            + (", or what it is taken off is divided by a standard deviation." if in_reward else "."),
            meeting,
        )
        return
    if found.name == "k1" and not (found.exchanged or found.ratio) and probe.placement == "loss":
        yield DoctorFinding(
            "form",
            "wrong",
            "The KL of a token is K1, in the loss: its gradient is that of the log-prob, whatever the "
            "reference, and its expectation is 0. The coefficient has no effect but noise.",
            meeting,
            "use K2, K3 or the exact KL in the loss, or put K1 in the reward",
            "k1-in-loss",
        )
    elif found.weight < 0:
        where, instead = "subtracted from the loss", "loss = policy_loss + beta * kl"
        if probe.placement == "reward":
            where, instead = "added to the reward", "reward = score - beta * kl"
        yield DoctorFinding(
            "form",
            "wrong",
            f"The KL has the wrong sign: {found.title} is {where}, and the step leaves the reference.",
            probe.trace.meeting(REFERENCE, "advantages") or meeting,
            f"change the sign: {instead}",
            "wrong-sign",
        )
    elif found.exchanged:
        yield DoctorFinding(
            "form",
            "wrong",
            f"Policy and reference are exchanged{', or the sign is wrong' if found.name == 'k1' else ''}: "
            f"the term is {found.title} of the reference's log-prob minus the policy's.",
            meeting,
            "exchange the two: K1 is logp - ref_logp, K3 exp(ref_logp - logp) - (ref_logp - logp) - 1",
            "exchanged",
        )
    else:
        times = ", times a ratio that carries a gradient" if found.ratio else ""
        yield DoctorFinding(
            "form", "fine", f"The KL of a token is {found.title}{times}, in the {probe.placement}."
        )
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
    yield DoctorFinding(
        "clip",
        "attention",
        f"The KL is clipped: at log-ratios {where} {what}, and a token that has gone so far from the "
        "reference is not brought back.",
        clamps[-1] if clamps else meeting,
        "do not clip the KL in the loss; clip the gradient's norm, or use K2 or the exact KL, whose "
        "gradients stay moderate",
        "clipped",
    )
