"""Which curves a report shows of a run, with what is to be seen in each."""

from __future__ import annotations

from html import escape

from kl_companion.monitor.report.drawing import Panel, RunCurve, panel_svg
from kl_companion.monitor.report.logged_number import name_of
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import finite, is_finite, number
from kl_companion.plotting import color

WIDE, NARROW, SMALL = (1130, 330), (380, 300), (380, 230)
BEYOND = 3.0  # times the exact KL's interval: what is logged above it would flatten everything else
PARTS = {
    "mismatch_rounding": "rounding",
    "mismatch_temperature": "temperature",
    "mismatch_truncation": "truncation",
}


def drawn_curves(run: MonitoredRun) -> list[str]:
    """The figures of a run as HTML, the KL first; those of numbers that are not known are left out."""

    def single(name: str, title: str, caption: str, *, band: bool = False) -> str:
        return _figure(run, title, [_curve(run, name, name, band=band)], caption)

    pulls = [
        _curve(run, "length_pull_kl", "reverse_kl", "KL term"),
        _curve(run, "length_pull_reward", "reward", "reward"),
    ]
    alone = "Share of groups in which only the KL term acts."
    figures = (
        _kl(run),
        single("forward_kl", "Exact forward KL, nats per token", "The band is the 95 % interval.", band=True),
        single("entropy", "Entropy, nats per token", "How much the policy still chooses."),
        single("reward", "Reward", "Mean over the answers of an observation."),
        _beta(run),
        _mismatch(run),
        single("equal_groups", "Groups of equal rewards", alone),
        _figure(run, "Effect on length", pulls, "Above 0: toward shorter answers."),
    )
    return [figure for figure in figures if figure]


def _curve(run: MonitoredRun, name: str, colored: str, label: str = "", *, band: bool = False) -> RunCurve:
    low, high = (run.series(f"{name}_low"), run.series(f"{name}_high")) if band else ((), ())
    return RunCurve(label, color(colored), run.series(name), low, high)


def _figure(run: MonitoredRun, title: str, curves: list[RunCurve], caption: str, **more: object) -> str:
    """One figure; empty where none of its curves has a value."""
    known = [c for c in curves if finite(c.values)]
    if not known:
        return ""
    steps = [row.step for row in run.observations]
    panel = Panel(title, steps, known, **more)  # type: ignore[arg-type]
    return _page(panel, caption, panel_svg(panel, *SMALL))


def _page(panel: Panel, caption: str, drawing: str) -> str:
    said = f"<figcaption>{escape(caption)}</figcaption>"
    return f"<figure><h3>{escape(panel.title)}</h3>{said}{drawing}</figure>"


def _kl(run: MonitoredRun) -> str:
    """The exact KL with its interval beside what the trainer logs; for a wide and a narrow page."""
    exact = _curve(run, "kl", "reverse_kl", "exact", band=True)
    named = run.settings.get("estimator")
    shown = color(str(named) if named and not str(named).startswith("exact") else "logged")
    label = name_of(run) if named else "logged"
    logged = RunCurve(label, shown, run.series("logged"), points=True)
    curves = [c for c in (exact, logged) if finite(c.values)]
    if not curves:
        return ""
    bounds = finite([*run.series("kl"), *run.series("kl_high")])
    top = BEYOND * max(bounds) if bounds and max(bounds) > 0 else None
    beyond = [x for x in finite(logged.values) if top is not None and x > top]
    caption = "The band is the 95 % interval of the exact KL; a dot is what the trainer logged"
    caption += f" ({name_of(run)})." if named else "."
    if beyond:
        caption += f" Triangles are logged numbers above the axis, up to {number(max(beyond))}."
    if broken := [r.step for r in run.observations if r.logged is not None and not is_finite(r.logged)]:
        more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
        caption += f" Not a number: step {broken[0]}{more}."
    panel = Panel("KL to the reference, nats per token", [r.step for r in run.observations], curves, top=top)
    wide, narrow = (
        panel_svg(panel, *size).replace("<svg ", f'<svg class="{name}" ', 1)
        for size, name in ((WIDE, "wide"), (NARROW, "narrow"))
    )
    return _page(panel, caption, wide + narrow)


def _beta(run: MonitoredRun) -> str:
    curve = _curve(run, "effective_beta", "effective_beta", "acts as")
    beta = run.settings.get("beta")
    marks = [(f"set to {number(beta)}", float(beta))] if beta else []
    return _figure(run, "Effective β", [curve], "In units of the reward before it is divided.", marks=marks)


def _mismatch(run: MonitoredRun) -> str:
    curves = [_curve(run, name, name, label) for name, label in PARTS.items()]
    curves = [curve for curve in curves if any(finite(curve.values))]
    caption = "Between engine and trainer, by cause; the parts are stacked."
    return _figure(run, "Mismatch of log-probs, nats", curves, caption, stacked=True)
