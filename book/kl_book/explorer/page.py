"""The explorer as a notebook shows it: a form, plots, a table of numbers, and the formulas as JavaScript.

The form is plain HTML, so that every control has a label and answers to the keyboard. Bokeh draws; what is
drawn is computed in the reader's browser by book/_static/explorer/, which the book's build puts on the page.
"""

from __future__ import annotations

import html
import json
from typing import Any

from kl_book.explorer.formulas import MOST_ARMS, script
from kl_book.explorer.presets import PLAIN, PRESETS
from kl_book.explorer.sentences import Preset
from kl_companion.plotting import color

_BARS, _NARROW_BARS = 0.26, 0.2  # widths: three, or four, stand side by side
SERIES = {
    "policy": (color("k1"), "policy π"),
    "reference": (color("exact"), "reference"),
    "sampler": (color("k2"), "sampler μ"),
    "estimate": (color("k3"), "this term"),
    "reverse": (color("reverse_kl"), "reverse KL"),
    "forward": (color("forward_kl"), "forward KL"),
}
_FIELD = (
    '<figure class="kl-plot" data-plot="field"><figcaption>One step of the KL term alone, without the '
    "reward, from policies over three arms</figcaption><div></div></figure>"
)
_WALK = (
    '<fieldset class="kl-walk"><legend>Train this policy</legend>'
    "<p>A step moves the logits along the gradient of the reward minus β times this term. Play takes the "
    "expected gradient; a sampled step draws one arm and takes the gradient of that draw.</p>"
    '<div class="kl-play"><button type="button" data-walk="play">Play</button>'
    '<button type="button" data-walk="restart">Restart</button><label><span>step</span>'
    '<input type="range" name="step" min="0" max="0" step="1" value="0"></label></div>'
    '<div class="kl-play"><button type="button" data-walk="sample">Sampled step</button>'
    "<label><span>seed</span>"
    '<input type="number" name="seed" min="0" max="999999" step="1" value="1"></label>'
    '<label><span>learning rate <span class="kl-value" aria-hidden="true"></span></span>'
    '<input type="range" name="rate" min="0.05" max="2" step="0.05" value="0.5"></label>'
    '<p class="kl-trained" role="status" aria-live="polite"></p></div></fieldset>'
)
_HATCHES = {"reference": "/", "sampler": ".", "reverse": "\\", "forward": "x"}  # the color is not alone
PLOTS = {
    "arms": ("Probability of each arm", ("policy", "reference", "sampler")),
    "densities": ("Densities", ("policy", "reference", "sampler")),
    "push": ("One step of gradient descent: minus the gradient", ("estimate", "reverse", "forward")),
    "end": ("Where training ends", ("estimate", "reverse", "forward", "reference")),
}


def plots() -> dict[str, Any]:
    """The four empty Bokeh figures as JSON items by name; ImportError without `book/pyproject.toml`."""
    try:
        from bokeh.embed import json_item
        from bokeh.models import FixedTicker, Range1d
        from bokeh.plotting import figure
    except ImportError as error:
        raise ImportError(f"the explorer needs {error.name}: pip install -e book") from error
    items = {}
    for name, (_, series) in PLOTS.items():
        drawn = figure(height=210, sizing_mode="stretch_width", toolbar_location=None, tools="", name=name)
        drawn.outline_line_color = drawn.background_fill_color = drawn.border_fill_color = None
        drawn.xgrid.grid_line_color = None
        if name == "densities":
            for role in series:
                dash = {"policy": "solid", "reference": "dashed", "sampler": "dotted"}[role]
                drawn.line([], [], line_width=2.5, color=SERIES[role][0], line_dash=dash, name=role)
        else:
            drawn.x_range = Range1d(start=0.5, end=3.5)
            drawn.xaxis.ticker = FixedTicker(ticks=list(range(1, MOST_ARMS + 1)))
            for role in series:
                shade, hatch = SERIES[role][0], _HATCHES.get(role, "blank")
                bar: dict[str, Any] = {
                    "fill_color": shade,
                    "line_color": shade,
                    "hatch_color": "white",
                    "hatch_alpha": 0.6,
                }
                drawn.vbar(
                    x=[],
                    top=[],
                    width=_BARS if len(series) < 4 else _NARROW_BARS,
                    hatch_pattern=hatch,
                    name=role,
                    **bar,
                )
        items[name] = json_item(drawn)
    return items


def _range(name: str, text: str, low: float, high: float, step: float) -> str:
    bounds = f'min="{low:g}" max="{high:g}" step="{step:g}"'
    said = f'<span>{text} <span class="kl-value" aria-hidden="true"></span></span>'
    return f'<label>{said}<input type="range" name="{name}" {bounds}></label>'


def _radios(name: str, legend: str, choices: dict[str, str]) -> str:
    inner = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"> {text}</label>'
        for value, text in choices.items()
    )
    return f'<fieldset class="kl-choice"><legend>{legend}</legend>{inner}</fieldset>'


def _select(name: str, text: str, choices: dict[str, str]) -> str:
    inner = "".join(f'<option value="{value}">{said}</option>' for value, said in choices.items())
    return f'<label><span>{text}</span><select name="{name}">{inner}</select></label>'


def _gaussians() -> str:
    groups = {"gp": "Policy π", "gq": "Reference", "gm": "Sampler μ"}
    return "".join(
        f'<fieldset class="kl-sliders" data-role="{key}"><legend>{said}</legend>'
        + _range(f"{key}0", "mean", -2, 2, 0.05)
        + _range(f"{key}1", "standard deviation", 0.5, 2, 0.05)
        + "</fieldset>"
        for key, said in groups.items()
    )


def _plot(name: str) -> str:
    title, series = PLOTS[name]
    legend = "".join(
        f'<li data-role="{role}"><span class="kl-swatch" style="background-color:{SERIES[role][0]}"></span>'
        f"<span>{SERIES[role][1]}</span></li>"
        for role in series
    )
    return (
        f'<figure class="kl-plot" data-plot="{name}"><figcaption>{title}</figcaption>'
        f'<div id="kl-plot-{name}" role="img" aria-label="{title}"></div>'
        f'<ul class="kl-legend">{legend}</ul></figure>'
    )


def form() -> str:
    """The form and the places of the results, as HTML."""
    buttons = "".join(
        f'<button type="button" data-preset="{key}">{html.escape(preset.label)}</button>'
        for key, preset in PRESETS.items()
    )
    forms = {"bregman": "as in this book", "generic": "generic", "published": "as published"}
    ratios = {"none": "no ratio", "detached": "detached: sg(ρ) · term", "attached": "attached: ρ · term"}
    setup = (
        '<fieldset><legend>The term</legend><label><span>Estimator</span><select name="est"></select></label>'
        + _radios("place", "Placed", {"loss": "in the loss", "reward": "in the reward"})
        + f'<div class="kl-head">{_range("k", "arms in the top-k part, k", 0, MOST_ARMS, 1)}'
        + _select("form", "Form of the top-k estimator", forms)
        + "</div>"
        + _radios("off", "Samples come from", {"no": "the policy", "yes": "another policy, μ"})
        + _select("ratio", "Importance ratio ρ = π/μ", ratios)
        + "</fieldset>"
    )
    world = (
        "<fieldset><legend>The policies</legend>"
        + _radios("world", "Kind of policy", {"arms": "a choice between arms", "gauss": "a Gaussian"})
        + f'<div class="kl-arms">{_range("n", "number of arms", 2, MOST_ARMS, 1)}'
        + f'{_range("beta", "coefficient β", 0.05, 3, 0.05)}<div class="kl-each"></div></div>'
        + f'<div class="kl-gauss">{_gaussians()}</div></fieldset>'
    )
    result = (
        '<p class="kl-summary" role="status" aria-live="polite"></p>'
        + "".join(map(_plot, PLOTS))
        + _FIELD
        + _WALK
        + '<table class="table kl-numbers"><caption>The numbers</caption><tbody></tbody></table>'
        + '<p class="kl-copy"><button type="button" data-copy>Copy a link to this setting</button> '
        + "<output></output></p>"
    )
    return (
        f'<fieldset class="kl-presets"><legend>Start from</legend>{buttons}'
        '<p class="kl-note" role="status" aria-live="polite" hidden></p></fieldset>'
        f'<div class="kl-setup">{setup}</div>'
        f'<div class="kl-result" role="group" aria-label="Results">{result}</div>'
        f'<div class="kl-world">{world}</div>'
    )


class Explorer:
    """What a notebook shows; ``html`` is the markup. It needs the scripts of the built book."""

    def __init__(self) -> None:
        data = {
            "plots": plots(),
            "presets": {key: preset.state for key, preset in PRESETS.items()},
            "notes": {key: [preset.label, preset.sentences[0].text] for key, preset in PRESETS.items()},
            "plain": PLAIN,
            "series": {role: shade for role, (shade, _) in SERIES.items()},
        }
        text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
        self.html = (
            '<div class="kl-explorer"><p class="kl-needs">The explorer calculates in the reader\'s browser: '
            "it shows on the page of the built book, with JavaScript.</p>"
            f'<form hidden aria-label="Explorer" autocomplete="off">{form()}</form>'
            f'<script type="application/json" class="kl-data">{text}</script>'
            f"<script>{script()}</script></div>"
        )

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "Explorer: open the page of the built book"


class Notes:
    """What every preset shows, with a button that loads it; ``html`` is the markup."""

    def __init__(self) -> None:
        self.html = (
            f'<dl class="kl-notes">{"".join(_note(key, preset) for key, preset in PRESETS.items())}</dl>'
        )

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return "\n".join(
            f"{preset.label}: {' '.join(sentence.text for sentence in preset.sentences)}"
            for preset in PRESETS.values()
        )


def _note(key: str, preset: Preset) -> str:
    label = html.escape(preset.label)
    first, *others = (html.escape(sentence.text) for sentence in preset.sentences)
    changes = "".join(f"<li>{text}</li>" for text in others)
    return (
        f'<dt>{label} <button type="button" data-preset="{key}" aria-label="Load: {label}">Load</button></dt>'
        f"<dd><p>{first}</p><ul>{changes}</ul></dd>"
    )
