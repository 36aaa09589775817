"""Losses of preference pairs: which one it is by experiment, what its beta means, and what stands in it.

An audit compares gradients with those of divergences between two policies, on answers that one of them
sampled. A preference loss is a function of log-probs of ranked answers of a data set. It is answered here.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.construction import Chosen, callable_of, parameters_of, source_of
from kl_companion.auditing.reading.names import words_of

_SIDES = {
    "kl": "kl",
    "rejected": "rejected|reject|dispreferred|loser|lose|losing|negative|yl|undesirable|unpreferred",
    "chosen": "chosen|preferred|winner|win|winning|yw|desirable",
}
_OWNERS = "ref|reference|initial|init|sft|base|frozen"
_ROWS = 8
_CLOSE = 1e-6  # relatively
_NO_REFERENCE = "There is no reference in it, and nothing holds the policy near one"
# of every form: what it does, and what its beta (or tau) does
_FORMS = {
    "DPO": (
        "it is derived from the maximum of E[reward] - beta x reverse KL of whole answers. That policy is "
        "its optimum for pairs that a Bradley-Terry model has ranked; its gradient is not that of a KL",
        "a larger beta keeps that optimum closer to the reference",
    ),
    "IPO": (
        "the log-ratio of the chosen answer to the rejected one, less that of the reference, is pulled to "
        "the target 1 / (2 beta), and no further",
        "a larger beta (tau) is a smaller target, closer to the reference",
    ),
    "SLiC, a hinge": (
        "the log-ratio of the chosen answer to the rejected one, less that of the reference, is raised until "
        "it is 1 / beta",
        "a larger beta is a smaller margin, closer to the reference",
    ),
    "KTO": (
        "answers are judged one by one: the log-ratio to the reference goes through a sigmoid, up for those "
        "that are desired and down for the others",
        "it is the slope of that sigmoid",
    ),
    "SimPO or CPO": (
        f"the difference of the log-probs of two answers goes through a sigmoid. {_NO_REFERENCE}",
        "it is the slope of that sigmoid, the coefficient of no KL",
    ),
    "ORPO": (
        f"the log-odds of two answers go through a sigmoid, beside SFT. {_NO_REFERENCE}",
        "it (or lambda) weights the odds against SFT, and is the coefficient of no KL",
    ),
    "a reward model's": ("it trains a reward on ranked answers; there is no policy in it", "no KL is in it"),
    "": (
        "what it minimizes depends on ranked answers of a data set",
        "nothing is said of it, since the form was not recognized",
    ),
}


class PreferenceLoss(ValueError):
    """A loss of preference pairs, and the answer that is given instead of a verdict; ``data`` holds it."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = dict(data)
        super().__init__(_card(self.data))


class _Run(NamedTuple):
    """A preference loss on random log-probs: its value and derivatives, [8] each, by (owner, side)."""

    values: dict[tuple[str, str], torch.Tensor]
    slopes: dict[tuple[str, str], torch.Tensor]
    labels: torch.Tensor


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
        function = callable_of(loss, settings)
        parameters = parameters_of(function, label)
    except ValueError:
        return
    sides = {p.name: "" if p.name in mapped else _side(p.name) for p in parameters}
    source = source_of(function)
    local = set() if mapped else _assigned(source)
    by_names = {"chosen", "rejected"} <= {*sides.values()} or "kl" in sides.values()
    by_locals = {"chosen", "rejected"} <= {_side(x) for x in local} and "sigmoid" in source
    if not (by_names or by_locals):
        return
    names = [n for n, side in sides.items() if side] or sorted(x for x in local if _side(x))[:4]
    data: dict[str, Any] = {"name": label, "kind": "preference loss", "audited": False, "names": names}
    run = _run(function, parameters, settings, sides) if by_names else None
    numbers = {**settings.defaults, **{n: v for n, (v, _) in settings.assumed.items()}, **options}
    numbers |= {p.name: p.default for p in parameters if isinstance(p.default, int | float)}
    form, terms = _form(run, numbers) if run else ("", [])
    if not form and not any(re.search(r"_log?_?p", words_of(n)) for n in names) and by_names:
        form = "a reward model's"
    beta = next((n for n in numbers if re.fullmatch(r"(.*\.)?(beta|tau|lambda_?|lam)", n)), "")
    raise PreferenceLoss({**data, "form": form, "beta": beta, "terms": terms, "kl": _kl(run, sides)})


def _side(name: str) -> str:
    words = words_of(name)
    found = (s for s, pattern in _SIDES.items() if re.search(rf"_(?:{pattern})(?=_)", words))
    side = next(found, "")
    return side if side != "kl" or "_logp_" in words or "_log_prob_" in words or "_logprob_" in words else ""


def _assigned(source: str) -> set[str]:
    lines = re.findall(r"^\s*([\w, ]+?)\s*=[^=]", source, re.M)
    return {x.strip() for line in lines for x in line.split(",")}


def _run(
    function: Any, parameters: list[inspect.Parameter], settings: Chosen, sides: Mapping[str, str]
) -> _Run | None:
    """The loss on random log-probs of eight answers or pairs; None where it does not run on such."""
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(_ROWS) % 2 == 0
    values: dict[tuple[str, str], torch.Tensor] = {}
    given: dict[str, Any] = {}
    for p in parameters:
        words = words_of(p.name)
        if p.name in settings.given:
            given[p.name] = settings.of(p.name)
        elif sides[p.name] or re.search("_log_?p|_logp|_log_prob|_reward", words):
            owner = "ref" if re.search(rf"_(?:{_OWNERS})_", words) else "policy"
            x = -0.2 - torch.rand(_ROWS, generator=generator, dtype=torch.float64)
            given[p.name] = values[owner, sides[p.name]] = x.requires_grad_()
        elif isinstance(p.default, int | float):
            continue
        elif re.search("_label_|_desirable_", words):
            given[p.name] = labels
        elif re.search("_len(gth)?_", words):
            given[p.name] = torch.full((_ROWS,), 4.0, dtype=torch.float64)
        elif "_mask_" in words:
            given[p.name] = torch.ones(_ROWS, dtype=torch.bool)
        elif p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            value = settings.assume(p.name)
            given[p.name] = value if isinstance(value, int | float) else 1.0
    try:
        out = function(**given)
        out = out[0] if isinstance(out, tuple) else out["loss"] if isinstance(out, dict) else out
        slopes = torch.autograd.grad(
            out.sum() / (out.numel() or 1), list(values.values()), allow_unused=True, materialize_grads=True
        )
    except Exception:  # whatever it raises: its names are answered
        return None
    return _Run(values, dict(zip(values, slopes, strict=True)), labels)


def _form(run: _Run, numbers: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The form whose derivative the loss has, and terms that stand beside it."""
    zero = torch.zeros(_ROWS, dtype=torch.float64)
    sides = [(owner, side) for owner in ("policy", "ref") for side in ("chosen", "rejected")]
    c, r, rc, rr = (run.values.get(x, zero).detach() for x in sides)
    slope, other = (run.slopes.get(("policy", s), zero) for s in ("chosen", "rejected"))
    betas = [
        float(v) for v in numbers.values() if isinstance(v, int | float) and not isinstance(v, bool) and v
    ]
    if ("policy", "chosen") not in run.values or "kl" in {s for _, s in run.values}:
        return ("KTO", []) if any(s == "kl" for _, s in run.values) else ("", [])
    extra = slope + other  # of the margin it is 0
    terms = []
    constant = bool((extra - extra.mean()).abs().max() <= _CLOSE * (slope.abs().max() + 1))
    if constant and extra.mean() < -_CLOSE:
        terms = [f"{-_ROWS * extra.mean().item():g} x negative log-likelihood of the chosen answers (SFT)"]
    with_reference = any(run.slopes[k].abs().max() > 0 for k in run.slopes if k[0] == "ref")
    margin = c - r - (rc - rr)
    for beta in betas:
        shapes = {
            "IPO": margin - 1 / (2 * beta),
            "SLiC, a hinge": (beta * margin < 1).double(),
        }
        smoothed = [0.0, *(x for x in betas if x < 0.5)]
        up, down = torch.sigmoid(-beta * margin), torch.sigmoid(beta * margin)
        if with_reference and any(_proportional(other, (1 - e) * up - e * down) for e in smoothed):
            return "DPO", terms
        for form, shape in shapes.items():
            if with_reference and _proportional(-other, shape):
                return form, terms
        gammas = [0.0, *betas, *(beta * b for b in betas)]
        simple = (_proportional(other, torch.sigmoid(g - beta * (c - r))) for g in gammas)
        if not with_reference and any(simple):
            return "SimPO or CPO", terms
    odds = c - r - (torch.log1p(-c.exp()) - torch.log1p(-r.exp()))
    if not with_reference and _proportional(other, torch.sigmoid(-odds) / (1 - r.exp())):
        return "ORPO", ["negative log-likelihood of the chosen answers (SFT)"]
    return "", terms


def _proportional(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether one is a multiple of the other."""
    scale = (a * b).sum() / (b * b).sum().clamp(min=1e-30)
    return bool((a - scale * b).abs().max() <= _CLOSE * a.abs().max()) and bool(a.abs().max() > 0)


def _kl(run: _Run | None, sides: Mapping[str, str]) -> str:
    """What its KL does; "" where it has none."""
    if "kl" not in sides.values():
        return ""
    if run is not None and all(run.slopes[k].abs().max() == 0 for k in run.slopes if k[1] == "kl"):
        return "the kl only shifts the sigmoid, is detached and regularizes nothing"
    return "the kl shifts the sigmoid" + (", and its gradient is part of the loss" if run is not None else "")


def _card(data: Mapping[str, Any]) -> str:
    """The answer as it is printed."""
    form = data["form"]
    derived, beta = _FORMS[form]
    terms = "; ".join(data["terms"]) or "no KL and no SFT term that was recognized"
    lines = [
        f"{data['name']} is a preference loss{f' ({form})' * bool(form)}: {data['kl'] or derived}; "
        "not audited.",
        *([f"In it {derived}."] if data["kl"] else []),
        f"Of a pair, or of its kl: {', '.join(data['names'])}.",
        *([f"What {data['beta']} means: {beta}."] if data["beta"] else []),
        f"Beside it: {terms}.",
        "No divergence is named for it, since an audit compares gradients on answers that a policy has "
        "sampled. To audit a KL or SFT term that stands beside it, move that term to a function of logp, "
        "ref_logp and mask, and audit that function.",
    ]
    if form == "DPO":
        lines.append(
            "To see its optimum: kl_companion.optimal_policy(rewards, ref_logp, 'reverse_kl', beta). If it "
            "is the token that was chosen by sampling, and no pair: --map NAME=logp."
        )
    return "\n".join(x for line in lines for x in textwrap.wrap(line, 100, subsequent_indent="  "))
