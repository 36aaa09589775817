"""Section 4.2 and table 5: where the KL may enter beside a standardized reward (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import updates as u
from kl_book.ledger.claims.ground.errors import relative, turned
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.sums import differentiated, mean, terms
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem

BETA = 0.1


@claim("FRPO-tab5-ppo", over=u.graded_trees)
def a_value_function_carries_the_later_penalties(p: Problem) -> Iterator[Found]:
    """One-step differences of an exact value of r - beta D have the gradient, and so have whole returns."""
    cost = BETA * terms(p).log_ratio
    to_go = u.every_token(p, p.rewards) - sum_from_here(cost)
    value = values_of_prefixes(p, to_go)[p.rows]
    after = torch.cat([value[:, 1:], value[:, :1]], dim=1)
    last = p.completion_mask.cumsum(-1) == p.completion_mask.sum(-1, keepdim=True)
    next_value = torch.where(last, p.rewards[:, None].expand_as(value), after)
    one_step = torch.where(p.completion_mask > 0, next_value - cost - value, 0.0)
    yield same(u.token_field(p, one_step), u.regularized_gradient(p, BETA))
    yield same(u.token_field(p, to_go - value), u.regularized_gradient(p, BETA))


def _beside_the_reward(p: Problem, coefficient: torch.Tensor) -> torch.Tensor:
    """The update of the standardized reward minus beta times a coefficient of every token."""
    weight = u.every_token(p, u.standardized(p, p.rewards))
    return u.token_field(p, weight - BETA * coefficient)


@claim("FRPO-C4.2-only")
def other_placements_have_the_same_gradient() -> Iterator[Found]:
    """Half the squared log-ratio of the whole answer, differentiated in the loss, does as well."""
    consistent = []
    for p in u.graded():
        in_the_loss = mean(terms(p).p, differentiated("k2", p))
        gradient = u.decoupled_gradient(p, BETA)
        update = u.standardized_update(p, p.rewards) - BETA * in_the_loss
        consistent.append(relative(update, gradient) <= TOLERANCE)
        yield same(_beside_the_reward(p, sum_from_here(terms(p).log_ratio)), gradient, "corrected")
    yield printed(share_of_cases(consistent))
    yield numbers(worlds=len(consistent))


@claim("FRPO-4.2-merge")
def they_can_be_merged_with_the_right_coefficient() -> Iterator[Found]:
    """r - beta sqrt(p(1 - p)) D, standardized, is the decoupled update times a factor; r - beta D is not."""
    directions, factors = [], []
    for p in u.graded():
        merged = u.shaped(p, BETA * u.deviation(p, p.rewards))
        update, gradient = u.standardized_update(p, merged), u.decoupled_gradient(p, BETA)
        directions.append(turned(update, gradient) <= TOLERANCE)
        factors.append(u.deviation(p, p.rewards) / u.deviation(p, merged))
        yield same(update, factors[-1] * gradient, "corrected")
        yield less(0.0, turned(u.standardized_update(p, u.shaped(p, BETA)), gradient), "inside")
    yield printed(share_of_cases(directions))
    yield numbers(worlds=len(directions), least=min(factors), most=max(factors))


@claim("FRPO-tab5-grpo", over=u.graded_trees)
def row_of_grpo(p: Problem) -> Iterator[Found]:
    """The KL to go beside the standardized reward has the gradient; r - beta D standardized has not."""
    ratio, gradient = terms(p).log_ratio, u.decoupled_gradient(p, BETA)
    yield same(_beside_the_reward(p, sum_from_here(ratio)), gradient)
    yield differs(_beside_the_reward(p, ratio), gradient)
    yield less(0.0, turned(u.standardized_update(p, u.shaped(p, BETA)), gradient))
