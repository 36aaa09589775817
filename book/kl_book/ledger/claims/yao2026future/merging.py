"""Section 4.2 and table 5: where the KL may enter beside a standardized reward (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, turned, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    mean,
    terms,
)
from kl_book.ledger.claims.ground.updates import (
    decoupled_gradient,
    deviation,
    every_token,
    graded,
    graded_trees,
    regularized_gradient,
    shaped,
    standardized,
    standardized_update,
    token_field,
)
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem

BETA = 0.1


@claim("FRPO-tab5-ppo")
def a_value_function_carries_the_later_penalties() -> Iterator[Found]:
    """One-step differences of an exact value of r - beta D have the gradient, and so have whole returns."""
    errors = []
    for problem in graded_trees():
        t, inside = terms(problem), problem.completion_mask > 0
        to_go = every_token(problem, problem.rewards) - BETA * sum_from_here(t.log_ratio)
        value = values_of_prefixes(problem, to_go)[problem.rows]
        after = torch.cat([value[:, 1:], value[:, :1]], dim=1)
        last = problem.completion_mask.cumsum(-1) == problem.completion_mask.sum(-1, keepdim=True)
        next_value = torch.where(last, problem.rewards[:, None].expand_as(value), after)
        one_step = torch.where(inside, next_value - BETA * t.log_ratio - value, 0.0)
        wanted = regularized_gradient(problem, BETA)
        errors += [apart(token_field(problem, one_step), wanted)]
        errors += [apart(token_field(problem, to_go - value), wanted)]
    yield from each_form(worst(errors))


def merged(problem: Problem, beta: float) -> torch.Tensor:
    """r - beta sqrt(p(1 - p)) D as one reward."""
    return shaped(problem, beta * deviation(problem, problem.rewards))


@claim("FRPO-C4.2-only")
def other_placements_have_the_same_gradient() -> Iterator[Found]:
    """Half the squared log-ratio of the whole answer, differentiated in the loss, does as well."""
    consistent, corrected = [], []
    for problem in graded():
        in_the_loss = mean(terms(problem).p, differentiated("k2", problem))
        wanted = decoupled_gradient(problem, BETA)
        update = standardized_update(problem, problem.rewards) - BETA * in_the_loss
        consistent.append(relative(update, wanted) <= TOLERANCE)
        weight = every_token(problem, standardized(problem, problem.rewards))
        to_go = sum_from_here(terms(problem).log_ratio)
        corrected.append(apart(token_field(problem, weight - BETA * to_go), wanted))
    yield from each_form(share_of_cases(consistent), worst(corrected), number_of_consistent=len(consistent))


@claim("FRPO-4.2-merge")
def they_can_be_merged_with_the_right_coefficient() -> Iterator[Found]:
    """r - beta sqrt(p(1 - p)) D, standardized, is the decoupled update times one positive factor."""
    kept, corrected, factors = [], [], []
    for problem in graded():
        wanted = decoupled_gradient(problem, BETA)
        kept.append(turned(standardized_update(problem, merged(problem, BETA)), wanted) <= TOLERANCE)
        factor = deviation(problem, problem.rewards) / deviation(problem, merged(problem, BETA))
        corrected.append(apart(standardized_update(problem, merged(problem, BETA)), factor * wanted))
        factors.append(factor)
    yield from each_form(
        share_of_cases(kept),
        worst(corrected),
        number_of_kept=len(kept),
        BETA=BETA,
        min_factors=min(factors),
        max_factors=max(factors),
    )


@claim("FRPO-tab5-grpo")
def row_of_grpo() -> Iterator[Found]:
    """The KL to go beside the standardized reward has the gradient; r - beta D standardized has not."""
    errors = []
    for problem in graded_trees():
        wanted = decoupled_gradient(problem, BETA)
        weight = every_token(problem, standardized(problem, problem.rewards))
        ratio = terms(problem).log_ratio
        errors.append(apart(token_field(problem, weight - BETA * sum_from_here(ratio)), wanted))
        errors.append(differs(token_field(problem, weight - BETA * ratio), wanted))
        errors.append(less(0.0, turned(standardized_update(problem, shaped(problem, BETA)), wanted)))
    yield from each_form(worst(errors))
