"""Section 3.1 and 3.2: unnormalized forward and reverse KL, gradients and losses (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, less, turned, worst
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE, WEIGHTS
from kl_book.ledger.claims.ground.sums import exact, field, terms, variance
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    DIVERGENCES,
    OldMeasure,
    divergence_gradient,
    divergence_value,
    expected_loss,
    free_density,
    log_old,
    log_policy,
    log_weight,
    loss_error,
    measured,
    normalized,
    objective,
    objective_gradient,
    slopes,
    surrogate_gradient,
    unnormalized_forward,
)
from kl_book.ledger.claims.standard import TOLERANCE


@claim("RPG-def3.1")
def divergences_of_measures() -> Iterator[Found]:
    """Both are positive, 0 for equal measures alone, and the KL where both measures have mass 1."""
    errors = []
    for world in measured():
        p, z, log_w = terms(world.problem).p, world.mass, log_weight(world)
        policy, old = log_policy(world), log_old(world)
        sums = {
            "UFKL": -z * (p @ log_w) + policy.exp().sum() - z,
            "URKL": policy.exp() @ log_w + z - policy.exp().sum(),
        }
        for name, normal in (("UFKL", "FKL"), ("URKL", "RKL")):
            value = divergence_value(world, name)
            errors += [apart(sums[name], value), less(0.0, value)]
            errors += [apart(DIVERGENCES[name](old, old), 0.0)]
            errors.append(less(0.0, float(DIVERGENCES[name](old + 0.1, old))))
            if z == 1:
                errors.append(apart(value, divergence_value(world, normal)))
    yield from each_form(worst(errors))


def _gradient_error(world: OldMeasure, name: str) -> float:
    """Error of a printed gradient: of softmax policies, and of a density without a norm."""
    z, r, weight = world.mass, world.problem.rewards, WEIGHTS[name]
    found = field(z * weight(log_weight(world).exp(), r), world.problem)
    free = free_density(world)
    old = log_old(world)
    by_item = old.exp() * weight((free - old).exp(), r)
    return worst(
        (
            apart(found, objective_gradient(world, name)),
            apart(by_item, slopes(objective(world, name, BETA), free)),
        )
    )


def _loss_error(world: OldMeasure, name: str) -> float:
    """Error of "the gradient of Z_old E[loss] is minus that of J", for both kinds of policy."""
    loss, free = DIFFERENTIABLE[name], free_density(world)
    by_item = slopes(lambda logp: world.mass * expected_loss(world, loss, logp), free)
    return worst(
        (
            loss_error(world, name, loss),
            apart(by_item, -slopes(objective(world, name, BETA), free)),
        )
    )


@claim("RPG-eq3.1")
def gradient_with_the_unnormalized_forward_kl() -> Iterator[Found]:
    """Z E[(w R - beta (w - 1)) score] is the gradient of E[R] - beta UKL(pi_old || pi)."""
    yield from each_form(worst(_gradient_error(x, "UFKL") for x in measured()))


@claim("RPG-prop3.2-loss")
def loss_with_the_unnormalized_forward_kl() -> Iterator[Found]:
    """Z E[-w R + beta (w - log w - 1)], differentiated as printed, has minus that gradient."""
    yield from each_form(worst(_loss_error(x, "UFKL") for x in measured()))


@claim("RPG-eq3.3")
def gradient_with_the_unnormalized_reverse_kl() -> Iterator[Found]:
    """Z E[w (R - beta log w) score] is the gradient of E[R] - beta UKL(pi || pi_old)."""
    yield from each_form(worst(_gradient_error(x, "URKL") for x in measured()))


@claim("RPG-prop3.6-loss")
def loss_with_the_unnormalized_reverse_kl() -> Iterator[Found]:
    """Z E[-w R + beta (w log w - w)], differentiated as printed, has minus that gradient."""
    yield from each_form(worst(_loss_error(x, "URKL") for x in measured()))


def _forward_term(_: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """What L_UFKL has for the divergence, without Z_old."""
    return BETA * (w - w.log() - 1)


@claim("RPG-rem3.3-value")
def k3_at_w_estimates_the_unnormalized_forward_kl() -> Iterator[Found]:
    """Z E[beta (w - log w - 1)] over the normalized old measure is beta UKL(pi_old || pi)."""
    errors = []
    for world in measured():
        free, old = free_density(world), log_old(world)
        policy = world.mass * expected_loss(world, _forward_term, log_policy(world))
        density = world.mass * expected_loss(world, _forward_term, free)
        errors.append(apart(policy, BETA * divergence_value(world, "UFKL")))
        errors.append(apart(density, BETA * unnormalized_forward(free, old)))
    yield from each_form(worst(errors))


def _at_the_old_policy(world: OldMeasure) -> OldMeasure:
    """The same world with the policy that has the shape of the old measure."""
    return world._replace(problem=world.problem._replace(logits=world.problem.sampled_from))


@claim("RPG-rem3.3-mass")
def a_policy_cannot_match_the_total_mass() -> Iterator[Found]:
    """The least divergence has a policy of mass 1; the mass of the old measure is a factor of beta alone."""
    printed, corrected, inside, noise = [], [], [], []
    masses = [world.mass for world in measured()]
    for world in measured():
        z, w = world.mass, log_weight(world).exp()
        there = _at_the_old_policy(world)
        old, mass = log_old(world), float(log_policy(there).exp().sum())
        if apart(divergence_gradient(there, "UFKL"), 0.0) <= TOLERANCE:  # the least divergence of a policy
            printed.append(abs(mass - z) / z)
        inside.append(apart(slopes(lambda x, old=old: unnormalized_forward(x, old), old), 0.0))  # type: ignore[misc]
        found = field(-z * BETA * (w - 1), world.problem)
        corrected.append(apart(found, -BETA * z * divergence_gradient(world, "FKL")))
        if z == 1:
            score = terms(world.problem).score
            kept = variance(terms(world.problem).p, (w - 1)[:, None, None] * score)
            noise.append(kept / variance(terms(world.problem).p, score))
    yield from each_form(
        worst(printed),
        worst(corrected),
        inside=worst(inside),
        min_masses=min(masses),
        max_masses=max(masses),
        mass=mass,
        max_printed=max(printed),
        min_noise=min(noise),
        max_noise=max(noise),
    )


@claim("RPG-def3.4-mass")
def mass_correction_of_the_reverse_divergence() -> Iterator[Found]:
    """Sum of pi_old - pi over all sequences = Z_old minus the mass of pi, with pi_old = Z_old times p."""
    errors = []
    for world in measured():
        for logp in (log_policy(world), free_density(world)):
            found = world.mass * expected_loss(world, lambda _, w, r: 1 - w, logp)
            errors.append(apart(found, world.mass - logp.exp().sum()))
    yield from each_form(worst(errors))


@claim("RPG-rem3.5")
def mean_of_k3_at_the_old_measure() -> Iterator[Found]:
    """E[k3(pi_old / pi)] over samples of pi is UKL(pi || pi_old), as a function of the policy."""
    errors = []
    for world in measured():
        old = log_old(world)

        def mean_k3(logp: torch.Tensor, old: torch.Tensor = old) -> torch.Tensor:
            y = (old - logp).exp()
            return logp.exp() @ (y - 1 - y.log())

        errors.append(apart(mean_k3(log_policy(world)), divergence_value(world, "URKL")))
        found = exact(lambda logp, _, f=mean_k3: f(logp), world.problem)[1]  # type: ignore[misc]
        errors.append(apart(found, divergence_gradient(world, "URKL")))
        free = free_density(world)
        errors.append(apart(mean_k3(free), DIVERGENCES["URKL"](free, old)))
    yield from each_form(worst(errors))


@claim("RPG-prop3.6-Z")
def the_total_mass_in_front_only_scales() -> Iterator[Found]:
    """With w unchanged, leaving Z_old out of the front gives the same gradient over Z_old."""
    errors = []
    for world in measured():
        wanted = objective_gradient(world, "URKL")
        found = surrogate_gradient(world, DIFFERENTIABLE["URKL"])
        errors.append(apart(found, -wanted / world.mass))
        errors.append(turned(-found, wanted))
        value = objective(world, "URKL", BETA)(log_policy(world))
        loss = expected_loss(world, DIFFERENTIABLE["URKL"], log_policy(world))
        errors.append(apart(-world.mass * loss - BETA * world.mass, value))
    yield from each_form(worst(errors))


def _reverse_term(_: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """What L_URKL has for the divergence, without Z_old."""
    return BETA * (w * w.log() - w)


@claim("RPG-rem3.7-value")
def the_loss_has_the_divergence_up_to_the_total_mass() -> Iterator[Found]:
    """beta UKL(pi || pi_old) minus Z E[beta (w log w - w)] is beta Z_old, whatever the policy is."""
    errors = []
    for world in measured():
        for logp in (log_policy(world), free_density(world)):
            term = world.mass * expected_loss(world, _reverse_term, logp)
            divergence = DIVERGENCES["URKL"](logp, log_old(world))
            errors.append(apart(BETA * divergence - term, BETA * world.mass))
    yield from each_form(worst(errors))


def _noise(world: OldMeasure, weight: torch.Tensor) -> float:
    """Variance of a weight [count] times the score, over samples of the old policy."""
    return variance(terms(world.problem).p, weight[:, None, None] * terms(world.problem).score)


@claim("RPG-rem3.7-scaling")
def the_unnormalized_reverse_scaling_is_shorter() -> Iterator[Found]:
    """R - beta log w has one operation less than R - beta (log w + 1), and the same mean gradient."""
    r, beta, log_w = sympy.symbols("R beta log_w")
    short, long = (sympy.count_ops(x) for x in (r - beta * log_w, r - beta * (log_w + 1)))
    errors, shares = [less(float(short), float(long), by=1.0)], []
    for world in normalized():
        w, rewards = log_weight(world).exp(), world.problem.rewards
        one, other = WEIGHTS["URKL"](w, rewards), WEIGHTS["RKL"](w, rewards)
        errors.append(apart(field(one, world.problem), objective_gradient(world, "RKL")))
        errors.append(apart(field(other, world.problem), objective_gradient(world, "RKL")))
        errors.append(apart(one - other, BETA * w))
        shares.append(_noise(world, one) / _noise(world, other))
    yield from each_form(worst(errors), BETA=BETA, min_shares=min(shares), max_shares=max(shares))
