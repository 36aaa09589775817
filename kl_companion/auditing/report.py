"""The audit's verdict in words."""

from __future__ import annotations

from collections.abc import Sequence

from kl_companion.auditing.cases import Case
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


def _verdict(case: Case) -> str:
    if case.zero:
        return "nothing: its expected gradient is zero"
    if not case.matches:
        if case.curl > _NO_CURL:
            return (
                f"no objective at all (no known one fits, residual {case.residual:.2g}; curl {case.curl:.2g})"
            )
        return (
            f"an objective that has no name here (no known one fits, residual {case.residual:.2g}; no curl)"
        )
    said = " or, equally, ".join(_explanation(m) for m in case.matches[:_MAX_LISTED])
    field = f"curl {case.curl:.2g}: the gradient of no function" if case.curl > _NO_CURL else "no curl"
    return f"{said} (residual {case.residual:.0e}; {field})"


def _same(case: Case) -> tuple[object, ...]:
    """What makes two cases one sentence: explanation and presence of curl, not their digits."""
    first = tuple(sorted((n, number(c)) for n, c in case.matches[0].items())) if case.matches else ()
    return (case.zero, first)


def _where(cases: Sequence[Case]) -> str:
    conditions = [c.condition for c in cases if c.condition is not None]
    scales = sorted({c.scale for c in conditions})
    names = {1.0: "small", 4.0: "large"}
    sizes = " and ".join(names.get(s, f"scale-{s:g}") for s in scales)
    eos = {c.eos for c in conditions}
    ends = "" if len(eos) == 2 else " with end-of-sequence" if True in eos else " without end-of-sequence"
    return f"at {sizes} ratios{ends}"


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    groups: list[list[Case]] = []
    for case in cases:
        for group in groups:
            if _same(group[0]) == _same(case):
                group.append(case)
                break
        else:
            groups.append([case])
    return groups


def _sampling(cases: Sequence[Case]) -> str:
    groups = _groups(cases)
    if len(groups) == 1:
        return f"{_verdict(groups[0][0])}, {_where(cases)}"
    return "; ".join(f"{_where(g)}, {_verdict(g[0])}" for g in groups)


def _glossary(cases: Sequence[Case]) -> str:
    names: list[str] = []
    for case in cases:
        for matches in case.matches[:_MAX_LISTED]:
            names += [n for n in matches if n not in names]
    return " ".join(f"{n} is {OBJECTIVES[n].words}." for n in names)


def paragraph(
    name: str,
    cases: Sequence[Case],
    *,
    placement: str = "loss",
    same_as: tuple[str, float] | None = None,
) -> str:
    """One paragraph: what the loss is, what it descends and where, and what its value estimates."""
    sentences = []
    if same_as is not None:
        sentences.append(f"Sample by sample, {name} is {number(same_as[1])} x {same_as[0]}, differentiated.")
    given = [c for c in cases if c.condition is None]
    if given:
        sentences.append(f"{name} descends {_verdict(given[0])}, on the given problems.")
    for off, label in ((False, "On-policy"), (True, "Off-policy")):
        some = [c for c in cases if c.condition is not None and c.condition.off_policy is off]
        if some:
            sentences.append(f"{label}, {name} descends {_sampling(some)}.")
    if placement == "reward":  # the value of a REINFORCE loss estimates nothing
        pass
    elif cases[0].value_matches:
        found, c = next(iter(cases[0].value_matches.items()))
        sentences.append(f"Its value estimates {number(c)} x {found}.")
    else:
        sentences.append("Its value estimates none of the known objectives.")
    return " ".join([*sentences, _glossary(cases)]).strip()
