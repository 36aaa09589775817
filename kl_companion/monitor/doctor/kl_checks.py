"""The KL term: which model it is measured to, in which form, and whether anything multiplies or cuts it."""

from __future__ import annotations

from collections.abc import Iterator

from kl_companion.auditing.words import divergence_words
from kl_companion.monitor.doctor.findings import Finding
from kl_companion.monitor.doctor.lines import call_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING, same, words
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Line

_ALIKE = 1e-3  # of the gradient with another reference: log-probs in float32 are not alike to the last digit
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max", "minimum", "maximum", "min", "max")


def reference(probe: Probe) -> Iterator[Finding]:
    """Which model the KL is measured to."""
    declared, trace = probe.subject.declared, probe.trace
    if probe.plain.reference > NOTHING and not probe.reads_reference:
        yield Finding(
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
        yield Finding(
            "reference",
            "attention",
            "The loss has a gradient by the reference's parameters: unless they are frozen, they are "
            "trained.",
            call_line(probe, REFERENCE),
            "compute the reference's log-probs under torch.no_grad()",
            "reference-gradient",
        )
    if probe.reads_reference:
        if probe.form is not None and probe.form.exchanged:
            return  # said by the form
        yield Finding("reference", "fine", "The KL is measured to the reference, which carries no gradient.")
        return
    if abs(probe.plain.loss - probe.elsewhere.loss) > NOTHING:
        yield Finding(
            "reference",
            "wrong",
            "The KL is in the loss and has no gradient: it is a constant for the optimizer.",
            trace.last([POLICY], ("detach",)) or call_line(probe, POLICY),
            "take the policy's log-probs with their gradient: no detach(), no no_grad()",
            "detached",
        )
        return
    acts = probe.plain.completion.abs().max() > NOTHING
    frozen = [f for f in trace.forwards if f.model == "policy" and not f.gradient and not f.base]
    both = [f for f in trace.forwards if f.model == "policy" and not f.base]
    if trace.merged is not None:
        yield Finding(
            "reference",
            "wrong",
            "The reference is the merged model: adapters were put into the weights, so that without them it "
            "still is the policy, and the KL is 0.",
            trace.merged,
            "take the reference from the unmerged model: with model.disable_adapter(): ...",
            "merged-reference",
        )
    elif frozen or (len(both) > 1 and declared.beta != 0):
        yield Finding(
            "reference",
            "wrong",
            f"The reference is the policy itself: {declared.names.get('same', '')}it follows every update, "
            "the KL is 0 and has no effect.",
            (frozen or both)[-1].call,
            "keep a frozen copy, made before training: ref_model = "
            "copy.deepcopy(model).eval().requires_grad_(False)",
            "policy-reference",
        )
    elif any(f.model == "reference" for f in trace.forwards):
        yield Finding(
            "reference",
            "wrong",
            "The reference is scored, and then nothing reads it, or it has become a copy of the policy.",
            call_line(probe, REFERENCE),
            "update the reference's weights nowhere, and subtract its log-probs",
            "policy-reference",
        )
    elif acts:
        yield Finding(
            "reference", "attention", "Something acts with equal rewards, and it does not read the reference."
        )
    else:
        zero = " (beta is 0)" if declared.beta == 0 else ""
        yield Finding(
            "reference",
            "attention",
            f"There is no KL term: nothing reads the reference{zero}.",
            None,
            declared.names.get("beta", ""),
            "" if declared.beta == 0 else "no-reference",
        )


def alike(probe: Probe) -> Iterator[Finding]:
    """Whether policy and reference are scored in the same way: where they are equal there is no KL."""
    known = probe.form
    if probe.placement not in ("loss", "whole") or (known is not None and known.name == "k1"):
        return  # the gradient of K1 is the score, also where its value is 0
    off = probe.alike.completion.abs().max().item()
    if off > _ALIKE * probe.plain.completion.abs().max().item():
        yield Finding(
            "alike",
            "wrong",
            "With a reference that is equal to the policy the KL term still has a gradient: the two are not "
            "scored alike (temperature, alignment or mask differ).",
            call_line(probe, REFERENCE) or probe.trace.meeting(POLICY, REFERENCE),
            "score policy and reference by one function",
            "scored-differently",
        )


def form(probe: Probe) -> Iterator[Finding]:
    """What the KL of one token is as a function of the log-ratio, and whether anything multiplies it."""
    if not probe.placement:
        return
    if probe.placement == "whole":
        name, t = probe.divergence
        of = f"the exact {divergence_words(name)}" if name else "no known divergence"
        sampled = probe.subject.declared.temperature
        at = "" if t == sampled else f" at temperature {t:g}; answers are sampled at {sampled:g}"
        yield Finding("form", "fine", f"Over the whole vocabulary the gradient is that of {of}{at}.")
        return
    near, rewarded = probe.near, probe.near_rewarded
    meeting = probe.trace.meeting(POLICY, REFERENCE) or probe.trace.meeting((POLICY, FROZEN), REFERENCE)
    plain = (near.own - near.own[0])[1:]
    mixed = (rewarded.own - rewarded.own[0])[1:]
    if probe.placement == "loss" and not same(plain, mixed):
        yield Finding(
            "form",
            "wrong",
            "The KL is multiplied by advantages: it pulls to the reference after good answers and away from "
            "it after bad ones, and with equal rewards there is none.",
            probe.trace.meeting(REFERENCE, "advantages") or meeting,
            "add the KL to the loss after the advantages: loss = policy_loss + beta * kl",
            "kl-times-advantage",
        )
        return
    found = probe.form
    if found is None:
        yield Finding(
            "form",
            "attention",
            f"The KL term in the {probe.placement} is no estimator that the doctor knows.",
            meeting,
        )
        return
    if found.exchanged:
        yield Finding(
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
        yield Finding("form", "fine", f"The KL of a token is {found.title}{times}, in the {probe.placement}.")
    yield from _clipped(probe, meeting)


def _clipped(probe: Probe, meeting: Line | None) -> Iterator[Finding]:
    """Where the term stops being what it is for small log-ratios."""
    limits = probe.limits
    if not limits:
        return
    found = probe.form
    assert found is not None
    dead = all(abs(limit.own) < 1e-9 * found.weight for limit in limits) and probe.placement == "loss"
    what = "its gradient is 0" if dead else "it is no longer what it is for small ones"
    where = words([f"{'below' if limit.delta < 0 else 'above'} {limit.delta:.2g}" for limit in limits])
    clamps = [
        op.line
        for op in probe.trace.operations
        if op.name in _CLAMPS and REFERENCE in op.all_origins and "advantages" not in op.all_origins
    ]
    yield Finding(
        "clip",
        "attention",
        f"The KL is clipped: at log-ratios {where} {what}, and a token that has gone so far from the "
        "reference is not brought back.",
        clamps[-1] if clamps else meeting,
        "do not clip the KL in the loss; clip the gradient's norm, or use K2 or the exact KL, whose "
        "gradients stay moderate",
        "clipped",
    )
