"""Which line of a trainer a finding is about, from the trace of the run with equal rewards."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import torch

from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import same
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE, Line, Trace

MODELS = (POLICY, FROZEN, REFERENCE)
MODELS_AND_BATCH = {*MODELS, "advantages", "old log-probs"}
_CLAMPS = ("clamp", "clip", "clamp_min", "clamp_max", "minimum", "maximum", "min", "max", "relu")
_SCALINGS = ("mul", "rmul", "imul", "multiply", "div", "truediv", "itruediv")
_MOVES = ("flip", "cumsum", "roll", "fliplr")
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


def first_not_finite(trace: Trace) -> Line | None:
    """Return the first line whose result contains NaN or an infinity."""
    values = ((op.line, op.value) for op in trace.operations)
    return next((line for line, x in values if x is not None and not torch.isfinite(x).all()), None)


def called_at(probe: Probe, line: Line | None) -> str:
    """Return from where a helper with that line is called, as a sentence; "" for the step itself."""
    calls = {op.call for op in probe.trace.operations if op.line == line and op.call is not None}
    outer = [call for call in calls if call != line]
    return f" It is called at {outer[0]}." if len(calls) == 1 and outer else ""


def changed_line(probe: Probe, **changes: Any) -> Line | None:
    """Return the first line whose result depends on a change of the world that should change nothing.

    Results of one shape are compared: an entry more of padding changes the shape of what it is in, and not
    that of a mean over it.

    Args:
        probe: The experiments.
        **changes: Of the world; its rewards are those of both runs.
    """
    traces = []
    for more in ({}, changes):
        trace = Trace()
        probe.run(
            trace=trace, **{**({"rewards": changes["rewards"]} if "rewards" in changes else {}), **more}
        )
        traces.append([op for op in trace.operations if op.value is not None and op.line is not None])
    for before, after in zip(*traces, strict=False):
        if before.name in _MOVES:
            continue  # a column is elsewhere, so that the same numbers are compared with others
        if before.name != after.name or before.value is None or after.value is None:
            break
        a, b = (_inside(x.detach(), probe) for x in (before.value, after.value))
        if a is not None and b is not None and MODELS_AND_BATCH & before.all_origins and not same(a, b):
            return before.line
    return reduction_line(probe)


def _inside(x: torch.Tensor, probe: Probe) -> torch.Tensor | None:
    """Return one number, one for each answer, or those of the answers' tokens; None for anything else."""
    mask = probe.world().rollout.completion_mask.bool()
    rows, seq = mask.shape
    if not x.is_floating_point() or x.ndim > 2 or (x.ndim == 2 and (len(x) != rows or x.shape[1] < seq)):
        return None
    return x[:, :seq][mask] if x.ndim == 2 else x


def clamp_lines(trace: Trace) -> list[Line]:
    """Return the lines that clamp something of the reference's before advantages are in it."""
    return [
        op.line
        for op in trace.operations
        if op.name in _CLAMPS
        and op.line is not None
        and REFERENCE in op.all_origins
        and "advantages" not in op.all_origins
    ]


def formula_line(probe: Probe) -> Line | None:
    """Return the line of the KL's formula: the last with a result of the models' log-probs alone."""
    pure = [
        op.line
        for op in probe.trace.operations
        if REFERENCE in op.all_origins
        and op.all_origins & {POLICY, FROZEN}
        and op.all_origins <= {POLICY, FROZEN, REFERENCE, "attention mask"}
        and not op.reduces
        and not (len(op.origins) == 1 and op.name in _SCALINGS)  # beta * kl, on the line of the loss
    ]
    return pure[-1] if pure else probe.trace.meeting((POLICY, FROZEN), REFERENCE)


def graded_advantages(trace: Trace) -> Line | None:
    """Return the line on which advantages that carry a gradient multiply log-probs that do."""
    lines = (
        op.line
        for op in trace.operations
        if op.name in ("mul", "rmul", "imul", "multiply") and op.graded > 1 and "advantages" in op.all_origins
    )
    return next(lines, None)


def source_of(probe: Probe) -> str:
    """Return the code of a step, and the lines of its helpers that act on tensors."""
    subject = probe.step
    own = "" if subject is None else inspect.getdoc(subject.step) or ""
    with suppress(OSError, TypeError):  # a notebook, an object that is called
        own += "" if subject is None else inspect.getsource(subject.step)
    return own + "\n".join(op.line.text for op in probe.trace.operations if op.line is not None)
