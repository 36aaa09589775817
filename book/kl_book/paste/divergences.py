"""The registry of divergences as the page has it: the same names, read from what was recorded.

It takes the places of the modules of `kl_companion.divergences` that need SymPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kl_companion.checks import look_up
from kl_companion.divergences import inline

Function = Callable[[torch.Tensor], torch.Tensor]
T = W = None  # symbols, of which a page has none
SUPPORT = ""
DIVERGENCES: dict[str, Recorded] = {}


@dataclass(frozen=True)
class Recorded:
    """A divergence whose functions were recorded; see `kl_companion.divergences.generator.Divergence`."""

    name: str
    source: str
    smooth: bool
    curvature: float
    edges: tuple[float, float]
    printed: dict[str, str] = field(hash=False)
    functions: dict[str, Function] = field(hash=False)
    terms: dict[bool, list[tuple[float, Function]]] = field(hash=False)


Divergence = Recorded


def read(records: dict[str, Any]) -> None:
    """Fill the registry."""
    globals()["SUPPORT"] = records["support"]
    for d in records["divergences"]:
        functions = {name: _function(source) for name, source in d["functions"].items()}
        terms = {
            slope: [(k, _function(source)) for k, source in d["terms"][str(slope)]] for slope in (False, True)
        }
        zero, infinity = map(float, d["edges"])
        DIVERGENCES[d["name"]] = Recorded(
            d["name"],
            d["source"],
            d["smooth"],
            float("nan") if d["curvature"] is None else d["curvature"],
            (zero, infinity),
            d["printed"],
            functions,
            terms,
        )


def _function(source: str) -> Function:
    made: dict[str, Any] = {}
    exec(source, dict(inline.NAMES), made)  # what was printed when the book was built
    (compiled,) = made.values()
    return lambda x: inline.filled(compiled(x), x)


def get_divergence(name: str | Recorded) -> Recorded:
    """The divergence of that name; ValueError for one that was not recorded."""
    if isinstance(name, Recorded):
        return name
    found: Recorded = look_up("divergence", name, DIVERGENCES, {})
    return found


def generator_of_log(divergence: Recorded, *, dual: bool = False) -> Function:
    """f(e^u), or its dual, as a function of u."""
    return divergence.functions["dual" if dual else "f"]


def edges_of(divergence: Recorded) -> tuple[float, float]:
    """Return f(0) and the limit of f(t)/t."""
    return divergence.edges


def stable_generator(
    divergence: Recorded, log_t: torch.Tensor, *, dual: bool = False, moderate: bool | None = None
) -> torch.Tensor:
    """f(t), or its dual, where t may overflow."""
    direct = generator_of_log(divergence, dual=dual)
    if inline.moderate(log_t) if moderate is None else moderate:
        return direct(log_t)
    edges = divergence.edges[::-1] if dual else divergence.edges
    return inline.generator(direct, generator_of_log(divergence, dual=not dual), edges, log_t)


def stable_slope(divergence: Recorded, log_t: torch.Tensor, *, moderate: bool | None = None) -> torch.Tensor:
    """f'(t) from log t."""
    below, above = divergence.functions["below"], divergence.functions["above"]
    if inline.moderate(log_t) if moderate is None else moderate:
        return below(log_t)
    return inline.slope(below, above, divergence.edges[1], log_t)


def terms_of_log(divergence: Recorded, slope: bool) -> list[tuple[float, Function]]:
    """f(t), or t f'(t), as a sum of t^k times functions of log t."""
    return divergence.terms[slope]


def printed(divergence: Recorded) -> dict[str, str]:
    """Value and weight of Kf++, as PyTorch."""
    return divergence.printed
