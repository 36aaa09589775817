"""Compare the audit of every registered estimator with exact gradients of an enumerated transformer.

The audit looks at random tables of short sequences and has never seen the model. Its words are names of
objectives; their exact values are differentiated through the model and compared with the gradient that
the estimator has there.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch

from kl_book.lab.oracle import Oracle, objective_gradient
from kl_companion.auditing import Finding, audit
from kl_companion.estimators.registry import ESTIMATORS
from kl_companion.estimators.sampled import FORMS
from kl_companion.kl_term import LEVELS
from kl_companion.tabular import Loss, Problem, prefix_tree
from kl_companion.tabular.scores import SINGLE_PLACEMENTS

_READ = 3e-9  # the audit prints nine digits


class Place(NamedTuple):
    """Where an estimator stands."""

    estimator: str
    placement: str
    level: str


def places(*, k: int = 2) -> list[Place]:
    """Every registered estimator, in every placement and at every level at which it can stand.

    Estimators that read next-token distributions have no level "sequence" in the loss. Those of a top-k
    head stand with ``k`` tokens in it, in each of their forms.
    """
    found = []
    for entry in ESTIMATORS.values():
        names = [entry.name]
        if entry.inputs == "top_k":
            family = entry.name.partition("(")[0]
            names = [f"{family}({k}{'' if form == 'bregman' else f', {form}'})" for form in FORMS]
        for name in names:
            for placement in SINGLE_PLACEMENTS:
                for level in LEVELS:
                    if entry.inputs == "sampled" or (placement, level) != ("loss", "sequence"):
                        found.append(Place(name, placement, level))
    return found


@cache
def audit_problems(
    off_policy: bool, eos: bool = False, vocab: int = 4, length: int = 2
) -> tuple[Problem, ...]:
    """A random table, for audits that are to be compared with a transformer.

    Each prefix has its own row, so one table of four tokens has more equations than any three objectives
    could satisfy by accident.
    """
    return (prefix_tree(vocab, length, seed=0, eos=eos, off_policy=off_policy),)


@cache
def audited(place: Place, off_policy: bool = False, eos: bool = False) -> Finding:
    """What the audit says of an estimator in its place."""
    estimator, placement, level = place
    problems = audit_problems(off_policy, eos)
    return audit(estimator, placement=placement, level=level, problems=problems).findings[0]


def audited_loss(loss: Loss, off_policy: bool = False, *, group_size: int = 1, length: int = 3) -> Finding:
    """What the audit says of any loss, on tables of ``length`` tokens.

    Three, because credit over time has something to discount there: with two tokens a discount of 1/2 is
    half the sequence's gradient and half the token's, with three it has no name. A loss that couples a group
    is looked at on smaller tables.
    """
    problems = audit_problems(off_policy, vocab=4 if group_size == 1 else 2, length=length)
    return audit(loss, problems=problems, group_size=group_size).findings[0]


def as_fractions(matches: dict[str, float]) -> dict[str, float]:
    """Coefficients as the simple fractions that nine digits stand for: -1.33333333 is -4/3."""
    exact = {}
    for name, c in matches.items():
        simple = Fraction(c).limit_denominator(100)
        exact[name] = float(simple) if abs(c - simple) <= _READ * abs(c) else c
    return exact


def words(finding: Finding) -> str:
    """The first explanation in a line: ``"sequence_reverse_kl - token_forward_kl"``, "zero" or "unnamed"."""
    if finding.zero:
        return "zero"
    if not finding.matches:
        return "unnamed"
    terms = []
    for name, c in sorted(finding.matches[0].items(), key=lambda term: -term[1]):
        size = Fraction(abs(c)).limit_denominator(100)
        terms.append(f"{'-' if c < 0 else '+'} {'' if size == 1 else f'{size} '}{name}")
    return " ".join(terms).removeprefix("+ ")


def residual(oracle: Oracle, gradient: torch.Tensor, finding: Finding, noise: float) -> float:
    """Relative distance of a gradient from what the audit says it is, the largest over its explanations.

    Args:
        oracle: The enumerated model.
        gradient: Of the loss over the parameters.
        finding: The audit's words; NaN is returned where it names nothing.
        noise: Of the gradient of one sample: a gradient that is zero is measured against it.
    """
    if finding.zero:
        return gradient.norm().item() / noise if noise > 0 else gradient.norm().item()
    if not finding.matches:
        return math.nan
    size = gradient.norm()
    gaps = [(objective_gradient(oracle, as_fractions(m)) - gradient).norm() / size for m in finding.matches]
    return max(gap.item() for gap in gaps)
