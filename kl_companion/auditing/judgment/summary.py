"""What an audit comes to, in few words: a headline, a level, terms, and what follows in practice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.templates import filled
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.divergences import DIVERGENCES

REVERSE, FORWARD, NOTHING, UNREGULARIZED, OTHER, MIXTURE, UNNAMED = HEADLINES = (
    "reverse KL",
    "forward KL",
    "no expected gradient",
    "no KL term",
    "another divergence",
    "a mixture",
    "unnamed",
)
NO_OBJECTIVE = "no known objective, and no sum of up to three"
_NEAR = 1.0
_ROUNDING = 1e-9


class Part(NamedTuple):
    """One objective of a finding.

    Attributes:
        objective: Its name.
        coefficient: What it is minimized with; negative where it is maximized.
        unit: A name of `UNITS`, or ``"batch"``: times a positive number of the batch.
        sign: Of the coefficient, 1 or -1.
    """

    objective: str
    coefficient: float
    unit: str
    sign: int = 1


def explanation(finding: Finding) -> int | None:
    """Which of the equally short explanations to show: most regularizers first, then registered first."""
    place = {name: i for i, name in enumerate(OBJECTIVES)}

    def order(i: int) -> tuple[int, list[int]]:
        match = finding.matches[i]
        return -sum(OBJECTIVES[n].regularizer for n in match), sorted(place.get(n, len(place)) for n in match)

    return min(range(len(finding.matches)), key=order) if finding.matches else None


def terms(finding: Finding) -> tuple[Part, ...]:
    """The explanation to show: regularizers first, and the largest of them."""
    i = explanation(finding)
    if i is None:
        return ()
    units = finding.units[i] if finding.units else dict.fromkeys(finding.matches[i], "")
    found = [Part(n, c, units[n], 1 if c > 0 else -1) for n, c in finding.matches[i].items()]
    return tuple(sorted(found, key=lambda t: (not OBJECTIVES[t.objective].regularizer, -t.coefficient)))


def regularizers(finding: Finding) -> tuple[Part, ...]:
    """The terms that measure a distance to the reference."""
    return tuple(t for t in terms(finding) if OBJECTIVES[t.objective].regularizer)


def headline(finding: Finding) -> str:
    """One of `HEADLINES`."""
    if finding.zero:
        return NOTHING
    if not finding.matches:
        return UNNAMED
    found = [t for t in terms(finding) if not is_beside(t.objective)]
    if not found:
        signs = [t.sign for t in terms(finding) if to_sampler(t.objective)]
        return UNREGULARIZED if not signs else OTHER if min(signs) > 0 else UNNAMED
    if len(found) > 1:
        return MIXTURE
    held = OBJECTIVES[found[0].objective].regularizer and found[0].sign > 0
    return _kind(found[0].objective) if held else UNNAMED


def is_beside(objective: str) -> bool:
    """Whether it is no part of the KL term: a reward, an entropy bonus, a distance to the sampler."""
    return OBJECTIVES[objective].rewards or to_sampler(objective) or objective.endswith("_entropy")


def to_sampler(objective: str) -> bool:
    """Whether it is a distance to the policy that sampled."""
    return OBJECTIVES[objective].sampler and not OBJECTIVES[objective].rewards


def _kind(objective: str) -> str:
    of = divergence_of(objective)
    return {"reverse_kl": REVERSE, "forward_kl": FORWARD}.get(of, OTHER)


def divergence_of(objective: str) -> str:
    """The registered divergence that an objective is of, or ""."""
    bare = objective.removeprefix("policy_").removeprefix("token_").removeprefix("sequence_")
    return bare if bare in DIVERGENCES else ""


def curvature(finding: Finding) -> float:
    """Return how strong the smooth divergences of a loss are near the reference, in units of one KL."""
    smooth = [(t.coefficient, DIVERGENCES[n]) for t in terms(finding) if (n := divergence_of(t.objective))]
    each = [c * float(d.curvature) for c, d in smooth if d.smooth]
    return 0.0 if abs(sum(each)) < _ROUNDING * sum(map(abs, each)) else sum(each)


def level(finding: Finding) -> str:
    """``"token"``, ``"sequence"``, ``"both"``, or "" without a regularizer."""
    said = {
        "sequence" if "sequence" in t.objective.partition("_squared")[0] else "token"
        for t in regularizers(finding)
    }
    return said.pop() if len(said) == 1 else "both" if said else ""


def unit_of(finding: Finding) -> str:
    """Return the one unit of all terms that measure a distance to the reference; "" for several or none.

    A mean over each answer is as long as that objective divided by the mean answer length.
    """
    units = {
        "tokens" if t.objective.startswith("sampled_mean") and not t.unit else t.unit
        for t in regularizers(finding)
    }
    return units.pop() if len(units) == 1 else ""


def number(c: float) -> str:
    """Return a coefficient, short."""
    return f"{c:.4g}"


def row(finding: Finding) -> str:
    """A finding in a line: ``0.04 x forward KL, next token - 1 x reward; / mean length``."""
    if not finding.settles:
        return "no limit: the gradient goes on changing as the batch grows"
    if finding.zero:
        return "nothing: the expected gradient is zero"
    found = terms(finding)
    if not found:
        return NO_OBJECTIVE
    parts = []
    for i, t in enumerate(found):
        sign = "-" if t.sign < 0 else "+" if i else ""
        size = "" if abs(t.coefficient) == 1 else f"{number(abs(t.coefficient))} x "
        parts.append(f"{sign} {size}{OBJECTIVES[t.objective].short}".strip())
    units = list(dict.fromkeys(t.unit for t in found))
    said = " ".join(parts)
    if units == [""]:
        return said
    if units == [COMMON]:
        return f"[{said}] x a positive number of the batch"
    if len(units) == 1:
        return f"[{said}] / {UNITS[units[0]]}"
    with_unit = (f"{OBJECTIVES[t.objective].short} / {UNITS[t.unit]}" for t in found if t.unit)
    return f"{said}; {', '.join(with_unit)}"


def maximized(finding: Finding) -> str:
    """Return what is maximized, where every term is; "" elsewhere."""
    if not finding.matches or any(t.sign > 0 for t in terms(finding)):
        return ""
    turned = row(replace(finding, matches=tuple({n: -c for n, c in m.items()} for m in finding.matches)))
    return "E[R]" if turned == OBJECTIVES["expected_reward"].short else turned


def rows(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """(where, what) for fresh and stale samples near the reference and far from it; like rows are one."""
    found: list[tuple[str, str]] = []
    for off_policy, samples in ((False, "fresh samples"), (True, "stale samples")):
        here = [f for f in _varying(findings) if f.condition and f.condition.off_policy is off_policy]
        said = [(f.condition.scale, row(f)) for f in here if f.condition]
        if len({text for _, text in said}) == 1:
            found.append((samples, said[0][1]))
        else:
            found += [(f"{samples}, {'near' if s <= _NEAR else 'far'}", text) for s, text in said]
    return found or [("the given worlds", row(f)) for f in findings]


def _varying(findings: Sequence[Finding]) -> list[Finding]:
    """The findings where lengths vary: what a trainer sees."""
    return [f for f in findings if f.condition is not None and f.condition.eos]


def main_finding(findings: Sequence[Finding]) -> Finding:
    """The finding that the headline is about: small ratios, lengths that vary, the first samples."""
    return next(iter(_varying(findings)), findings[0])


def effects(finding: Finding) -> list[str]:
    """Return what follows in practice of every term by itself, where its sign is known, a sentence each."""
    if finding.zero:
        return [filled("idle")]
    each = [
        {1: OBJECTIVES[t.objective].effect, -1: OBJECTIVES[t.objective].opposite}.get(t.sign, "")
        for t in terms(finding)
    ]
    return list(dict.fromkeys(x for x in each if x))
