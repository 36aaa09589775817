"""A diagram of the paths that a gradient takes through a loss: past an estimate, past its factor, or cut.

The factor is the importance ratio, or the log-probability where an estimate is in the reward. Autograd
traces the paths, and audits of small enumerated worlds name the expected gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kl_companion import audit, bandit, importance_ratio, per_token
from kl_companion.plotting import color, figure, label

if TYPE_CHECKING:
    from kl_companion.plotting import ThemedFigure
    from kl_companion.rollout import Rollout

ESTIMATORS = ("k1", "k2", "k3")
NO_KL = "no KL"
_FACTORS = {
    "ρ": lambda rollout: importance_ratio(rollout, scope="token"),
    "log π": lambda rollout: rollout.logp,
}
_KLS = {"sequence_reverse_kl": "reverse", "sequence_forward_kl": "forward"}
_MIDDLE = {"ha": "center", "va": "center"}
_RADII = {"policy": 1.0, "loss": 0.8, "log π": 0.95}


class GradientPath(NamedTuple):
    """The paths of one loss.

    Attributes:
        factor_counts: Whether the value of the loss depends on the factor.
        through_factor: Whether a gradient passes through the factor.
        through_estimate: Whether a gradient passes through the estimate.
        expected: Names of estimators to what has their expected gradient, in words.
    """

    factor_counts: bool
    through_factor: bool
    through_estimate: bool
    expected: dict[str, str]


def trace(loss: Callable[[Any, Any], Any], factor: str = "ρ") -> GradientPath:
    """Return the paths of a loss, and the expected gradients that it has with K1, K2 and K3.

    Args:
        loss: Takes the factor and the estimate of each sample.
        factor: "ρ", for samples of another policy, or "log π", for the policy's own.

    Raises:
        KeyError: The factor is another one.
    """
    values = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1.5, 0.7)]
    one = loss(*values)
    by_factor, by_estimate = torch.autograd.grad(one, values, allow_unused=True)
    of_rollout = _FACTORS[factor]
    worlds = [bandit(4, seed=seed, off_policy=factor == "ρ") for seed in range(3)]

    def with_estimator(name: str) -> Callable[[Rollout], torch.Tensor]:
        return lambda rollout: loss(of_rollout(rollout), per_token(name, rollout)).mean()

    audits = {name: audit(with_estimator(name), problems=worlds) for name in ESTIMATORS}
    counts = bool(loss(2 * values[0], values[1]) != one)
    expected = {name: kl_words(x.matches, x.residual) for name, x in audits.items()}
    return GradientPath(counts, by_factor is not None, by_estimate is not None, expected)


def kl_words(matches: Mapping[str, float], residual: float) -> str:
    """Return the sum of KLs that an audit has found, in words; "zero", or `NO_KL` for other sums."""
    if not matches:
        return "zero" if residual < 1e-9 else NO_KL
    if set(matches) - set(_KLS) or {abs(c) for c in matches.values()} != {1.0}:
        return NO_KL
    ordered = sorted(matches.items(), key=lambda match: -match[1])
    text = " ".join(f"{'+' if c > 0 else '−'} {_KLS[name]}" for name, c in ordered)
    return text.removeprefix("+ ") + " KL"


def in_sentences(paths: Mapping[str, GradientPath], factor: str) -> str:
    """Return what the diagrams show, for readers who do not see them."""
    lines = []
    for title, path in paths.items():
        passed = [factor] * path.through_factor + ["k"] * path.through_estimate
        told = ", ".join(f"{label(name)} {text}" for name, text in path.expected.items())
        lines.append(f"{title}: the gradient passes through {' and '.join(passed)}; {told}.")
    return " ".join(lines)


def gradient_paths(paths: Mapping[str, GradientPath], *, factor: str = "ρ", caption: str) -> ThemedFigure:
    """Draw the diagram of each loss; an even number stands in two columns on a wide screen.

    Args:
        paths: Losses as they are written to their paths.
        factor: What `trace` was given.
        caption: Text below the figure.

    Raises:
        ImportError: Matplotlib or seaborn is missing (extra ``plots``).
    """
    columns = 2 - len(paths) % 2
    rows = len(paths) // columns

    def draw(axes: Any) -> None:
        panels = axes if isinstance(axes, list) else [axes]
        for axis, (title, path) in zip(panels, paths.items(), strict=True):
            _draw_path(axis, title, path, factor)

    return figure(
        draw,
        rows=rows,
        columns=columns,
        size=(4.8 * columns, 2.7 * rows),
        alt=in_sentences(paths, factor),
        caption=caption,
    )


def _draw_path(axis: Any, title: str, path: GradientPath, factor: str) -> None:
    axis.set(xlim=(0, 10.2), ylim=(-0.1, 5.1), aspect="equal")
    axis.set_axis_off()
    axis.set_title(title, fontsize=14, fontweight="bold", pad=2)
    product = "×" if path.factor_counts else "loss"
    places = {"policy": (1.0, 3.3), "k": (4.4, 3.3), "loss": (9.2, 3.3)}
    if path.factor_counts:
        places |= {factor: (4.4, 4.4), "k": (4.4, 2.2), "×": (7.1, 3.3)}
        _edge(axis, places, "×", "loss")
        _edge(axis, places, "policy", factor, 1.0 if path.through_factor else 0.0)
        _edge(axis, places, factor, "×", 1.0 if path.through_factor else 0.5)
    else:
        axis.text(6.7, 3.62, "value", color="0.5", fontsize=11.5, **_MIDDLE)
        axis.text(6.7, 2.93, "gradient", color=color("gradient"), fontsize=11.5, **_MIDDLE)
    _edge(axis, places, "policy", "k", 1.0 if path.through_estimate else 0.0)
    _edge(axis, places, "k", product, 1.0 if path.through_estimate else 0.5)
    for text, at in places.items():
        axis.text(
            *at, text, fontsize=13, bbox={"boxstyle": _shape(text), "fc": "none", "ec": "0.5"}, **_MIDDLE
        )
    for i, (name, text) in enumerate(path.expected.items()):
        shade = color({"reverse KL": "reverse_kl", "forward KL": "forward_kl"}.get(text, "exact"))
        filled = (shade, 0.16 if text == "reverse KL" else 0.0)
        box = {"boxstyle": "round,pad=0.35", "fc": filled, "ec": shade}
        look = {"color": shade, "fontsize": 11.5, "bbox": box, **_MIDDLE}
        axis.text(
            1.75 + 3.35 * i, 1.12, label(name), color=color(name), fontweight="bold", fontsize=12, **_MIDDLE
        )
        axis.text(1.75 + 3.35 * i, 0.38, text, **look)


def _shape(text: str) -> str:
    return "circle,pad=0.3" if len(text) == 1 else "round,pad=0.45"


def _edge(
    axis: Any, places: Mapping[str, tuple[float, float]], start: str, end: str, back: float = 1.0
) -> None:
    """Draw a value that goes forward and, below it, a gradient that comes ``back`` by a share of the way."""
    first, last = (torch.tensor(places[name]) for name in (start, end))
    along = (last - first) / (last - first).norm()
    beside = 0.11 * torch.stack([-along[1], along[0]])
    first = first + along * _RADII.get(start, 0.55)
    last = last - along * _RADII.get(end, 0.55)
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0}
    ends = {"xy": (last + beside).tolist(), "xytext": (first + beside).tolist()}
    axis.annotate("", **ends, arrowprops={**arrow, "color": "0.5", "lw": 1.1})
    if not back:
        return
    stop = last + back * (first - last) - beside
    look = {**arrow, "color": color("gradient"), "lw": 3, "mutation_scale": 17}
    if back < 1:
        look["arrowstyle"] = "-"
        bar = torch.stack([stop - 3.2 * beside, stop + 1.2 * beside])
        axis.plot(*bar.T.tolist(), color=color("gradient"), lw=3, solid_capstyle="butt")
        axis.text(*(stop - 5.4 * beside).tolist(), "sg", fontsize=13, fontweight="bold", **_MIDDLE)
    axis.annotate("", xy=stop.tolist(), xytext=(last - beside).tolist(), arrowprops=look)
