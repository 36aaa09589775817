"""Losses of preference pairs: which one it is by experiment, what its beta means, and what stands in it.

An audit compares gradients with those of divergences between two policies, on answers that one of them
sampled. A preference loss is a function of log-probs of ranked answers of a data set. It is answered here.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

import torch

from kl_companion.auditing.reading.construction import Chosen, callable_of
from kl_companion.auditing.reading.names import words_of
from kl_companion.auditing.reading.text import FunctionText

_DATA = tomllib.loads((files(__package__) / "preferences.toml").read_text("utf-8"))
_WORDS, _ANSWER = _DATA["words"], _DATA["answer"]
_ROWS = 8
_CLOSE = 1e-6  # relatively
_NONE = (torch.zeros(_ROWS, dtype=torch.float64),) * 2
# what is passed for a tensor that is neither a log-prob nor a reward, by a pattern of its words
_OTHERS = {
    "_label_|_desirable_": torch.arange(_ROWS) % 2 == 0,
    "_len(gth)?_": torch.full((_ROWS,), 4.0, dtype=torch.float64),
    "_mask_": torch.ones(_ROWS, dtype=torch.bool),
}
# inputs of a loss and its derivatives with respect to them, [8] each, by owner and side
_Run = dict[tuple[str, str], tuple[torch.Tensor, torch.Tensor]]


class PreferenceLoss(ValueError):
    """A loss of preference pairs, and the answer that is given instead of a verdict; ``data`` holds it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)
        super().__init__(_card(self.data))


def refuse_preferences(loss: Any, label: str, mapped: set[str], options: Mapping[str, Any]) -> None:
    """Raise `PreferenceLoss` for a loss of preference pairs, by its names and what its code does.

    Args:
        loss: A function, a method or a class.
        label: What it is called.
        mapped: Parameters whose meaning the reader has said.
        options: Values of its parameters.
    """
    try:
        settings = Chosen(options)
        text = FunctionText(callable_of(loss, settings))
        parameters = text.parameters
    except ValueError:
        return
    sides = {p.name: "" if p.name in mapped else _side(p.name) for p in parameters}
    assigned = "" if mapped else ",".join(re.findall(r"^\s*([\w, ]+?)\s*=[^=]", text.source, re.M))
    local = {x.strip(): _side(x) for x in assigned.split(",")}
    by_names = {"chosen", "rejected"} <= {*sides.values()} or "kl" in sides.values()
    by_locals = {"chosen", "rejected"} <= {*local.values()} and text.has("sigmoid")
    if not (by_names or by_locals):
        return
    names = [n for n, side in sides.items() if side] or sorted(x for x in local if local[x])[:4]
    run = _run(text, settings, sides) if by_names else None
    numbers = {**settings.defaults, **{n: v for n, (v, _) in settings.assumed.items()}, **options}
    numbers |= {p.name: p.default for p in parameters if isinstance(p.default, int | float)}
    form, terms = _form(run, numbers) if run else ("", [])
    if not form and by_names and not any(re.search(r"_log?_?p", words_of(n)) for n in names):
        form = "a reward model's"
    beta = next((n for n in numbers if re.fullmatch(r"(.*\.)?(beta|tau|lambda_?|lam)", n)), "")
    data = {"name": label, "kind": "preference loss", "audited": False, "names": names}
    kl = _kl(run) if "kl" in sides.values() else ""
    raise PreferenceLoss({**data, "form": form, "beta": beta, "terms": terms, "kl": kl})


def _side(name: str) -> str:
    """Return of which answer of a pair a name is, "" of none; of a KL only where log-probs are named."""
    words = words_of(name)
    found = (s for s, pattern in _DATA["sides"].items() if re.search(rf"_(?:{pattern})(?=_)", words))
    side = next(found, "")
    return "" if side == "kl" and not re.search(_WORDS["log_prob"], words) else side


def _run(text: FunctionText, settings: Chosen, sides: Mapping[str, str]) -> _Run | None:
    """Run a loss on random log-probs of eight answers or pairs; return None where it does not run on such."""
    generator = torch.Generator().manual_seed(7)
    values: dict[tuple[str, str], torch.Tensor] = {}
    passed: dict[str, Any] = {}
    for p in text.parameters:
        words = words_of(p.name)
        other = next((x for pattern, x in _OTHERS.items() if re.search(pattern, words)), None)
        if p.name in settings.given:
            passed[p.name] = settings.of(p.name)
        elif sides[p.name] or re.search(_WORDS["value"], words):
            owner = "ref" if re.search(_WORDS["reference"], words) else "policy"
            x = -0.2 - torch.rand(_ROWS, generator=generator, dtype=torch.float64)
            passed[p.name] = values[owner, sides[p.name]] = x.requires_grad_()
        elif isinstance(p.default, int | float):
            continue
        elif other is not None:
            passed[p.name] = other
        elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            value = settings.assume(p.name)
            passed[p.name] = value if isinstance(value, int | float) else 1.0
    try:
        out = text.call(**passed)
        out = out[0] if isinstance(out, tuple) else out["loss"] if isinstance(out, dict) else out
        slopes = torch.autograd.grad(
            out.sum() / (out.numel() or 1), list(values.values()), allow_unused=True, materialize_grads=True
        )
    except Exception:  # whatever it raises: its names are answered
        return None
    return {k: (x.detach(), slope) for (k, x), slope in zip(values.items(), slopes, strict=True)}


def _form(run: _Run, numbers: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the form whose derivative the loss has, and terms that stand beside it."""
    has_kl = "kl" in {side for _, side in run}
    if has_kl or ("policy", "chosen") not in run:
        return "KTO" * has_kl, []
    _, chosen = run["policy", "chosen"]
    _, rejected = run.get(("policy", "rejected"), _NONE)
    extra = chosen + rejected  # of the margin it is 0
    constant = bool((extra - extra.mean()).abs().max() <= _CLOSE * (chosen.abs().max() + 1))
    sft = constant and extra.mean() < -_CLOSE
    terms = [f"{-_ROWS * extra.mean().item():g} x {_ANSWER['sft']}"] if sft else []
    betas = [float(v) for v in numbers.values() if isinstance(v, int | float) and type(v) is not bool and v]
    form = next((form for form, slope in _slopes(run, betas) if _proportional(rejected, slope)), "")
    return form, [_ANSWER["sft"]] if form == "ORPO" else terms


def _slopes(run: _Run, betas: list[float]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield forms with what their derivative with respect to rejected answers is a multiple of, [8]."""
    sides = [(owner, side) for owner in ("policy", "ref") for side in ("chosen", "rejected")]
    chosen, rejected, ref_chosen, ref_rejected = (run.get(x, _NONE)[0] for x in sides)
    margin = chosen - rejected
    if any(slope.any() for (owner, _), (_, slope) in run.items() if owner == "ref"):
        margin = margin - (ref_chosen - ref_rejected)
        for beta in betas:
            for smoothing in (0.0, *(x for x in betas if x < 0.5)):
                yield "DPO", torch.sigmoid(-beta * margin) - smoothing
            yield "IPO", margin - 1 / (2 * beta)
            yield "SLiC, a hinge", (beta * margin < 1).double()
        return
    for beta in betas:
        for gamma in (0.0, *betas, *(beta * b for b in betas)):
            yield "SimPO or CPO", torch.sigmoid(gamma - beta * margin)
    odds = margin - (torch.log1p(-chosen.exp()) - torch.log1p(-rejected.exp()))
    yield "ORPO", torch.sigmoid(-odds) / (1 - rejected.exp())


def _proportional(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one is a multiple of the other."""
    scale = (a * b).sum() / (b * b).sum().clamp(min=1e-30)
    return bool((a - scale * b).abs().max() <= _CLOSE * a.abs().max()) and bool(a.abs().max() > 0)


def _kl(run: _Run | None) -> str:
    """Return what the KL of a loss does."""
    if run is None:
        return str(_ANSWER["kl_unknown"])
    acts = any(slope.any() for (_, side), (_, slope) in run.items() if side == "kl")
    return str(_ANSWER["kl_acts" if acts else "kl_shifts"])


def _card(data: Mapping[str, Any]) -> str:
    """Return the answer as it is printed."""
    form, kl, beta = _DATA["forms"][data["form"]], data["kl"], data["beta"]
    named = f" ({data['form']})" * bool(data["form"])
    lines = [
        f"{data['name']} is a preference loss{named}: {kl or form['does']}; not audited.",
        f"In it {form['does']}." * bool(kl),
        f"Of a pair, or of its kl: {', '.join(data['names'])}.",
        f"What {beta} means: {form['beta']}." * bool(beta),
        f"Beside it: {'; '.join(data['terms']) or _ANSWER['no_terms']}.",
        _ANSWER["last"],
        form.get("more", ""),
    ]
    return "\n".join(x for line in lines for x in textwrap.wrap(line, 100, subsequent_indent="  "))
