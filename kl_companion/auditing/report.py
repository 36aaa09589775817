"""The audit's verdict in words."""

from __future__ import annotations

from collections.abc import Sequence

from kl_companion.auditing.findings import Finding
from kl_companion.auditing.objectives import OBJECTIVES

_NO_CURL = 1e-5
_MAX_LISTED = 2


def number(c: float) -> str:
    """A coefficient, short."""
    return f"{c:.6g}"


def _explanation(matches: dict[str, float]) -> str:
    parts: list[str] = []
    for name, c in matches.items():
        sign = "-" if c < 0 else "+" if parts else ""
        parts.append(f"{sign} {number(abs(c))} x {name}".strip())
    return " ".join(parts)


def _verdict(finding: Finding) -> str:
    if finding.zero:
        return "nothing: its expected gradient is zero"
    if not finding.matches:
        residual = f"residual {finding.residual:.2g}"
        if finding.curl > _NO_CURL:
            return f"no objective at all (no known one fits, {residual}; curl {finding.curl:.2g})"
        return f"an objective that has no name here (no known one fits, {residual}; no curl)"
    said = " or, equally, ".join(_explanation(m) for m in finding.matches[:_MAX_LISTED])
    field = f"curl {finding.curl:.2g}: the gradient of no function" if finding.curl > _NO_CURL else "no curl"
    return f"{said} (residual {finding.residual:.0e}; {field})"


def _same(finding: Finding) -> tuple[object, ...]:
    """What makes two findings one sentence: explanation and presence of curl, not their digits."""
    first = tuple(sorted((n, number(c)) for n, c in finding.matches[0].items())) if finding.matches else ()
    return (finding.zero, first)


def _where(findings: Sequence[Finding]) -> str:
    conditions = [c.condition for c in findings if c.condition is not None]
    scales = sorted({c.scale for c in conditions})
    names = {1.0: "small", 4.0: "large"}
    sizes = " and ".join(names.get(s, f"scale-{s:g}") for s in scales)
    eos = {c.eos for c in conditions}
    ends = "" if len(eos) == 2 else " with end-of-sequence" if True in eos else " without end-of-sequence"
    return f"at {sizes} ratios{ends}"


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    groups: list[list[Finding]] = []
    for finding in findings:
        for group in groups:
            if _same(group[0]) == _same(finding):
                group.append(finding)
                break
        else:
            groups.append([finding])
    return groups


def _sampling(findings: Sequence[Finding]) -> str:
    groups = _groups(findings)
    if len(groups) == 1:
        return f"{_verdict(groups[0][0])}, {_where(findings)}"
    return "; ".join(f"{_where(g)}, {_verdict(g[0])}" for g in groups)


def _glossary(findings: Sequence[Finding]) -> str:
    names: list[str] = []
    for finding in findings:
        for matches in finding.matches[:_MAX_LISTED]:
            names += [n for n in matches if n not in names]
    return " ".join(f"{n} is {OBJECTIVES[n].words}." for n in names)


def paragraph(
    name: str,
    findings: Sequence[Finding],
    *,
    placement: str = "loss",
    same_as: tuple[str, float] | None = None,
) -> str:
    """One paragraph: what the loss is, what it descends and where, and what its value estimates."""
    sentences = []
    if same_as is not None:
        sentences.append(f"Sample by sample, {name} is {number(same_as[1])} x {same_as[0]}, differentiated.")
    given = [c for c in findings if c.condition is None]
    if given:
        sentences.append(f"{name} descends {_verdict(given[0])}, on the given problems.")
    for off, label in ((False, "On-policy"), (True, "Off-policy")):
        some = [c for c in findings if c.condition is not None and c.condition.off_policy is off]
        if some:
            sentences.append(f"{label}, {name} descends {_sampling(some)}.")
    if placement == "reward":  # the value of a REINFORCE loss estimates nothing
        pass
    elif findings[0].value_matches:
        found, c = next(iter(findings[0].value_matches.items()))
        sentences.append(f"Its value estimates {number(c)} x {found}.")
    else:
        sentences.append("Its value estimates none of the known objectives.")
    return " ".join([*sentences, _glossary(findings)]).strip()
