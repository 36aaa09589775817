"""The bias of the top-k estimators: abstract, section 5.3, algorithms 1 and 2, table 1, figure 2 (emapg2026).

All of these rows have one cause, and one worked example: `numbers_of_the_pull`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, corrected, printed, same
from kl_book.ledger.claims.ground import top_k
from kl_book.ledger.claims.ground.errors import relative
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
from kl_book.ledger.claims.ground.top_k import PUBLISHED, REPAIRED, bias_of_top_k, mass_gradient
from kl_book.ledger.claims.ground.top_k_pull import at_the_reference, numbers_of_the_pull, stops_at
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere
from kl_companion.tabular import Problem

Sets = Callable[[Problem], Iterator[torch.Tensor]]

words(
    *("EMA-abstract-topk", "EMA-eq25-26", "EMA-eq27", "EMA-alg1", "EMA-alg2", "EMA-5.3-anyset"),
    *("EMA-tab1-TopkR", "EMA-tab1-TopkF", "EMA-tab1-TopkF+overall", "EMA-G2-unbiased"),
)(numbers_of_the_pull)


def algorithm(direction: str, sets: Sets, *, elsewhere: bool = False) -> Iterator[Found]:
    """Whether the gradient is unbiased for every set, as published and as repaired.

    The corrected error holds what is said of the published form too: its value is unbiased, and its
    gradient is off by plus (reverse) or minus (forward) the gradient of the policy's probability of the set.
    """
    split, truth, sign = PUBLISHED[direction]
    for problem in sampled_elsewhere()[:6] if elsewhere else bandits():
        ratio, right = rho(problem) if elsewhere else None, exact(truth, problem)
        for chosen in sets(problem):
            value, gradient = bias_of_top_k(split, right, chosen, problem, ratio)
            yield same(gradient + right[1], right[1], by=relative)
            yield corrected(abs(value))
            yield same(gradient, sign * mass_gradient(chosen, problem), "corrected")
            for repaired in REPAIRED[direction]:
                value, gradient = bias_of_top_k(repaired, right, chosen, problem, ratio)
                yield corrected(abs(value))
                yield same(gradient, 0.0, "corrected")
    small = at_the_reference()
    for repaired in REPAIRED[direction]:
        for chosen in sets(small):
            yield same(bias_of_top_k(repaired, truth, chosen, small)[1], 0.0, "corrected")


def stopping(direction: str, sets: Sets) -> Iterator[Found]:
    """No expected gradient where the published form is said to stop, for sets that are held fixed."""
    for problem in bandits()[:6]:
        for chosen in sets(problem):
            end = stops_at(direction, chosen, problem)
            yield same(top_k.mean_of_top_k(PUBLISHED[direction][0], chosen, end)[1], 0.0, "corrected")
            if direction == "forward":
                p, q = end.logits[0].softmax(-1), problem.ref_logits[0].softmax(-1)
                yield same(p[chosen].sum(), q[chosen].sum().sqrt(), "corrected")


@claim("EMA-abstract-topk")
def unbiased_at_any_k() -> Iterator[Found]:
    """Value and gradient of both KLs, every k."""
    yield from algorithm("reverse", top_k.of_the_policy)
    yield from algorithm("forward", top_k.of_the_reference)


@claim("EMA-eq25-26")
def reverse_form() -> Iterator[Found]:
    """The policy's likeliest tokens summed, K4 outside; and where it stops."""
    yield from algorithm("reverse", top_k.of_the_policy)
    yield from stopping("reverse", top_k.of_the_policy)


@claim("EMA-eq27")
def forward_form() -> Iterator[Found]:
    """The reference's likeliest tokens summed, K5 outside; and where it stops."""
    yield from algorithm("forward", top_k.of_the_reference)
    yield from stopping("forward", top_k.of_the_reference)


@claim("EMA-alg1")
def algorithm_1() -> Iterator[Found]:
    """Reverse KL: the sampler's likeliest tokens summed, K4 outside times pi/mu; on- and off-policy."""
    yield from algorithm("reverse", top_k.of_the_sampler)
    yield from algorithm("reverse", top_k.of_the_sampler, elsewhere=True)


@claim("EMA-alg2")
def algorithm_2() -> Iterator[Found]:
    """Forward KL: the anchor's likeliest tokens summed, K5 outside times pi/mu; on- and off-policy."""
    yield from algorithm("forward", top_k.of_the_reference)
    yield from algorithm("forward", top_k.of_the_reference, elsewhere=True)


@claim("EMA-5.3-anyset")
def unbiased_for_any_set() -> Iterator[Found]:
    """Every set of tokens, whether it is a top-k or not."""
    yield from algorithm("reverse", top_k.every_set)
    yield from algorithm("forward", top_k.every_set)


# table 1


def _head_mass(problem: Problem, k: int, direction: str) -> torch.Tensor:
    """Gradient of the policy's mass on the top-k part, sum over S of pi s, [rows, vocab]."""
    t = terms(problem)
    chosen = (t.ref_logp if direction == "forward" else t.logp)[:, 0].topk(k).indices
    p = problem.logits[0].softmax(-1)
    return torch.einsum("j,jrv->rv", p[chosen], t.scores[chosen, 0])


def top_k_row(name: str, direction: str) -> Iterator[Found]:
    """A row of the table: its gradient fails; its value, its memory and the repaired form do not."""
    row, (_, truth, sign) = TABLE_1[name], PUBLISHED[direction]
    yield corrected(error_of_row(name, bregman=True))
    for number, problem in enumerate(positions() + equal_policies()):
        value, gradient = exact(truth, problem)
        for k, form in enumerate(estimators_of_row(row, problem)):
            mean, slope = moments(form, problem)
            yield same(mean, value, "corrected")
            yield same(slope - gradient, sign * _head_mass(problem, k, direction), "corrected")
            if number < len(positions()):
                yield same(slope, gradient, by=relative)
    for problem in positions()[::4]:
        yield corrected(memory_error(row, problem))


@claim("EMA-tab1-TopkR")
def top_k_reverse_row() -> Iterator[Found]:
    """Algorithm 1: unbiased in value for every k, in its gradient for k = 0 and k = V only."""
    yield from top_k_row("TopkReverseKL", "reverse")


@claim("EMA-tab1-TopkF")
def top_k_forward_row() -> Iterator[Found]:
    """Algorithm 2: unbiased in value for every k, in its gradient for k = 0 and k = V only."""
    yield from top_k_row("TopkForwardKL", "forward")


def _marks(name: str, **options: bool) -> tuple[bool, bool, bool]:
    """The three check marks of a row, computed: value, gradient, overall."""
    row, several = TABLE_1[name], positions()
    flags = [unbiased_flags(row, p, **options) for p in several]
    value, gradient = (all(f[i] for f in flags) for i in (0, 1))
    size = several[-1].logits.shape[-1]
    form = estimators_of_row(row, several[-1], **options)[2 if row.memory == "k" else 0]
    return value, gradient, value and gradient and reference_logps_read(form, several[-1]) < size


@claim("EMA-tab1-TopkF+overall")
def overall_column() -> Iterator[Found]:
    """The last column is earned by unbiased values, unbiased gradients and less than O(V): counted."""

    def wrong(**options: bool) -> float:
        count = 0
        for name, row in TABLE_1.items():
            marks = _marks(name, **(options if row.memory == "k" else {}))
            count += marks != (row.value_unbiased, row.gradient_unbiased, row.overall)
        return count / len(TABLE_1)

    yield printed(wrong())
    yield corrected(wrong(bregman=True))
