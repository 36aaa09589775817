"""Properties of every right step: what its gradient must not depend on, measured without a catalog.

The same answers in another order, in a wider rectangle, with other logits behind their ends, or shuffled by
another seed are the same batch; the reference's log-prob of one answer is nothing to another answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import called_at, changed_line, reduction_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING, factor, off, same, words
from kl_companion.monitor.doctor.subject import WorldGradients
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, REFERENCE
from kl_companion.monitor.doctor.world import REWARDS

_AGAINST = 0.1  # of the largest change of another answer
_SHIFT = 0.5  # of a log-prob or of a reward
_WIDER = (1, 2)  # columns of padding, left and right
_ROUNDED = 5e-3  # of the gradient: what rounding of log-probs may change
_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout")
# inputs of one answer: what the text calls them, and where they meet the policy
_INPUTS: dict[str, tuple[str, tuple[str | tuple[str, ...], ...]]] = {
    "ref": ("log-probs of the reference", ((POLICY, FROZEN), REFERENCE)),
    "old": ("old log-probs", (POLICY, "old log-probs")),
    "rewards": ("rewards", ("advantages", (POLICY, FROZEN))),
}


def rows(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that what belongs to one answer acts on that answer, and a reward by its sign."""
    if probe.step is None:
        return
    for name, (what, meeting) in _INPUTS.items():
        changes = torch.stack([_change_of_one(probe, name, row) for row in range(len(REWARDS))])
        own, others = changes.diagonal(), changes.abs().fill_diagonal_(0.0).amax(1)
        mine = (own.abs() > others).double().mean() >= 0.5  # extremes of a normalized batch hardly change
        # a sign that is wrong in all rows is that of the loss: said by `direction`
        sign = -1.0 if name == "rewards" and own.sum() < 0 and mine else 1.0
        against = -sign * own > _AGAINST * others if name == "rewards" else own.abs() < 1e-2 * others
        foreign = (against & (others > 1e3 * NOTHING)).nonzero().flatten().tolist()
        if not foreign:
            continue
        row, line = foreign[0], probe.trace.meeting(*meeting) or probe.trace.last([POLICY])
        key = "against" if name == "rewards" else "foreign"
        gaps = {
            "what": what,
            "answer": row + 1,
            "other": int(changes[row].abs().index_fill(0, torch.tensor(row), 0.0).argmax()) + 1,
        }
        yield finding(f"rows.{key}", line, line=called_at(probe, line), **gaps)
        return


def _change_of_one(probe: Probe, name: str, row: int) -> torch.Tensor:
    """Return how far the log-probs of each answer rise with an input of one answer, [6]."""
    if name == "ref":
        before, after = probe.plain, probe.run(bumped=(row, 1, _SHIFT))
    elif name == "old":
        before = probe.rewarded
        after = probe.run(sampled=(row, 1, _SHIFT / 10), rewards=REWARDS)
    else:
        more = REWARDS.clone()
        more[row] += _SHIFT
        before, after = probe.rewarded, probe.run(rewards=more)
    change = probe.coefficients(before) - probe.coefficients(after)
    size = max(x.completion.abs().max().item() for x in (before, after))
    return (change * (change.abs() > 1e-6 * size)).sum(-1)


def rectangle(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that padding and what stands on it change nothing, nor does the order of the answers."""
    if probe.step is None:
        return
    at: dict[str, Any] = {"rewards": REWARDS}
    base = probe.rewarded
    wide = probe.run(padding=_WIDER, **at)
    if not same(base.completion, wide.completion):
        times = factor(base.completion, wide.completion)
        line = changed_line(probe, padding=_WIDER, **at)
        size = f"{times:.3g} times the gradient" if times else f"a gradient that is {_off(base, wide)} off"
        key = "rectangle.width" if times else "rectangle.padding"
        yield finding(key, line, size=size, line=called_at(probe, line))
        return
    outside = probe.run(outside=1.0, **at)
    if not same(base.completion, outside.completion):
        line = changed_line(probe, outside=1.0, **at)
        size = _off(base, outside)
        yield finding("rectangle.outside", line, size=size, line=called_at(probe, line))
        return
    turned = probe.run(order=tuple(reversed(range(len(REWARDS)))), **at)
    if not same(base.completion, turned.completion) and not probe.random:
        yield finding("rectangle.order", reduction_line(probe), size=_off(base, turned))
        return
    yield finding("rectangle.fine")


def mode(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that no dropout is active where log-probs are computed, nor a reference in training mode."""
    if probe.step is None:
        return
    models = {POLICY, REFERENCE, FROZEN}
    dropped = [op.line for op in probe.trace.operations if op.name in _DROPOUTS and op.all_origins & models]
    if dropped and probe.random:
        yield finding("dropout.active", dropped[0], size=_off(probe.rewarded, probe.reseeded))
    trained = [f for f in probe.trace.forwards if f.model == REFERENCE and f.training]
    if trained and not probe.step.keeps_model:
        yield finding("mode.reference", trained[0].call)


def chance(probe: Probe) -> Iterator[DoctorFinding]:
    """Check whether the gradient depends on the seed."""
    if probe.random:
        yield finding("chance.seed", size=_off(probe.rewarded, probe.reseeded))


def precision(probe: Probe) -> Iterator[DoctorFinding]:
    """Check what rounding to bfloat16 or float16 changes; everything else is measured without it."""
    if probe.step is None or not probe.step.casts:
        return
    rounded, exact = probe.rounded, (probe.plain, probe.rewarded)
    size = max(off(x.completion, y.completion) for x, y in zip(rounded, exact, strict=True))
    level = "wrong" if size > _ROUNDED else "look"
    yield finding(f"precision.{level}", probe.step.casts[0], size=f"{size:.2g}")


def arrival(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that the gradient which an optimizer reads is the one that the loss has."""
    if probe.step is None:
        return
    at = probe.rewarded.arrival
    if at.scale == 0:
        yield finding("arrival.lost" if at.steps else "arrival.zeroed", at.line)
    elif not at.parallel and at.leftover:
        yield finding("arrival.leftover", at.line)
    elif not at.parallel:
        yield finding("arrival.changed", at.line)
    elif abs(at.scale - 1) > 1e-4:
        yield finding("arrival.scaled", at.line, scale=f"{at.scale:.3g}")


def calls(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that over several calls the reference does not move, and that the coefficient stays."""
    if probe.step is None:
        return
    moved = [way for _, way in probe.in_a_row]
    if moved[0] > NOTHING:
        line = probe.trace.moved
        yield finding("calls.reference", line, way=f"{moved[0]:.2g}", later=f"{moved[-1]:.2g}", n=len(moved))
    if moved[0] > NOTHING or not probe.step.state.changed() or probe.plain.completion.abs().max() <= NOTHING:
        return
    lasts = probe.last_of_a_row
    if any(x is None for x in lasts):
        yield finding("calls.unchecked", names=words(probe.step.state.changed()))
        return
    factors = [x for x in lasts if x is not None]
    if max(abs(x - 1) for x in factors) < 1e-5:
        return
    low, high = min(factors), max(factors)
    gaps: dict[str, Any] = {"n": len(moved), "names": words(probe.step.state.changed()), "low": f"{low:.4g}"}
    line = probe.trace.meeting(POLICY, REFERENCE)
    if high - low > 1e-5:
        yield finding("calls.controller", high=f"{high:.4g}", **gaps)
    else:
        yield finding("calls.falls" if low < 1 else "calls.rises", line, **gaps)


def _off(a: WorldGradients, b: WorldGradients) -> str:
    return f"{off(a.completion, b.completion):.0%}"
