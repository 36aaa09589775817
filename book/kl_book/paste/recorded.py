"""What the page is spared: functions that SymPy derives, gradients of objectives, computed at build time."""

from __future__ import annotations

import inspect
from typing import Any

from kl_companion.auditing.worlds.objective import fields_and_values
from kl_companion.auditing.worlds.objectives import objectives
from kl_companion.auditing.worlds.plan import conditions
from kl_companion.auditing.worlds.trees import Condition, worlds
from kl_companion.divergences import (
    DIVERGENCES,
    SUPPORT,
    Divergence,
    compiled,
    printed,
)

VOCAB = 3


def recorded() -> dict[str, Any]:
    """Divergences and objectives, as data that JSON holds without a loss."""
    return {
        "support": SUPPORT,
        "divergences": [_of_divergence(d) for d in DIVERGENCES.values()],
        "fields": [[list(c), VOCAB, _fields(c)] for c in conditions()],
    }


def _of_divergence(d: Divergence) -> dict[str, Any]:
    below, above = compiled.slopes_of_log(d)
    functions = {
        "f": compiled.generator_of_log(d),
        "dual": compiled.generator_of_log(d, dual=True),
        "below": below,
        "above": above,
    }
    return {
        "name": d.name,
        "source": d.source,
        "smooth": d.smooth,
        "curvature": float(d.curvature) if d.smooth else None,
        "edges": [repr(x) for x in d.edges],
        "printed": printed(d),
        "functions": {name: _source(fn) for name, fn in functions.items()},
        "terms": {
            str(slope): [[k, _source(fn)] for k, fn in compiled.terms_of_log(d, slope)]
            for slope in (False, True)
        },
    }


def _source(function: Any) -> str:
    return inspect.getsource(function.printed)


def _fields(condition: Condition) -> list[dict[str, Any]]:
    """Of every world, {objective: [value, gradient]}."""
    known = objectives(off_policy=condition.off_policy, lengths=condition.eos)
    return [
        {n: [value, field.tolist()] for n, (value, field) in fields_and_values(known, w.problem).items()}
        for w in worlds(condition, VOCAB)
    ]
