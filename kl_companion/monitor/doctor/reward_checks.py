"""The policy part: whether the log-probs of better answers rise under a step down the loss."""

from __future__ import annotations

from collections.abc import Iterator

from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import NOTHING
from kl_companion.monitor.doctor.tracing import FROZEN, POLICY, Line
from kl_companion.monitor.doctor.world import REWARDS

_SAME = 1e-6  # of a gradient: terms that cancel in float32 leave a rounding
_ADVANTAGES = "advantages"


def direction(probe: Probe) -> Iterator[DoctorFinding]:
    """Check that log-probs move with the rewards: two runs differ in which answers are the good ones."""
    if probe.subject.declared.teacher:
        return
    change = probe.rewarded.completion - probe.exchanged.completion
    most = max(x.completion.abs().max().item() for x in (probe.rewarded, probe.exchanged))
    if change.abs().max() <= max(_SAME * most, NOTHING):
        yield _without_effect(probe, nothing_acts=most <= NOTHING)
        return
    rises = -(change * probe.scores).sum((-1, -2))  # of every answer's log-prob
    if ((REWARDS - REWARDS.mean()) * rises).sum() < 0:
        yield finding("rewards.minimized", _policy_part(probe))
    else:
        yield finding("rewards.fine")


def _without_effect(probe: Probe, *, nothing_acts: bool) -> DoctorFinding:
    """Return the finding of a step that does the same whatever the rewards are."""
    trace = probe.trace
    if nothing_acts and (probe.rewarded.loss != 0 or not probe.reads_reference):
        return finding("rewards.nothing-acts", _dead_line(probe))
    if not getattr(probe.subject, "reads_rewards", True):
        return finding("rewards.no-policy-part")
    if not any(_ADVANTAGES in op.all_origins for op in trace.operations):
        return finding("rewards.not-in-loss", trace.last([POLICY]))
    return finding("rewards.idle", _dead_line(probe))


def _policy_part(probe: Probe) -> Line | None:
    """Return the line on which advantages meet the policy's log-probs."""
    return probe.trace.meeting(_ADVANTAGES, (POLICY, FROZEN)) or probe.trace.last([POLICY])


def _dead_line(probe: Probe) -> Line | None:
    """Return the line that takes the gradient away: a difference of equals, a detach, or where both meet."""
    trace = probe.trace
    equals = [
        op.line
        for op in trace.operations
        if op.name in ("sub", "rsub") and sum(x == {POLICY} for x in op.origins) > 1
    ]
    return next(iter(equals), None) or trace.last([POLICY], ("detach",)) or _policy_part(probe)
