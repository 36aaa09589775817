"""Everything that the rows of a run say about it, in the order of its consequences."""

from __future__ import annotations

from collections.abc import Callable

from kl_companion.monitor.report import drift, engine, logged_number, outliers
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import (
    LEVELS,
    RECENT,
    Level,
    RunVerdict,
    number,
    percent,
    recent,
    verdict,
)

# Within a level, what spoils the weights comes before what misleads, and that before what costs.
RULES: tuple[Callable[[MonitoredRun], RunVerdict | None], ...] = (
    outliers.not_a_number,
    outliers.impossible_token,
    drift.no_kl,
    logged_number.not_its_noise,
    engine.mismatch,
    drift.far,
    outliers.dead_zone,
    drift.entropy,
    drift.effective_beta,
    drift.equal_groups,
    logged_number.bias,
    outliers.jump,
    outliers.spike,
    logged_number.noise,
    drift.length_pull,
    drift.wide,
    drift.no_beta,
    drift.size,
    logged_number.what_it_is,
    logged_number.negative,
    logged_number.negative_loss,
)


def run_verdicts(run: MonitoredRun) -> tuple[RunVerdict, ...]:
    """The verdicts on a run, the gravest first.

    Args:
        run: From `kl_companion.monitor.read_run`.

    Returns:
        At least one verdict; those of level ``"fine"`` come last, and a run without troubles has no others.
    """
    found = [said for rule in RULES if (said := rule(run)) is not None]
    if not found:
        row = run.last
        found = [verdict("nothing", step=row.step, answers=row.answers, tokens=row.tokens)]
    if {"bias", "other_divergence", "not_its_noise"} & {said.topic for said in found}:
        found = [said for said in found if said.topic != "logged"]  # they say it too, and it is not fine
    return tuple(sorted(found, key=lambda said: LEVELS.index(said.level)))


def worst(verdicts: tuple[RunVerdict, ...]) -> Level:
    """The gravest level of some verdicts."""
    return min((said.level for said in verdicts), key=LEVELS.index)


def headline(run: MonitoredRun, verdicts: tuple[RunVerdict, ...]) -> str:
    """One sentence for the whole run: the gravest finding, or that all is normal, with the numbers."""
    if worst(verdicts) != "fine":
        return verdicts[0].says
    said = {
        "KL {} nats per token": recent(run, "kl"),
        "entropy {} nats": recent(run, "entropy"),
        "effective β {}": recent(run, "effective_beta"),
        "engine mismatch {} nats": recent(run, "mismatch"),
    }
    parts = [text.format(number(x)) for text, x in said.items() if x is not None]
    equal = recent(run, "equal_groups")
    if equal is not None:
        parts.append(f"groups of equal rewards {percent(equal)}")
    if run.settings.get("beta") == 0:
        parts.append("no KL term (β is 0)")
    over = min(RECENT, len(run.observations))
    numbers = f": {', '.join(parts)} (means of the last {over} observations)" if parts else ""
    return f"All is normal{numbers}."
