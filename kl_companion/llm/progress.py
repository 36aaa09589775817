"""How a long run shows itself: a bar on stdout, a plot that grows in a notebook, lines in a log."""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from numbers import Real
from types import TracebackType
from typing import Any, Literal

from kl_companion.llm.optional import llm_extra

Where = Literal["notebook", "terminal", "log"]
SECONDS = 1.0  # between two drawings


class Progress:
    """Shows the records of a run as they come: ``progress(record)``.

    In a notebook a bar and a plot with one panel per key, both updated in place; on a terminal the bar;
    elsewhere one plain line per showing. Everything goes to stdout, at most once per second except for the
    last time. With ``quiet=True`` nothing is written or drawn, but the records are still kept.

    Args:
        total: Number of steps of the run.
        title: Stands before the bar and over the plot.
        keys: Which numbers of a record are shown. A record may lack some: each keeps its last one.
        quiet: Show nothing.

    Attributes:
        curves: ``{key: [(step, value), ...]}``, what the plot shows.

    Raises:
        ValueError: a total below 1, no key, or a key twice.
        ImportError: tqdm is missing where the bar is shown.
    """

    def __init__(self, total: int, title: str, keys: Sequence[str], *, quiet: bool = False) -> None:
        if isinstance(total, bool) or not isinstance(total, int) or total < 1:
            raise ValueError(f"total is {total!r}, expected a whole number of steps of at least 1")
        if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
            raise ValueError(f"keys is {keys!r}, expected different names, at least one")
        self.total, self.title, self.quiet = total, title, quiet
        self.curves: dict[str, list[tuple[float, float]]] = {key: [] for key in keys}
        self.step = 0
        self._where: Where = where_we_are()
        self._shown = -math.inf  # when; the first record is shown at once
        self._waiting = False
        self._bar: Any = None
        self._plot: Any = None
        if not quiet and self._where != "log":
            tqdm = llm_extra("tqdm").tqdm
            # the bar decides nothing by itself: `_show` says when; ascii looks the same everywhere
            self._bar = tqdm(total=total, desc=title, file=sys.stdout, ascii=True, mininterval=0, miniters=1)

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Take a record; its ``"step"`` says how far the run is, else every record is a step.

        Values that are no numbers are not shown. The record of the last step closes what is open.
        """
        step = record.get("step")
        self.step = self.step + 1 if step is None else int(step)
        for key, curve in self.curves.items():
            value = record.get(key)
            if isinstance(value, Real) and not isinstance(value, bool):
                curve.append((self.step, float(value)))
        self._waiting = True
        if self.step >= self.total:
            self.close()
        elif time.monotonic() - self._shown >= SECONDS:
            self._show()

    def close(self) -> None:
        """Show what has not been shown yet, and end the bar. Calling it again does nothing."""
        if self._waiting:
            self._show()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _show(self) -> None:
        self._shown, self._waiting = time.monotonic(), False
        if self.quiet:
            return
        latest = {key: curve[-1][1] for key, curve in self.curves.items() if curve}
        numbers = ", ".join(f"{key} {value:.4g}" for key, value in latest.items())
        if self._where == "log":
            print(f"{self.title}: step {self.step} of {self.total}" + (f", {numbers}" if numbers else ""))
        if self._bar is not None:
            self._bar.set_postfix_str(numbers, refresh=False)
            self._bar.n = min(self.step, self.total)
            self._bar.refresh()
        if self._where == "notebook" and find_spec("matplotlib") is not None:
            self._draw(numbers)

    def _draw(self, numbers: str) -> None:
        """The plot, drawn the first time and replaced in place from then on."""
        from IPython import display

        words = f"{self.title}, step {self.step} of {self.total}: {numbers or 'no numbers yet'}"
        image = display.Image(data=picture(self.curves, self.title, self.total), format="png", alt=words)
        if self._plot is None:
            self._plot = display.display(image, display_id=True)
        else:
            self._plot.update(image)


def where_we_are() -> Where:
    """Whether stdout is a notebook's, a terminal's, or neither (a log, a pipe)."""
    ipython = sys.modules.get("IPython")  # a notebook has loaded it; nothing else should because of us
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return "notebook"
    return "terminal" if sys.stdout.isatty() else "log"


def picture(curves: Mapping[str, Sequence[tuple[float, float]]], title: str, total: int) -> bytes:
    """One panel per key, value against step, at most three side by side, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 2 if len(curves) == 4 else min(3, len(curves))
    rows = math.ceil(len(curves) / columns)
    figure = Figure(figsize=(2.6 * columns, 2.0 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    for place, (key, curve) in enumerate(curves.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set_title(key, fontsize=9)
        axes.set_xlim(0, total)
        axes.tick_params(labelsize=8)
        points = [(step, value) for step, value in curve if math.isfinite(value)]
        axes.plot([p[0] for p in points], [p[1] for p in points], marker="." if len(points) < 40 else None)
        if place + columns >= len(curves):  # none below it
            axes.set_xlabel("step", fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()
