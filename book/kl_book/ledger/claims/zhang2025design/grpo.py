"""Section 2.2 and abstract: GRPO's k3 and its missing weight, stop-gradients (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import surrogate_slopes
from kl_book.ledger.claims.ground.errors import apart, differs, hedged, relative, worst
from kl_book.ledger.claims.ground.groups import groups, standardized_or_zero
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE, stopped_loss
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import exact, mean, terms
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    MASSES,
    Loss,
    OldMeasure,
    expected_loss,
    log_policy,
    loss_error,
    loss_gradients,
    normalized,
    surrogate_gradient,
    unnormalized_reverse,
    worlds_of,
)
from kl_book.ledger.claims.ground.worlds import few_sampled_elsewhere, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem

SIZE = 2
Weight = Literal["none", "attached", "detached"]


def k3(y: torch.Tensor) -> torch.Tensor:
    """y - log y - 1 of a ratio."""
    return y - y.log() - 1


@claim("RPG-2.2-k3")
def printed_k3_is_the_registered_one() -> Iterator[Found]:
    """y - log y - 1 at y = pi_ref / pi is the registered k3 of the two log-probs, and is never negative."""
    errors = []
    for problem in worlds():
        t = terms(problem)
        logp, ref = t.logp.sum(-1), t.ref_logp.sum(-1)
        printed = k3((ref - logp).exp())
        errors += [apart(printed, get_estimator("k3").fn(logp, ref)), max(0.0, -float(printed.min()))]
    yield from each_form(worst(errors))


@claim("RPG-2.2-k3-urkl")
def mean_of_k3_is_the_unnormalized_reverse_kl() -> Iterator[Found]:
    """E[k3(pi_ref / pi)] over samples of pi is UKL(pi || pi_ref), whatever the total mass of pi_ref."""
    errors = []
    for problem in worlds():
        t = terms(problem)
        for mass in MASSES:
            ratio = mass * (-t.log_ratio.sum(-1)).exp()
            value = exact(lambda p, q, z=mass: unnormalized_reverse(p, q + math.log(z)), problem)[0]  # type: ignore[misc]
            errors.append(apart(mean(t.p, k3(ratio)), value))
    yield from each_form(worst(errors))


# one decision, or a whole answer as one item


def penalty(problem: Problem, weight: Weight) -> Loss:
    """k3(pi_ref / pi) of every sampled item, without w or times w, attached or in a stop-gradient."""
    ref = terms(problem).ref_logp.sum(-1)

    def loss(logp: torch.Tensor, w: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        factor = {"none": torch.ones_like(w), "attached": w, "detached": w.detach()}[weight]
        return factor * k3((ref - logp).exp())

    return loss


def value(world: OldMeasure, weight: Weight) -> float:
    """E over the old policy of the penalty."""
    return float(expected_loss(world, penalty(world.problem, weight), log_policy(world)))


def gradient(world: OldMeasure, weight: Weight) -> torch.Tensor:
    """E over the old policy of the differentiated penalty, [rows, vocab]."""
    return surrogate_gradient(world, penalty(world.problem, weight))


@claim("RPG-2.2-weight")
def the_weight_makes_the_value_right() -> Iterator[Found]:
    """E over pi_old of w k3 is UKL(pi || pi_ref); without w it is another number."""
    errors, shares = [], []
    for world in normalized():
        wanted = exact(unnormalized_reverse, world.problem)[0]
        errors += [apart(value(world, "attached"), wanted), differs(value(world, "none"), wanted)]
        shares.append(value(world, "none") / wanted)
    yield from each_form(worst(errors), min_shares=min(shares), max_shares=max(shares))


@claim("RPG-1-corrected-loss")
def the_weight_makes_value_and_gradient_right() -> Iterator[Found]:
    """w k3 with w differentiated has the value and the gradient of UKL(pi || pi_ref); without w neither."""
    errors, detached, on_policy = [], [], []
    for world in normalized():
        kl, wanted = exact(unnormalized_reverse, world.problem)
        errors += [apart(value(world, "attached"), kl), apart(gradient(world, "attached"), wanted)]
        errors += [differs(value(world, "none"), kl), differs(gradient(world, "none"), wanted)]
        detached.append(relative(gradient(world, "detached"), wanted))
    for problem in worlds():
        wanted = exact(unnormalized_reverse, problem)[1]
        on_policy.append(relative(gradient(OldMeasure(problem), "none"), wanted))
        errors.append(apart(gradient(OldMeasure(problem), "attached"), wanted))
    yield from each_form(
        worst(errors),
        min_detached=min(detached),
        max_detached=max(detached),
        min_on_policy=min(on_policy),
        max_on_policy=max(on_policy),
    )


# GRPO's objective as printed, token by token


def grpo_gradient(problem: Problem, weight: Weight, beta: float = BETA) -> torch.Tensor:
    """Gradient of J_GRPO over all groups, [rows, vocab]: clip term and KL, both averaged over tokens."""
    t, mask = terms(problem), problem.completion_mask
    p, index = groups(problem, SIZE)
    length = mask.sum(-1, keepdim=True)
    leaf = t.logp.clone().requires_grad_()
    w = (leaf - problem.token_logp(problem.sampled_from)).exp()
    factor = {"none": torch.ones_like(w), "attached": w, "detached": w.detach()}[weight]
    (slopes,) = torch.autograd.grad((factor * k3((t.ref_logp - leaf).exp()) * mask).sum(), leaf)
    clip = -surrogate_slopes(problem, index, standardized_or_zero(problem.rewards[index]))
    each = (clip - beta * slopes[index]) / length[index]
    return torch.einsum("g,git,gitrv->rv", p, each, t.scores[index]) / SIZE


def intended_gradient(problem: Problem, beta: float = BETA) -> torch.Tensor:
    """Gradient of J_Clip minus beta times UKL at each history of the old policy, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    length = problem.completion_mask.sum(-1)
    visited = mean(terms(problem).p, token_kls(problem, theta).sum(-1) / length)
    (divergence,) = torch.autograd.grad(visited, theta)
    return grpo_gradient(problem, "none", beta=0.0) - beta * divergence


@claim("RPG-2.2-grpo")
def without_the_weight_the_gradient_is_another() -> Iterator[Found]:
    """GRPO's printed objective has not the gradient of J_Clip - beta UKL; with w, and one length, it has."""
    other, errors, sizes = [], [], []
    for problem in few_sampled_elsewhere():
        wanted = intended_gradient(problem)
        gap = relative(grpo_gradient(problem, "none"), wanted)
        other.append(gap > TOLERANCE)
        sizes.append(gap)
        if len(problem.completion_mask.sum(-1).unique()) == 1:
            errors.append(apart(grpo_gradient(problem, "attached"), wanted))
    uneven = [
        relative(grpo_gradient(p, "attached"), intended_gradient(p))
        for p in few_sampled_elsewhere()
        if len(p.completion_mask.sum(-1).unique()) > 1
    ]
    yield from each_form(
        worst([hedged(other), *errors]),
        SIZE=SIZE,
        BETA=BETA,
        min_sizes=min(sizes),
        max_sizes=max(sizes),
        max_uneven=max(uneven),
    )


@claim("RPG-abs-k3")
def k3_is_a_divergence_and_its_sampled_term_is_not() -> Iterator[Found]:
    """As a mean over the policy k3 is UKL; the sampled penalty, differentiated, follows another KL."""
    inside, printed, older = [], [], []
    for problem in worlds():
        value_of_it, wanted = exact(unnormalized_reverse, problem)
        world = OldMeasure(problem)
        sampled = penalty(problem, "none")
        t = terms(problem)
        of_samples = sampled(t.logp.sum(-1), t.p, t.p)[:, None, None] * t.score
        through_both = mean(t.p, of_samples + loss_gradients(world, sampled))
        inside += [apart(value(world, "none"), value_of_it), apart(through_both, wanted)]
        printed.append(relative(gradient(world, "none"), wanted))
    for world in normalized():
        wanted = exact(unnormalized_reverse, world.problem)[1]
        older.append(relative(gradient(world, "none"), wanted))
    yield from each_form(
        worst([*inside, *printed, *older]),
        inside=worst(inside),
        min_printed=min(printed),
        max_printed=max(printed),
        min_older=min(older),
        max_older=max(older),
    )


# losses of tables 1, 2 and 4, and of appendix F, as printed


@claim("RPG-abs-equivalence")
def losses_with_stop_gradient_have_the_same_gradients() -> Iterator[Found]:
    """For each of the four objectives the two losses have one gradient, sample by sample, that of -J."""
    errors = []
    for divergence, whole in DIFFERENTIABLE.items():
        stopped = stopped_loss(divergence)
        for world in worlds_of(divergence):
            each = [world.mass * loss_gradients(world, loss) for loss in (whole, stopped)]
            errors += [apart(*each), loss_error(world, divergence, stopped)]
    yield from each_form(worst(errors))
