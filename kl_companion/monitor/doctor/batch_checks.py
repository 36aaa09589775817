"""The batch: whose samples they are, and over which denominator gradients are added up."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding
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
            yield DoctorFinding(
                "samples",
                "fine",
                f"Each batch is used for {declared.updates} updates, and tokens are weighted by the ratio to "
                "the policy that sampled.",
            )
        elif frozen:
            yield DoctorFinding(
                "samples",
                "wrong",
                f"The old log-probs are recomputed by the updated policy: in all {declared.updates} updates "
                "on a batch the ratio is 1, and nothing is clipped or corrected.",
                frozen[-1].call,
                "compute the old log-probs once, when the batch is sampled, and keep them",
                "recomputed-old",
            )
        else:
            yield DoctorFinding(
                "samples",
                "wrong",
                f"Each batch is used for {declared.updates} updates, and no ratio to the policy that sampled "
                "reaches the loss.",
                probe.trace.first([POLICY], ("detach",)) or policy_line(probe),
                "ratio = exp(logp - old_log_probs), with the log-probs of the policy that sampled",
                "recomputed-old",
            )
    if declared.top_p < 1 or declared.top_k > 0:
        cut = f"top_p={declared.top_p:g}" if declared.top_p < 1 else f"top_k={declared.top_k}"
        if declared.engine and corrected:
            yield DoctorFinding(
                "sampler", "fine", f"The sampler is truncated ({cut}), and its log-probs are used."
            )
        else:
            yield DoctorFinding(
                "sampler",
                "wrong",
                f"The sampler draws from a truncated distribution ({cut}), and log-probs are those of the "
                "whole one: tokens outside the kept ones are never drawn, and every estimate of "
                "the KL is biased.",
                policy_line(probe),
                f"sample with {declared.names.get('sampler', 'top_p=1.0, top_k=0')}, or weight every "
                "token by its probability over that of the sampler (its own log-probs)",
                "truncated-sampler",
            )


def denominator(probe: Probe) -> Iterator[DoctorFinding]:
    """Whether gradients that are accumulated over micro-batches are that of the batch."""
    try:
        whole, halves = probe.halves
    except RuntimeError as error:  # it counts on whole groups
        yield DoctorFinding(
            "denominator",
            "fine",
            f"Micro-batches were not tried: on half of the batch the step raises {error}.",
        )
        return
    inside = whole.completion.abs().amax(-1) > NOTHING
    if not inside.any():
        return
    both = [(x.completion * whole.completion).sum((-1, -2)) for x in (halves, whole)]
    ratios = (both[0] / both[1])[both[1] > NOTHING]
    low, high = ratios.min().item(), ratios.max().item()
    declared = probe.subject.declared
    if high - low < 1e-4 * abs(high):
        if declared.accumulate == 1 and abs(high - 0.5) < 1e-4:
            yield DoctorFinding(
                "denominator",
                "fine",
                "The denominator is that of the whole step: under gradient accumulation add up the "
                "gradients of micro-batches, and do not average them.",
            )
        elif declared.accumulate == 1 and abs(high - 2) < 1e-4:
            yield DoctorFinding(
                "denominator",
                "fine",
                "Gradients of micro-batches are added up: under gradient accumulation divide the loss by "
                "their number.",
            )
        elif abs(high - 1) < 1e-4:
            yield DoctorFinding(
                "denominator", "fine", "Two micro-batches give the gradient of the whole batch."
            )
        else:
            yield DoctorFinding(
                "denominator",
                "wrong",
                f"Two micro-batches give {high:.3g} times the gradient of the whole batch: it is divided "
                f"{'twice' if high < 1 else 'too rarely'}.",
                reduction_line(probe),
                "divide by the tokens (or answers) of the whole batch, once"
                + ("; if micro-batches' gradients are added up, say summed=True" if high < 1 else ""),
                "denominator",
            )
        return
    if not _within_halves(both, whole.completion):
        yield DoctorFinding(
            "denominator",
            "fine" if declared.accumulate == 1 else "attention",
            "A mean over the batch, of rewards or of terms, is taken within each micro-batch: gradients that "
            "are accumulated over several are not those of one batch.",
            reduction_line(probe),
            "compute advantages and denominators once, of the whole batch",
            "" if declared.accumulate == 1 else "denominator",
        )
        return
    if low == 0 < high:
        yield DoctorFinding(
            "denominator",
            "fine" if declared.accumulate == 1 else "wrong",
            "The gradients of one micro-batch are gone after the next: the step itself calls zero_grad().",
            None,
            "call zero_grad() once for all micro-batches of an optimizer step",
            "" if declared.accumulate == 1 else "denominator",
        )
        return
    said = f"the same answer counts {high / low:.2g} times as much in one micro-batch as in another"
    if declared.accumulate == 1:
        yield DoctorFinding(
            "denominator",
            "fine",
            f"Tokens are averaged within the micro-batch. Under gradient accumulation {said}.",
        )
        return
    yield DoctorFinding(
        "denominator",
        "attention" if declared.token_mean_of == "micro-batch" else "wrong",
        f"Under gradient accumulation {said}: tokens are averaged within each micro-batch.",
        reduction_line(probe),
        "divide the sum by the tokens of all micro-batches of the step (num_items_in_batch), or by a "
        "constant",
        "denominator",
    )


def _within_halves(both: list[torch.Tensor], whole: torch.Tensor) -> bool:
    """Whether all answers of one micro-batch are changed by one factor."""
    acts = both[1] > NOTHING
    for rows in torch.arange(len(whole)).chunk(2):
        factors = (both[0] / both[1])[rows][acts[rows]]
        if len(factors) and (factors.max() - factors.min()) > 1e-4 * factors.abs().max():
            return False
    return True
