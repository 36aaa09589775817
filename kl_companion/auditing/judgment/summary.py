"""What an audit comes to, in few words: a headline, a level, terms, and what follows in practice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.templates import filled
from kl_companion.auditing.judgment.words import signed_sum
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

    @property
    def kind(self) -> str:
        """What it is, see `kind_of`."""
        return kind_of(self.objective)

    @property
    def short(self) -> str:
        """The objective in a few words."""
        return OBJECTIVES[self.objective].short


def explanation(finding: Finding) -> int | None:
    """Return the number of the explanation to show: with most regularizers, then the first registered."""
    place = {name: i for i, name in enumerate(OBJECTIVES)}

    def order(i: int) -> tuple[int, list[int]]:
        match = finding.matches[i]
        return -sum(OBJECTIVES[n].regularizer for n in match), sorted(place.get(n, len(place)) for n in match)

    return min(range(len(finding.matches)), key=order) if finding.matches else None


def terms(finding: Finding) -> tuple[Part, ...]:
    """Return the explanation to show: regularizers first, and the largest of them."""
    i = explanation(finding)
    if i is None:
        return ()
    units = finding.units[i] if finding.units else dict.fromkeys(finding.matches[i], "")
    found = [Part(n, c, units[n], 1 if c > 0 else -1) for n, c in finding.matches[i].items()]
    return tuple(sorted(found, key=lambda t: (t.kind != "reference", -t.coefficient)))


def kind_of(objective: str) -> str:
    """Return "reward", "sampler" or "reference" for a distance to that policy, "entropy", or "other"."""
    of = OBJECTIVES[objective]
    kinds = {"reward": of.rewards, "sampler": of.sampler, "reference": of.regularizer}
    kinds["entropy"] = objective.endswith("_entropy")
    return next((kind for kind, is_it in kinds.items() if is_it), "other")


def is_beside(objective: str) -> bool:
    """Return whether it is no part of the KL term: a reward, an entropy bonus, a distance to the sampler."""
    return kind_of(objective) in ("reward", "sampler", "entropy")


def regularizers(finding: Finding) -> tuple[Part, ...]:
    """Return the terms that measure a distance to the reference."""
    return tuple(t for t in terms(finding) if t.kind == "reference")


def headline(finding: Finding) -> str:
    """Return one of `HEADLINES`."""
    if finding.zero or not finding.matches:
        return NOTHING if finding.zero else UNNAMED
    found = [t for t in terms(finding) if not is_beside(t.objective)]
    if not found:
        signs = [t.sign for t in terms(finding) if t.kind == "sampler"]
        return UNREGULARIZED if not signs else OTHER if min(signs) > 0 else UNNAMED
    if len(found) > 1:
        return MIXTURE
    named = {"reverse_kl": REVERSE, "forward_kl": FORWARD}
    minimized = found[0].kind == "reference" and found[0].sign > 0
    return named.get(divergence_of(found[0].objective), OTHER) if minimized else UNNAMED


def divergence_of(objective: str) -> str:
    """Return the registered divergence that an objective is of, or ""."""
    bare = objective.removeprefix("policy_").removeprefix("token_").removeprefix("sequence_")
    return bare if bare in DIVERGENCES else ""


def curvature(finding: Finding) -> float:
    """Return how strong the smooth divergences of a loss are near the reference, in units of one KL."""
    smooth = [(t.coefficient, DIVERGENCES[n]) for t in terms(finding) if (n := divergence_of(t.objective))]
    each = [c * float(d.curvature) for c, d in smooth if d.smooth]
    return 0.0 if abs(sum(each)) < _ROUNDING * sum(map(abs, each)) else sum(each)


def wrong_signs(finding: Finding) -> tuple[Part, ...]:
    """Return the terms of a loss whose sign is wrong: rewards first, then divergences, then entropies.

    Divergences may be subtracted from others that hold the policy more: K3 in the reward is such a sum.
    """
    found, kl = terms(finding), regularizers(finding)
    subtracted = tuple(t for t in kl if t.sign < 0 and not t.objective.endswith("_mass"))
    known = len({t.unit for t in kl}) == 1 and all(divergence_of(t.objective) for t in kl)
    return (
        *(t for t in found if t.kind == "reward" and t.sign > 0),
        *(subtracted if len(subtracted) == len(kl) or (known and curvature(finding) < 0) else ()),
        *(t for t in found if t.kind == "sampler" and t.sign < 0),
        *(t for t in found if t.kind == "entropy" and t.sign > 0),
    )


def minimizes_rewards(finding: Finding) -> bool:
    """Return whether the rewards of a loss are minimized."""
    return any(t.kind == "reward" for t in wrong_signs(finding))


def level(finding: Finding) -> str:
    """Return ``"token"``, ``"sequence"``, ``"both"``, or "" without a regularizer."""
    names = [t.objective.partition("_squared")[0] for t in regularizers(finding)]
    levels = {"sequence" if "sequence" in name else "token" for name in names}
    return levels.pop() if len(levels) == 1 else "both" if levels else ""


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
    """Return a finding in a line: ``0.04 x forward KL, next token - 1 x reward; / mean length``."""
    if not finding.settles:
        return "no limit: the gradient goes on changing as the batch grows"
    if finding.zero:
        return "nothing: the expected gradient is zero"
    found = terms(finding)
    if not found:
        return NO_OBJECTIVE
    line = signed_sum((t.coefficient, t.short) for t in found)
    units = {t.unit for t in found}
    if units == {""}:
        return line
    if len(units) == 1:
        unit = units.pop()
        return f"[{line}] x a positive number of the batch" if unit == COMMON else f"[{line}] / {UNITS[unit]}"
    return f"{line}; {', '.join(f'{t.short} / {UNITS[t.unit]}' for t in found if t.unit)}"


def maximized(finding: Finding) -> str:
    """Return what is maximized, where every term is; "" elsewhere."""
    if not finding.matches or any(t.sign > 0 for t in terms(finding)):
        return ""
    turned = row(replace(finding, matches=tuple({n: -c for n, c in m.items()} for m in finding.matches)))
    return "E[R]" if turned == OBJECTIVES["expected_reward"].short else turned


def rows(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return (where, what) for fresh and stale samples near the reference and far; like rows are one."""
    found: list[tuple[str, str]] = []
    for off_policy, samples in ((False, "fresh samples"), (True, "stale samples")):
        here = [f for f in _varying(findings) if f.condition and f.condition.off_policy is off_policy]
        lines = [(f.condition.scale, row(f)) for f in here if f.condition]
        if len({text for _, text in lines}) == 1:
            found.append((samples, lines[0][1]))
        else:
            found += [(f"{samples}, {'near' if s <= _NEAR else 'far'}", text) for s, text in lines]
    return found or [("the given worlds", row(f)) for f in findings]


def _varying(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings where lengths vary: what a trainer sees."""
    return [f for f in findings if f.condition is not None and f.condition.eos]


def main_finding(findings: Sequence[Finding]) -> Finding:
    """Return the finding that the headline is about: small ratios, lengths that vary, the first samples."""
    return next(iter(_varying(findings)), findings[0])


def stale_finding(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding of stale samples of several lengths, near the reference; None without one."""
    return next((f for f in _varying(findings) if f.condition and f.condition.off_policy), None)


def of_sampler(finding: Finding) -> Finding:
    """Return a finding with nothing but its distances to the policy that sampled."""
    i = explanation(finding)
    match = {} if i is None else finding.matches[i]
    names = [n for n in match if kind_of(n) == "sampler"]
    units = ({n: finding.units[i][n] for n in names},) if i is not None and finding.units else ()
    return replace(finding, matches=({n: match[n] for n in names},) if names else (), units=units)


def effects(finding: Finding) -> list[str]:
    """Return what follows in practice of every term by itself, where its sign is known, a sentence each."""
    if finding.zero:
        return [filled("idle")]
    each = [
        OBJECTIVES[t.objective].effect if t.sign > 0 else OBJECTIVES[t.objective].opposite
        for t in terms(finding)
    ]
    return list(dict.fromkeys(x for x in each if x))
