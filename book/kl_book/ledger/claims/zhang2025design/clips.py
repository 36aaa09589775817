"""Sections 3.3 and 4.1, figure 3, appendices F.2 and G: ratios that are clipped (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import CLIP, stale, surrogate_slopes
from kl_book.ledger.claims.ground.dual_clip import (
    PAPER,
    WIDE,
    Bounds,
    dual_clip_loss,
    dual_clip_objective,
    effective_ratio,
    open_gates,
)
from kl_book.ledger.claims.ground.errors import apart, relative, violation, worst
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.rpg_losses import (
    ADVANTAGES,
    BASELINE,
    advantage,
    clipped_worlds,
    surrogate_loss,
    wide_is_exact,
)
from kl_book.ledger.claims.ground.sums import field, terms
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    log_weight,
    loss_error,
    measured,
    normalized,
    objective_gradient,
    surrogate_gradient,
    worlds_of,
)
from kl_book.ledger.claims.ground.updates import utility_gradient


@claim("RPG-3.3-loss")
def the_loss_is_minus_the_objective() -> Iterator[Found]:
    """The two printed forms are each other's negative, and with A held fixed their slopes are the gates."""
    errors = []
    for world in normalized():
        w = log_weight(world).exp()
        for a in (advantage(world), -advantage(world), torch.full_like(w, -1.0)):
            for scaled in (w, 3 * w, w / 3):
                errors.append(apart(dual_clip_loss(scaled, a, PAPER), -dual_clip_objective(scaled, a, PAPER)))
        found = surrogate_gradient(world, surrogate_loss(PAPER, stopped=True))
        by_hand = w * advantage(world) * open_gates(w, advantage(world), PAPER)
        errors.append(apart(found, -field(by_hand, world.problem)))
        errors.append(loss_error(world, "URKL", surrogate_loss(WIDE, stopped=True)))
    yield from each_form(worst(errors))


@claim("RPG-3.3-A-URKL")
def advantage_of_the_unnormalized_reverse_kl() -> Iterator[Found]:
    """Z w (R - beta log w) is the weight, and a constant baseline changes no expected gradient."""
    errors = []
    for world in measured():
        log_w = log_weight(world)
        for b in (0.0, BASELINE):
            a = (world.problem.rewards - b) - BETA * log_w
            found = field(world.mass * log_w.exp() * a, world.problem)
            errors.append(apart(found, objective_gradient(world, "URKL")))
    yield from each_form(worst(errors))


@claim("RPG-3.3-A-RKL")
def advantage_of_the_reverse_kl() -> Iterator[Found]:
    """w (R - beta(log w + 1)) is the weight, and a constant baseline changes no expected gradient."""
    errors = []
    for world in normalized():
        log_w = log_weight(world)
        for b in (0.0, BASELINE):
            a = (world.problem.rewards - b) - BETA * (log_w + 1)
            errors.append(apart(field(log_w.exp() * a, world.problem), objective_gradient(world, "RKL")))
    yield from each_form(worst(errors))


@claim("RPG-3.3-matches")
def advantages_that_carry_a_gradient() -> Iterator[Found]:
    """Differentiated, -wA has the reverse KLs right in the mean and no forward KL at all; SG(A) mends it."""
    printed: dict[str, list[float]] = {divergence: [] for divergence in ADVANTAGES}
    corrected = []
    for divergence, errors in printed.items():
        for world in worlds_of(divergence):
            wanted = objective_gradient(world, divergence)
            attached, fixed = (
                -world.mass
                * surrogate_gradient(world, surrogate_loss(WIDE, stopped=x, divergence=divergence))
                for x in (False, True)
            )
            errors.append(relative(attached, wanted))
            corrected.append(apart(fixed, wanted))
            reverse = divergence.endswith("RKL")
            corrected.append(apart(attached, wanted if reverse else utility_gradient(world.problem)))
    forward = [*printed["UFKL"], *printed["FKL"]]
    yield from each_form(
        worst([*forward, *printed["URKL"], *printed["RKL"]]),
        worst(corrected),
        number_of_forward=len(forward),
        max_forward=max(forward),
        BETA=BETA,
    )


@claim("RPG-3.3-range")
def what_the_dual_clip_bounds() -> Iterator[Found]:
    """For A >= 0 only from above; for A < 0 between 1 - eps_1 and c, an upper bound of the ratio."""
    outside, corrected, smallest = [], [], []
    for world in normalized():
        w, a = log_weight(world).exp(), advantage(world)
        for sign in (1.0, -1.0):
            factor = dual_clip_objective(w, sign * a, PAPER) / (sign * a)
            corrected.append(apart(factor, effective_ratio(w, sign * a, PAPER)))
            positive = factor[sign * a > 0]
            outside += [bool(x < PAPER.low - 1e-12 or x > PAPER.high + 1e-12) for x in positive]
            smallest += positive.tolist()
        corrected.append(wide_is_exact(world))
    yield from each_form(
        share_of_cases(outside),
        worst(corrected),
        low=PAPER.low,
        high=PAPER.high,
        min_smallest=min(smallest),
        sum_of_outside=sum(outside),
        number_of_outside=len(outside),
        number=PAPER.low / min(smallest),
    )


@claim("RPG-eqC.3")
def for_positive_advantages_it_is_the_clip_of_ppo() -> Iterator[Found]:
    """min(wA, clip(w)A), in value and slope."""
    errors, bounds = [], Bounds(1 - CLIP, 1 + CLIP, PAPER.cap)
    for problem in (p for p in stale() if p.rows.shape[1] == 1):
        index = torch.arange(len(problem.sequences))[:, None]
        logp, old = terms(problem).logp[:, 0], problem.token_logp(problem.sampled_from)[:, 0]
        for a in (problem.rewards + 0.5, problem.rewards + 2.0):
            leaf = logp.clone().requires_grad_()
            w = (leaf - old).exp()
            loss = dual_clip_loss(w, a, bounds)
            errors.append(
                apart(-loss.detach(), torch.minimum(w * a, w.clamp(1 - CLIP, 1 + CLIP) * a).detach())
            )
            (found,) = torch.autograd.grad(loss.sum(), leaf)
            errors.append(apart(found, surrogate_slopes(problem, index, a[:, None])[:, 0, 0]))
    yield from each_form(worst(errors))


@claim("RPG-G1-bound")
def what_the_bound_of_negative_advantages_stops() -> Iterator[Found]:
    """It stops the objective from falling and the loss from growing; neither was unbounded the other way."""
    printed, corrected = [], []
    ratios = torch.logspace(-3, 4, 40, dtype=torch.float64)
    for world in clipped_worlds():
        for a in advantage(world)[advantage(world) < 0]:
            without = dual_clip_objective(ratios, a, PAPER._replace(cap=1e9))
            bounded = dual_clip_objective(ratios, a, PAPER)
            # stopped from growing: the bound lowers the objective somewhere
            printed.append(violation(1.0 - float((without - bounded).max())))
            corrected += [
                apart(bounded, torch.maximum(without, PAPER.cap * a)),
                violation(float(without.min()) + 1.0),
            ]
        corrected.append(wide_is_exact(world))
    yield from each_form(
        worst(printed),
        worst(corrected),
        float=float(ratios[-1]),
        number=-float(ratios[-1]),
        number_2=-PAPER.cap,
        cap=PAPER.cap,
    )
