"""Which line of a trainer a finding is about, from the trace of the run with equal rewards."""

from __future__ import annotations

from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Line

MODELS = (POLICY, FROZEN, REFERENCE)
_SCORES = ("log_softmax", "logsumexp", "cross_entropy", "softmax")


def reduction_line(probe: Probe) -> Line | None:
    """The last line that makes one number of many."""
    lines = [op.line for op in probe.trace.operations if op.reduces and POLICY in op.all_origins]
    return lines[-1] if lines else probe.trace.last([POLICY])


def mask_line(probe: Probe) -> Line | None:
    """Where the mask is made that the loss is multiplied by; else where it is multiplied."""
    masks = {"mask", "labels", "attention mask"}
    made = [op.line for op in probe.trace.operations if op.all_origins and op.all_origins <= masks]
    if made:
        return made[-1]
    return probe.trace.meeting("mask", MODELS) or probe.trace.meeting("labels", MODELS)


def policy_line(probe: Probe) -> Line | None:
    """Where the policy's log-probs are made of its logits."""
    line = probe.trace.first([POLICY], _SCORES)
    forward = next((f.line for f in probe.trace.forwards if f.model == "policy" and f.gradient), None)
    return line or forward


def call_line(probe: Probe, model: str) -> Line | None:
    """Where a model is called first: the outermost line of the trainer's."""
    return next((f.call for f in probe.trace.forwards if f.model == model), None)
