"""Verdicts on the sampling engine: whether its log-probs are those of the trainer, and if not, why."""

from __future__ import annotations

from statistics import fmean

from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import RECENT, RunVerdict, finite, number, percent, recent, verdict

SETTING = 0.005  # nats per token: a temperature of 0.99 instead of 1 makes as much
ROUNDING = 0.05  # two engines in bfloat16 differ by 0.01 to 0.02; above, something else is unlike
ROUNDING_TO_ACT = 0.3  # ratios of single tokens are off by a third
GROWTH = 3.0  # rounding does not grow with the steps; stale weights do
OF_THE_KL = 1.0  # where the engine is further from the trainer than the policy from the reference


def mismatch(run: MonitoredRun) -> RunVerdict | None:
    """Log-probs of the engine that are not the trainer's, with the largest cause."""
    total = recent(run, "mismatch")
    parts = {
        name: recent(run, f"mismatch_{name}") or 0.0 for name in ("temperature", "truncation", "rounding")
    }
    if total is None:
        return None
    cause = max(parts, key=lambda name: parts[name])
    settings = [name for name in ("temperature", "truncation") if parts[name] >= SETTING]
    grown = _growth(run)
    if not settings and parts["rounding"] < ROUNDING and not (grown and parts["rounding"] >= SETTING):
        return None
    kl, apart = recent(run, "kl"), recent(run, "mismatch_kl")
    outweighs = bool(kl and apart and apart >= OF_THE_KL * kl)
    names = {
        "temperature": "another temperature",
        "truncation": "a truncated distribution",
        "rounding": "the rest",
    }
    shares = ", ".join(f"{number(parts[n])} by {names[n]}" for n in sorted(parts, key=lambda n: -parts[n]))
    todo = " ".join(_repair(run, name) for name in (settings or ["rounding"]))
    beside = "" if kl is None or apart is None else (
        f" KL(engine, trainer) is {number(apart)} nats per token, beside {number(kl)} to the reference"
        + (": the samples are further from the policy than it is from the reference." if outweighs else ".")
    )  # fmt: skip
    also = f" The rest has grown by a factor of {number(grown)} over the run." if grown else ""
    return verdict(
        "mismatch",
        "wrong" if outweighs or parts["rounding"] >= ROUNDING_TO_ACT else "attention",
        total=total,
        cause=names[cause].replace("the rest", "rounding or other weights"),
        shares=shares,
        also=also,
        beside=beside,
        todo=todo,
    )


def _growth(run: MonitoredRun) -> float | None:
    seen = finite(run.series("mismatch_rounding"))
    if len(seen) < 2 * RECENT:
        return None
    first, last = fmean(seen[:RECENT]), fmean(seen[-RECENT:])
    return last / first if first > 0 and last >= GROWTH * first else None


def _repair(run: MonitoredRun, cause: str) -> str:
    if cause == "temperature":
        found, meant = recent(run, "engine_temperature"), run.settings.get("temperature")
        seen = "" if found is None else f" (its samples fit {number(found)}"
        seen += f", the trainer takes {number(meant)})" if seen and meant else ")" if seen else ""
        return (
            f"Give engine and trainer one temperature{seen}: the trainer has to divide its logits by it "
            "before the softmax."
        )
    if cause == "truncation":
        kept = recent(run, "engine_kept")
        seen = "" if kept is None else f" (it keeps {percent(kept)} of the probability)"
        return (
            f"Set top-p to 1 and top-k to 0 in the engine{seen}, or compute the trainer's log-probs on the "
            "same tokens that the engine kept."
        )
    if _growth(run):
        return "Check that the engine gets the new weights after every update: rounding alone does not grow."
    return (
        "Correct by the ratio of trainer to engine, truncated at about 2, or take one precision and one "
        "kernel on both sides. Check also that the engine has the current weights."
    )
