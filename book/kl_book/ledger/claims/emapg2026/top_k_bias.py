"""The bias of the top-k estimators: abstract, section 5.3, algorithms 1 and 2, table 1, figure 2 (emapg2026).

All of these rows have one cause, which is explained once: `pull_explained`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.off_policy import rho
from kl_book.ledger.claims.ground.positions import equal_policies, moments, positions, reference_logps_read
from kl_book.ledger.claims.ground.sums import exact, terms
from kl_book.ledger.claims.ground.table_one import (
    TABLE_1,
    error_of_row,
    estimators_of_row,
    memory_error,
    unbiased_flags,
)
from kl_book.ledger.claims.ground.top_k import (
    PUBLISHED,
    REPAIRED,
    bias_of_top_k,
    every_set,
    mass_gradient,
    mean_of_top_k,
    of_the_policy,
    of_the_reference,
    of_the_sampler,
)
from kl_book.ledger.claims.ground.top_k_pull import at_the_reference, pull_explained, stops_at
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere
from kl_companion.tabular import Problem

Sets = Callable[[Problem], Iterator[torch.Tensor]]


def algorithm(direction: str, sets: Sets, *, elsewhere: bool = False) -> Evidence:
    """Whether the gradient is unbiased for every set, as published and as repaired.

    The corrected error holds what is said of the published form too: its value is unbiased, and its
    gradient is off by plus (reverse) or minus (forward) the gradient of the policy's probability of the set.
    """
    split, truth, sign = PUBLISHED[direction]
    printed, corrected = [], []
    for problem in sampled_elsewhere()[:6] if elsewhere else bandits():
        ratio, right = rho(problem) if elsewhere else None, exact(truth, problem)
        for chosen in sets(problem):
            value, gradient = bias_of_top_k(split, right, chosen, problem, ratio)
            printed.append(relative(gradient + right[1], right[1]))
            corrected += [abs(value), apart(gradient, sign * mass_gradient(chosen, problem))]
            for repaired in REPAIRED[direction]:
                value, gradient = bias_of_top_k(repaired, right, chosen, problem, ratio)
                corrected += [abs(value), apart(gradient, 0.0)]
    small = at_the_reference()
    for repaired in REPAIRED[direction]:
        corrected += [apart(bias_of_top_k(repaired, truth, x, small)[1], 0.0) for x in sets(small)]
    return Evidence(
        worst(printed), worst(corrected), unit="relative difference", **pull_explained()._asdict()
    )


def joined(one: Evidence, other: Evidence) -> Evidence:
    """One statement about two directions or two samplers."""
    corrected = max(one.corrected or 0.0, other.corrected or 0.0)
    return one._replace(printed=max(one.printed, other.printed), corrected=corrected)


def in_both_directions(sets: Sets | None = None) -> Evidence:
    """The evidence about reverse and forward KL together; by default with the set that each one names."""
    return joined(algorithm("reverse", sets or of_the_policy), algorithm("forward", sets or of_the_reference))


def _stopping(direction: str, sets: Sets) -> float:
    """Largest expected gradient where the published form is said to stop, for sets that are held fixed."""
    split, found = PUBLISHED[direction][0], []
    for problem in bandits()[:6]:
        for chosen in sets(problem):
            end = stops_at(direction, chosen, problem)
            found.append(apart(mean_of_top_k(split, chosen, end)[1], 0.0))
            if direction == "forward":
                p, q = end.logits[0].softmax(-1), problem.ref_logits[0].softmax(-1)
                found.append(apart(p[chosen].sum(), q[chosen].sum().sqrt()))
    return worst(found)


@claim("EMA-abstract-topk")
def unbiased_at_any_k() -> Evidence:
    """Value and gradient of both KLs, every k."""
    return in_both_directions()


@claim("EMA-eq25-26")
def reverse_form() -> Evidence:
    """The policy's likeliest tokens summed, K4 outside; and where it stops."""
    found = algorithm("reverse", of_the_policy)
    return found._replace(corrected=max(found.corrected or 0.0, _stopping("reverse", of_the_policy)))


@claim("EMA-eq27")
def forward_form() -> Evidence:
    """The reference's likeliest tokens summed, K5 outside; and where it stops."""
    found = algorithm("forward", of_the_reference)
    return found._replace(corrected=max(found.corrected or 0.0, _stopping("forward", of_the_reference)))


@claim("EMA-alg1")
def algorithm_1() -> Evidence:
    """Reverse KL: the sampler's likeliest tokens summed, K4 outside times pi/mu; on- and off-policy."""
    return joined(algorithm("reverse", of_the_sampler), algorithm("reverse", of_the_sampler, elsewhere=True))


@claim("EMA-alg2")
def algorithm_2() -> Evidence:
    """Forward KL: the anchor's likeliest tokens summed, K5 outside times pi/mu; on- and off-policy."""
    return joined(
        algorithm("forward", of_the_reference), algorithm("forward", of_the_reference, elsewhere=True)
    )


@claim("EMA-5.3-anyset")
def unbiased_for_any_set() -> Evidence:
    """Every set of tokens, whether it is a top-k or not."""
    return in_both_directions(every_set)


# table 1


def _head_mass(problem: Problem, k: int, forward: bool) -> torch.Tensor:
    """Gradient of the policy's mass on the top-k part, sum over S of pi s, [rows, vocab]."""
    t = terms(problem)
    chosen = (t.ref_logp if forward else t.logp)[:, 0].topk(k).indices
    p = problem.logits[0].softmax(-1)
    return torch.einsum("j,jrv->rv", p[chosen], t.scores[chosen, 0])


def _top_k_row(name: str, *, forward: bool) -> Evidence:
    """A row of the table: its gradient fails; its value, its memory and the repaired form do not."""
    row, printed, corrected = TABLE_1[name], [], [error_of_row(name, bregman=True)]
    _, truth, sign = PUBLISHED["forward" if forward else "reverse"]
    apart_from = positions()
    for number, problem in enumerate(apart_from + equal_policies()):
        value, gradient = exact(truth, problem)
        for k, form in enumerate(estimators_of_row(row, problem)):
            found = moments(form, problem)
            corrected += [
                apart(found[0], value),
                apart(found[1] - gradient, sign * _head_mass(problem, k, forward)),
            ]
            printed += [relative(found[1], gradient)] if number < len(apart_from) else []
    corrected += [memory_error(row, problem) for problem in positions()[::4]]
    return Evidence(
        worst(printed), worst(corrected), unit="relative difference", **pull_explained()._asdict()
    )


@claim("EMA-tab1-TopkR")
def top_k_reverse_row() -> Evidence:
    """Algorithm 1: unbiased in value for every k, in its gradient for k = 0 and k = V only."""
    return _top_k_row("TopkReverseKL", forward=False)


@claim("EMA-tab1-TopkF")
def top_k_forward_row() -> Evidence:
    """Algorithm 2: unbiased in value for every k, in its gradient for k = 0 and k = V only."""
    return _top_k_row("TopkForwardKL", forward=True)


def _marks(name: str, **options: bool) -> tuple[bool, bool, bool]:
    """The three check marks of a row, computed: value, gradient, overall."""
    row, several = TABLE_1[name], positions()
    found = [unbiased_flags(row, p, **options) for p in several]
    value, gradient = (all(f[i] for f in found) for i in (0, 1))
    size = several[-1].logits.shape[-1]
    form = estimators_of_row(row, several[-1], **options)[2 if row.memory == "k" else 0]
    return value, gradient, value and gradient and reference_logps_read(form, several[-1]) < size


@claim("EMA-tab1-TopkF+overall")
def overall_column() -> Evidence:
    """The last column is earned by unbiased values, unbiased gradients and less than O(V): counted."""

    def wrong(**options: bool) -> float:
        count = 0
        for name, row in TABLE_1.items():
            marks = _marks(name, **(options if row.memory == "k" else {}))
            count += marks != (row.value_unbiased, row.gradient_unbiased, row.overall)
        return count / len(TABLE_1)

    return Evidence(wrong(), wrong(bregman=True), unit="share of cases", **pull_explained()._asdict())
