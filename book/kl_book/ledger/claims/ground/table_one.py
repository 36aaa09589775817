"""Table 1 of emapg2026 as it is printed, and how far a row is from what its estimator does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from kl_book.ledger.claims.ground.errors import STRICT, apart, differs, worst
from kl_book.ledger.claims.ground.estimates import (
    Estimate,
    exact_forward,
    exact_reverse,
    k1,
    k2,
    k3,
    k3_plus_plus,
    k4,
    k5,
    top_k_estimate,
)
from kl_book.ledger.claims.ground.positions import (
    OBJECTIVES,
    SMALLEST_BIAS,
    equal_policies,
    moments,
    positions,
    reference_logps_read,
)
from kl_book.ledger.claims.ground.sums import exact
from kl_companion.tabular import Problem


class PrintedRow(NamedTuple):
    """A line of the table. ``estimate`` takes k where ``memory`` is "k"; values and gradients are names.

    Attributes:
        estimate: (logp, ref_logp) of all tokens -> the estimate of every token that may be sampled.
        target: The divergence that it is listed under.
        value, value_unbiased: The columns of the value, and its check mark.
        gradient, gradient_unbiased: The columns of the gradient, and its check mark.
        memory: "1", "k" or "V".
        overall: The last check mark.
    """

    estimate: Callable[..., torch.Tensor]
    target: str
    value: str
    value_unbiased: bool
    gradient: str
    gradient_unbiased: bool
    memory: str
    overall: bool


TABLE_1: dict[str, PrintedRow] = {
    "Reverse KL: exact": PrintedRow(exact_reverse, "reverse", "reverse", True, "reverse", True, "V", False),
    "K1": PrintedRow(k1, "reverse", "reverse", True, "zero", False, "1", False),
    "K2": PrintedRow(k2, "reverse", "half square", False, "reverse", True, "1", False),
    "K3": PrintedRow(k3, "reverse", "reverse", True, "forward", False, "1", False),
    "K3++": PrintedRow(k3_plus_plus, "reverse", "reverse", True, "reverse", True, "1", True),
    "K4": PrintedRow(k4, "reverse", "reverse", True, "reverse", True, "1", True),
    "TopkReverseKL": PrintedRow(top_k_estimate, "reverse", "reverse", True, "reverse", True, "k", True),
    "Forward KL: exact": PrintedRow(exact_forward, "forward", "forward", True, "forward", True, "V", False),
    "K5": PrintedRow(k5, "forward", "forward", True, "forward", True, "1", True),
    "TopkForwardKL": PrintedRow(
        partial(top_k_estimate, forward=True), "forward", "forward", True, "forward", True, "k", True
    ),
}


def estimators_of_row(row: PrintedRow, problem: Problem, **options: bool) -> list[Estimate]:
    """The estimator of a row for this vocabulary: one, or one for every k from 0 to V."""
    if row.memory != "k":
        return [row.estimate]
    return [partial(row.estimate, k=k, **options) for k in range(problem.logits.shape[-1] + 1)]


def memory_error(row: PrintedRow, problem: Problem, **options: bool) -> float:
    """How far the number of reference log-probs read is from 1, from V, or above k + 1."""
    vocab, errors = problem.logits.shape[-1], []
    for k, form in enumerate(estimators_of_row(row, problem, **options)):
        found = reference_logps_read(form, problem)
        wanted = {"1": 1, "V": vocab, "k": min(k + 1, vocab)}[row.memory]
        errors.append(float(max(0, found - wanted) if row.memory == "k" else abs(found - wanted)))
    return worst(errors)


def unbiased_flags(row: PrintedRow, problem: Problem, **options: bool) -> tuple[bool, bool]:
    """Whether value and gradient are unbiased for the row's target, for every k."""
    value, gradient = exact(OBJECTIVES[row.target], problem)
    means = [moments(form, problem) for form in estimators_of_row(row, problem, **options)]
    return (
        all(apart(v, value) < STRICT for v, _ in means),
        all(apart(g, gradient) < STRICT for _, g in means),
    )


def error_of_row(name: str, **options: bool) -> float:
    """Error of a row: the means are what its columns name, the marks are right, the memory is as said."""
    row, errors = TABLE_1[name], []
    for problem in positions() + equal_policies():
        value, gradient = (
            exact(OBJECTIVES[row.value], problem)[0],
            exact(OBJECTIVES[row.gradient], problem)[1],
        )
        for form in estimators_of_row(row, problem, **options):
            v, g = moments(form, problem)
            errors += [apart(v, value), apart(g, gradient)]
    # what is read does not depend on the probabilities: a few vocabularies will do
    errors += [memory_error(row, problem, **options) for problem in positions()[::4] + equal_policies()]
    for problem in positions():
        value, gradient = exact(OBJECTIVES[row.target], problem)
        for form in estimators_of_row(row, problem, **options):
            v, g = moments(form, problem)
            errors.append(apart(v, value) if row.value_unbiased else differs(v, value, by=SMALLEST_BIAS))
            errors.append(
                apart(g, gradient) if row.gradient_unbiased else differs(g, gradient, by=SMALLEST_BIAS)
            )
    return worst(errors)
