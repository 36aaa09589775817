"""The batch: whose samples they are, and over which denominator gradients are added up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import policy_line, reduction_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING, same
from kl_companion.monitor.doctor.tracing import POLICY


def samples(probe: Probe) -> Iterator[DoctorFinding]:
    """Whether what is differentiated accounts for the policy that sampled."""
    declared = probe.subject.declared
    if declared.teacher:
        return
    fresh, stale = probe.plain, probe.stale[0]
    corrected = not same(probe.rewarded.completion, probe.stale[1].completion) or not same(
        fresh.completion, stale.completion
    )
    if declared.updates > 1:
        frozen = [
            f for f in probe.trace.forwards if f.model == "policy" and not (f.gradient or f.base or f.scoring)
        ]
        if corrected:
            yield finding("samples.fine", updates=declared.updates)
        elif frozen:
            yield finding("samples.recomputed", frozen[-1].call, updates=declared.updates)
        else:
            line = probe.trace.first([POLICY], ("detach",)) or policy_line(probe)
            yield finding("samples.no-ratio", line, updates=declared.updates)


def denominator(probe: Probe) -> Iterator[DoctorFinding]:
    """Whether gradients that are accumulated over micro-batches are that of the batch."""
    try:
        whole, halves = probe.halves
    except RuntimeError as error:  # it counts on whole groups
        yield finding("denominator.not-tried", error=error)
        return
    inside = whole.completion.abs().amax(-1) > NOTHING
    if not inside.any():
        return
    both = [(x.completion * whole.completion).sum((-1, -2)) for x in (halves, whole)]
    ratios = (both[0] / both[1])[both[1] > NOTHING]
    if not len(ratios):
        return
    low, high = ratios.min().item(), ratios.max().item()
    declared, line = probe.subject.declared, reduction_line(probe)
    alone = declared.accumulate == 1
    if not alone and not halves.arrival.steps and not halves.arrival.whole:
        yield finding("denominator.zero-grad")
        return
    if high - low < 1e-4 * abs(high):
        if alone and abs(high - 0.5) < 1e-4:
            yield finding("denominator.whole-step")
        elif alone and abs(high - 2) < 1e-4:
            yield finding("denominator.added-up")
        elif abs(high - 1) < 1e-4:
            yield finding("denominator.fine")
        else:
            yield finding(f"denominator.{'twice' if high < 1 else 'too-rarely'}", line, times=high)
        return
    if not _within_halves(both, whole.completion):
        found = finding("denominator.within", line)
    elif alone:
        found = finding("denominator.token-mean-alone", times=high / low)
    else:
        found = finding("denominator.token-mean", line, times=high / low)
        if declared.token_mean_of == "micro-batch":
            found = found._replace(level="attention")
    yield found._replace(level="fine", fault="") if alone else found


def _within_halves(both: list[torch.Tensor], whole: torch.Tensor) -> bool:
    """Whether all answers of one micro-batch are changed by one factor."""
    acts = both[1] > NOTHING
    for rows in torch.arange(len(whole)).chunk(2):
        factors = (both[0] / both[1])[rows][acts[rows]]
        if len(factors) and (factors.max() - factors.min()) > 1e-4 * factors.abs().max():
            return False
    return True
