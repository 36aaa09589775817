"""What is looked at: each check reads the experiments of a `Probe` and gives findings.

The order is that of a forward pass: what the models saw, which tokens count, at which temperature, against
which reference, in which form, in which direction by the rewards, with which samples, over which denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kl_companion.monitor.doctor.batch_checks import denominator, samples
from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.invariants import arrival, calls, chance, mode, precision, rectangle, rows
from kl_companion.monitor.doctor.kl_checks import alike, form, reference
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.reading_checks import contexts, scores, tokens
from kl_companion.monitor.doctor.reward_checks import direction
from kl_companion.monitor.doctor.sampler import sampler
from kl_companion.monitor.doctor.trainer_state import state

Check = Callable[[Probe], Iterator[DoctorFinding]]
CHECKS: tuple[Check, ...] = (
    contexts,
    mode,
    scores,
    rows,
    chance,
    tokens,
    reference,
    alike,
    form,
    calls,
    direction,
    rectangle,
    samples,
    sampler,
    state,
    denominator,
    precision,
    arrival,
)
# names of findings that have to be right for a check to mean something
NEEDS = {
    "scores": {"context", "dropout"},
    "rows": {"context", "dropout", "scores"},
    "chance": {"context", "dropout", "rows"},
    "tokens": {"context", "dropout", "rows"},
    "reference": {"rows"},
    "alike": {"context", "rows", "dropout", "scores", "temperature", "reference"},
    "form": {"context", "rows", "dropout", "scores", "alike"},
    "calls": {"context", "rows", "dropout", "reference"},
    "direction": {"context", "rows", "dropout", "tokens", "scores"},
    "rectangle": {"context", "rows", "dropout", "tokens", "scores"},
    "denominator": {"context", "rows", "dropout"},
}


def all_findings(probe: Probe, progress: Callable[[str], None] | None = None) -> tuple[DoctorFinding, ...]:
    """Everything that is looked at, in order; a check that means nothing after what was found is left out."""
    found: list[DoctorFinding] = []
    runs = getattr(probe.subject, "runs", True)
    for check in CHECKS if runs else (sampler, state):
        if progress is not None:
            progress(f"{probe.subject.title}: {check.__name__}")
        wrong = {f.name for f in found if f.level == "wrong"}
        if not NEEDS.get(check.__name__, set()) & wrong:
            found += check(probe)
    return (*found, *([] if runs else [finding("loss.not-run", title=probe.subject.title)]))
