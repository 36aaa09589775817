"""What is read: what a token is scored after, which tokens count, and their log-probs' temperature."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import mask_line, policy_line, reduction_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING, words
from kl_companion.monitor.doctor.tracing import POLICY


def contexts(probe: Probe) -> Iterator[DoctorFinding]:
    """What every scored position saw: its own prompt and the tokens before it, and nothing else."""
    for forward in probe.trace.forwards:
        packed = [s for s in forward.strays if s.startswith("another answer")]
        padded = [s for s in forward.strays if "padding" in s]
        other = [s for s in forward.strays if s not in packed + padded]
        if packed or (other and "another" in " ".join(other)):
            yield finding("context.packed", forward.line)
            return
        if padded:
            yield finding("context.padding", forward.line, model=forward.model)
            return
        if other and (probe.plain.stray + probe.rewarded.stray) > NOTHING:
            yield finding("context.other", forward.line, model=forward.model, what=words(other))
            return
    yield finding("context.fine")


def tokens(probe: Probe) -> Iterator[DoctorFinding]:
    """Which predictions have a gradient: those of the completion's tokens, end-of-sequence included."""
    rollout = probe.world().rollout
    inside = rollout.completion_mask.bool()
    acts = (probe.plain.completion.abs().amax(-1) > NOTHING) | (
        probe.rewarded.completion.abs().amax(-1) > NOTHING
    )
    prompt = probe.plain.prompt + probe.rewarded.prompt > NOTHING
    beyond = probe.plain.beyond + probe.rewarded.beyond > NOTHING
    lengths = inside.sum(-1)
    last = torch.zeros_like(inside).scatter(1, (lengths - 1).unsqueeze(-1), True)
    ended = (rollout.tokens.gather(1, (lengths - 1).unsqueeze(-1)) == 0).expand_as(last)
    missing = inside & ~acts
    where = reduction_line(probe)
    if not acts.any():
        return
    first_missing, last_missing = missing[:, 0].all(), missing[last].all()
    eos_missing = missing[last & ended].all() and not missing[last & ~ended].any()
    at_mask = mask_line(probe) or where
    if first_missing and beyond:
        yield finding("tokens.shifted-right", at_mask)
    elif last_missing and prompt:
        yield finding("tokens.shifted-left", at_mask)
    elif beyond:
        yield finding("tokens.no-mask", where, also=", and prompt tokens too" if prompt else "")
    elif prompt:
        yield finding("tokens.prompt", at_mask)
    elif eos_missing:
        yield finding("tokens.no-eos", at_mask)
    elif missing.any():
        share = missing.sum().item() / inside.sum().item()
        first = "the first of every answer" if first_missing else "the last of every answer"
        which = f" ({first})" if first_missing or last_missing else ""
        yield finding("tokens.missing", at_mask, share=share, which=which)
    else:
        yield finding("tokens.fine", count=int(inside.sum()))


def scores(probe: Probe) -> Iterator[DoctorFinding]:
    """Whose log-probs are differentiated, and at which temperature."""
    rows = {at: r for at, r in probe.reward_term.items() if r is not None and r.token >= 0}
    rows = rows or {at: r for at, r in probe.rows(probe.plain).items() if r is not None and r.token >= 0}
    if not rows:
        return
    sampled = probe.world().rollout.tokens
    wrong = [at for at, r in rows.items() if r.token != int(sampled[at])]
    line = probe.trace.first([POLICY], ("gather", "cross_entropy", "take_along_dim", "nll_loss"))
    line = line or policy_line(probe)
    if wrong:
        yield finding("scores.shifted", line, wrong=len(wrong), rows=len(rows))
        return
    declared, found = probe.subject.declared, probe.temperature
    if abs(found - declared.temperature) > 1e-3 * declared.temperature:
        name = declared.names.get("temperature", "the sampler's temperature")
        given = {"declared": declared.temperature, "name": name, "found": found}
        yield finding("temperature.other", policy_line(probe), **given)
    else:
        yield finding("temperature.fine", found=found)
