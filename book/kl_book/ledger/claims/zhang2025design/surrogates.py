"""Tables 1 and 4, section 4, appendices D, E and K: losses that carry all gradients (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, worst
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE
from kl_book.ledger.claims.ground.sums import field, mean, terms
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    OldMeasure,
    divergence_value,
    expected_loss,
    log_old,
    log_policy,
    log_weight,
    losses,
    measured,
    normalized,
    objective,
    objective_gradient,
    slopes,
    worlds_of,
    worst_loss_error,
)
from kl_book.ledger.claims.ground.updates import utility_gradient


@claim("RPG-tab1-UFKL")
def unnormalized_forward_loss() -> Iterator[Found]:
    """Z E[-wR + beta (w - log w - 1)] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("UFKL", DIFFERENTIABLE["UFKL"]))


@claim("RPG-tab1-URKL")
def unnormalized_reverse_loss() -> Iterator[Found]:
    """Z E[-wR + beta (w log w - w)] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("URKL", DIFFERENTIABLE["URKL"]))


@claim("RPG-propE.1-loss")
def forward_loss() -> Iterator[Found]:
    """E[-wR - beta log pi] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("FKL", DIFFERENTIABLE["FKL"]))


@claim("RPG-propE.3-loss")
def reverse_loss() -> Iterator[Found]:
    """E[w(-R + beta log w)] has minus the gradient of its objective."""
    yield from each_form(worst_loss_error("RKL", DIFFERENTIABLE["RKL"]))


@claim("RPG-propE.1-grad")
def forward_gradient() -> Iterator[Found]:
    """E_old[(wR + beta) score] is the gradient of E[R] - beta KL(old, policy)."""
    errors = []
    for world in normalized():
        w = log_weight(world).exp()
        found = field(w * world.problem.rewards + BETA, world.problem)
        errors.append(apart(found, objective_gradient(world, "FKL")))
    yield from each_form(worst(errors))


@claim("RPG-propE.3-grad")
def reverse_gradient() -> Iterator[Found]:
    """E_old[w(R - beta(log w + 1)) score] is the gradient of E[R] - beta KL(policy, old)."""
    errors = []
    for world in normalized():
        log_w = log_weight(world)
        found = field(log_w.exp() * (world.problem.rewards - BETA * (log_w + 1)), world.problem)
        errors.append(apart(found, objective_gradient(world, "RKL")))
    yield from each_form(worst(errors))


def _two_policies(world: OldMeasure) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi of every sequence under the policy and under another one, [count] each."""
    return log_policy(world), world.problem.token_logp(world.problem.ref_logits).sum(-1)


@claim("RPG-4-minusJ")
def losses_are_minus_the_objective_up_to_constants() -> Iterator[Found]:
    """L + J is one number at two policies, for all four divergences."""
    errors = []
    for divergence, loss in DIFFERENTIABLE.items():
        for world in worlds_of(divergence):
            value = objective(world, divergence, BETA)
            gaps = [
                float(world.mass * expected_loss(world, loss, x) + value(x)) for x in _two_policies(world)
            ]
            errors.append(apart(*gaps))
            if divergence in ("UFKL", "RKL"):
                errors.append(apart(gaps[0], 0.0))
        errors.append(worst_loss_error(divergence, DIFFERENTIABLE[divergence]))
    yield from each_form(worst(errors))


@claim("RPG-remE.2")
def without_a_reward_it_is_maximum_likelihood() -> Iterator[Found]:
    """With R = 0 the gradient of J is beta times that of the mean log-likelihood of the old samples."""
    errors = []
    for world in normalized():
        silent = OldMeasure(world.problem._replace(rewards=torch.zeros_like(world.problem.rewards)))
        likelihood = field(torch.ones_like(log_policy(silent)), silent.problem)
        errors.append(apart(objective_gradient(silent, "FKL"), BETA * likelihood))
    yield from each_form(worst(errors))


@claim("RPG-eqE.1")
def value_of_the_forward_objective() -> Iterator[Found]:
    """It is E_old[wR + beta log w]."""
    errors = []
    for world in normalized():
        log_w = log_weight(world)
        by_hand = mean(terms(world.problem).p, log_w.exp() * world.problem.rewards + BETA * log_w)
        errors.append(apart(by_hand, objective(world, "FKL", BETA)(log_policy(world))))
    yield from each_form(worst(errors))


@claim("RPG-eqE.2")
def value_of_the_reverse_objective() -> Iterator[Found]:
    """KL(policy, old) = E_old[w log w], and J = E_old[wR - beta w log w]."""
    errors = []
    for world in normalized():
        log_w, p = log_weight(world), terms(world.problem).p
        w = log_w.exp()
        errors.append(apart(mean(p, w * log_w), divergence_value(world, "RKL")))
        by_hand = mean(p, w * world.problem.rewards - BETA * w * log_w)
        errors.append(apart(by_hand, objective(world, "RKL", BETA)(log_policy(world))))
    yield from each_form(worst(errors))


@claim("RPG-D-forward")
def k3_forward() -> Iterator[Found]:
    """The integral of pi_old k3(pi / pi_old) is UKL(old, policy)."""
    errors = []
    for world in measured():
        log_w = log_weight(world)
        found = world.mass * mean(terms(world.problem).p, log_w.exp() - 1 - log_w)
        errors.append(apart(found, divergence_value(world, "UFKL")))
    yield from each_form(worst(errors))


@claim("RPG-D-reverse")
def k3_reverse() -> Iterator[Found]:
    """The mean of k3(pi_old / pi) under the policy is UKL(policy, old)."""
    errors = []
    for world in measured():
        y = log_old(world) - log_policy(world)
        found = mean(log_policy(world).exp(), y.exp() - 1 - y)
        errors.append(apart(found, divergence_value(world, "URKL")))
    yield from each_form(worst(errors))


@claim("RPG-K-gradw")
def derivative_of_the_ratio() -> Iterator[Found]:
    """grad w = w score, grad log w = score, of every sequence."""
    errors = []
    for world in normalized():
        problem, old = world.problem, log_old(world)
        theta, score, w = problem.logits.detach(), terms(world.problem).score, log_weight(world).exp()

        def ratio(logits: torch.Tensor) -> torch.Tensor:
            return (problem.token_logp(logits).sum(-1) - old).exp()  # noqa: B023 - called at once

        found = torch.autograd.functional.jacobian(ratio, theta, vectorize=True)
        errors.append(apart(found, w[:, None, None] * score))
        errors.append(apart(found / w[:, None, None], score))
        errors.append(apart(mean(terms(problem).p * problem.rewards, found), utility_gradient(problem)))
    yield from each_form(worst(errors))


@claim("RPG-K2-J")
def value_of_the_unnormalized_forward_objective() -> Iterator[Found]:
    """It is Z E[wR + beta log w - beta w + beta]."""
    errors = []
    for world in measured():
        log_w, r = log_weight(world), world.problem.rewards
        w = log_w.exp()
        found = world.mass * mean(terms(world.problem).p, w * r + BETA * log_w - BETA * w + BETA)
        errors.append(apart(found, objective(world, "UFKL", BETA)(log_policy(world))))
    yield from each_form(worst(errors))


@claim("RPG-K4-J")
def value_of_the_unnormalized_reverse_objective() -> Iterator[Found]:
    """It is Z E[wR - beta w log w - beta + beta w]."""
    errors = []
    for world in measured():
        log_w, r = log_weight(world), world.problem.rewards
        w = log_w.exp()
        found = world.mass * mean(terms(world.problem).p, w * r - BETA * w * log_w - BETA + BETA * w)
        errors.append(apart(found, objective(world, "URKL", BETA)(log_policy(world))))
    yield from each_form(worst(errors))


def _without_the_constant(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The loss of UFKL without its -1."""
    return -w * r + BETA * (w - w.log())


@claim("RPG-K2-constant")
def the_minus_one_of_the_loss() -> Iterator[Found]:
    """Without it L is beta Z away from -J, and its gradient is the same for every sample."""
    errors = []
    for world in measured():
        logp = log_policy(world)
        gap = world.mass * expected_loss(world, _without_the_constant, logp)
        gap = gap + objective(world, "UFKL", BETA)(logp)
        errors.append(apart(gap, BETA * world.mass))
        both = [
            slopes(lambda x, loss=loss: losses(world, loss, x).sum(), logp)  # type: ignore[misc]  # noqa: B023
            for loss in (_without_the_constant, DIFFERENTIABLE["UFKL"])
        ]
        errors += [apart(*both), differs(gap, 0.0)]
    yield from each_form(worst(errors))
