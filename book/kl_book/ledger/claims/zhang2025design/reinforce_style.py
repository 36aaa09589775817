"""Section 4, Table 2 and appendices C, F and L: weights inside a stop-gradient (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, worst
from kl_book.ledger.claims.ground.rpg_losses import WEIGHTS, Weight, stopped_loss
from kl_book.ledger.claims.ground.sequences import values_of_prefixes
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.unnormalized import (
    Loss,
    log_weight,
    loss_gradients,
    measured,
    objective_gradient,
    surrogate_gradient,
    worlds_of,
    worst_loss_error,
)
from kl_book.ledger.claims.ground.updates import every_token, token_field, utility_gradient
from kl_book.ledger.claims.ground.worlds import trees
from kl_companion.tabular import Problem


def _attached(weight: Weight) -> Loss:
    """-weight log pi, without the stop-gradient."""
    return lambda logp, w, r: -weight(w, r) * logp


@claim("RPG-tab2-UFKL")
def unnormalized_forward_weight() -> Iterator[Found]:
    """-E[SG(Z(wR - beta(w - 1))) log pi] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("UFKL", stopped_loss("UFKL")))


@claim("RPG-tab2-URKL")
def unnormalized_reverse_weight() -> Iterator[Found]:
    """-E[SG(Z w(R - beta log w)) log pi] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("URKL", stopped_loss("URKL")))


@claim("RPG-propF.1")
def forward_weight() -> Iterator[Found]:
    """-E[SG(wR + beta) log pi] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("FKL", stopped_loss("FKL")))


@claim("RPG-propF.4")
def reverse_weight() -> Iterator[Found]:
    """-E[SG(w(R - beta log w - beta)) log pi] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("RKL", stopped_loss("RKL")))


@claim("RPG-prop4.1")
def both_losses_of_the_table() -> Iterator[Found]:
    """For both objectives of section 3, and with every total mass."""
    yield from each_form(worst(worst_loss_error(x, stopped_loss(x)) for x in ("UFKL", "URKL")))


@claim("RPG-4-sg")
def what_leaks_without_the_stop_gradient() -> Iterator[Found]:
    """The derivative of the weight times log pi is added, and is zero in no world."""
    errors, sizes = [], []
    for divergence, weight in WEIGHTS.items():
        for world in worlds_of(divergence):
            wanted = -objective_gradient(world, divergence)
            leaking = world.mass * surrogate_gradient(world, _attached(weight))
            errors.append(differs(leaking, wanted))
            sizes.append(relative(leaking, wanted))
        errors.append(worst_loss_error(divergence, stopped_loss(divergence)))
    yield from each_form(
        worst(errors), min_sizes=min(sizes), max_sizes=max(sizes), number_of_sizes=len(sizes)
    )


@claim("RPG-eqF.1")
def a_detached_weight_multiplies_the_score() -> Iterator[Found]:
    """Differentiated, -SG(weight) log pi is minus the weight times the score, sample by sample."""
    errors = []
    for divergence, weight in WEIGHTS.items():
        for world in worlds_of(divergence):
            by_hand = (
                -weight(log_weight(world).exp(), world.problem.rewards)[:, None, None]
                * terms(world.problem).score
            )
            errors.append(apart(loss_gradients(world, stopped_loss(divergence)), by_hand))
        errors.append(worst_loss_error(divergence, stopped_loss(divergence)))
    yield from each_form(worst(errors))


@claim("RPG-L-Z")
def leaving_the_mass_out() -> Iterator[Found]:
    """Without the factor Z the gradient is that of the objective divided by Z."""
    errors = []
    for divergence in ("UFKL", "URKL"):
        for world in measured():
            found = surrogate_gradient(world, stopped_loss(divergence))
            errors.append(apart(found, -objective_gradient(world, divergence) / world.mass))
    yield from each_form(worst(errors))


# baselines of a state, appendix C.1


def _baseline(problem: Problem) -> torch.Tensor:
    """A number for every prefix, at each of the tokens that follow it, [count, length]."""
    per_prefix = torch.arange(len(problem.logits)).double().cos() + 2.0
    return per_prefix[problem.rows] * problem.completion_mask


@claim("RPG-C1-baseline")
def a_baseline_of_the_prefix_has_no_effect() -> Iterator[Found]:
    """E sum b(s_t) score_t = 0, for any numbers b and for the true values of the prefixes."""
    errors = []
    for problem in trees():
        reward = every_token(problem, problem.rewards)
        value = values_of_prefixes(problem, reward)[problem.rows] * problem.completion_mask
        for b in (_baseline(problem), value):
            errors.append(apart(token_field(problem, b), 0.0))
            errors.append(apart(token_field(problem, reward - b), utility_gradient(problem)))
    yield from each_form(worst(errors))


@claim("RPG-eqC.2")
def the_loss_with_a_detached_advantage() -> Iterator[Found]:
    """Differentiated on samples of the policy, it has minus the gradient of the expected reward."""
    errors = []
    for problem in trees():
        advantage = every_token(problem, problem.rewards) - _baseline(problem)
        leaf = terms(problem).logp.clone().requires_grad_()
        (found,) = torch.autograd.grad(-(advantage * leaf).sum(), leaf)
        errors.append(apart(token_field(problem, found), -utility_gradient(problem)))
    yield from each_form(worst(errors))
