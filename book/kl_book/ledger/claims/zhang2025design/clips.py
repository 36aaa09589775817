"""Sections 3.3 and 4.1, figure 3, appendices F.2 and G: ratios that are clipped (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, corrected, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground import rpg_losses as rpg
from kl_book.ledger.claims.ground.calibration import CLIP, stale, surrogate_slopes
from kl_book.ledger.claims.ground.errors import relative, turned
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.rpg_losses import PAPER, WIDE, coefficient_loss, surrogate_loss
from kl_book.ledger.claims.ground.sums import terms
from kl_book.ledger.claims.ground.unnormalized import BETA, OldMeasure, each_divergence, normalized, slopes
from kl_book.ledger.claims.ground.updates import token_field, utility_gradient
from kl_companion.tabular import Problem


@claim("RPG-3.3-loss", over=normalized)
def the_loss_is_minus_the_objective(x: OldMeasure) -> Iterator[Found]:
    """The two printed forms are each other's negative, and with A held fixed their slopes are the gates."""
    w, a = x.w, rpg.advantage(x)
    for some in (a, -a, torch.full_like(w, -1.0)):
        for ratio in (w, 3 * w, w / 3):
            yield same(rpg.clipped_loss(ratio, some, PAPER), -rpg.clipped_objective(ratio, some, PAPER))
    yield same(x.grad(surrogate_loss(PAPER, stopped=True)), -x.Es(w * a * rpg.open_gates(w, a, PAPER)))
    yield printed(x.loss_error(surrogate_loss(WIDE, stopped=True), "URKL"))


@claim("RPG-3.3-matches", over=each_divergence)
def advantages_that_carry_a_gradient(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """Differentiated, -wA has the reverse KLs right in the mean and no forward KL at all; SG(A) mends it."""
    target, reverse = x.d_objective(divergence), divergence.endswith("RKL")
    attached, fixed = (
        -x.mass * x.grad(surrogate_loss(WIDE, stopped=stopped, divergence=divergence))
        for stopped in (False, True)
    )
    yield printed(relative(attached, target))
    if not reverse:
        yield observed(relative(attached, target))
    yield same(fixed, target, "corrected")
    yield same(attached, target if reverse else utility_gradient(x.problem), "corrected")
    yield numbers(beta=BETA)


@claim("RPG-3.3-range")
def what_the_dual_clip_bounds() -> Iterator[Found]:
    """For A >= 0 only from above; for A < 0 between 1 - eps_1 and c, an upper bound of the ratio."""
    factors = []
    for x in normalized():
        for a in (rpg.advantage(x), -rpg.advantage(x)):
            factor = rpg.clipped_objective(x.w, a, PAPER) / a
            yield same(factor, rpg.effective_ratio(x.w, a, PAPER), "corrected")
            factors += factor[a > 0].tolist()
        yield corrected(rpg.wide_is_exact(x))
    outside = [factor < PAPER.low - 1e-12 or factor > PAPER.high + 1e-12 for factor in factors]
    yield printed(share_of_cases(outside))
    yield numbers(low=PAPER.low, high=PAPER.high, smallest=min(factors), more=PAPER.low / min(factors))
    yield numbers(outside=sum(outside), factors=len(outside))


@claim("RPG-eqC.3", over=lambda: [p for p in stale() if p.rows.shape[1] == 1])
def for_positive_advantages_it_is_the_clip_of_ppo(problem: Problem) -> Iterator[Found]:
    """min(wA, clip(w)A), in value and slope."""
    bounds = rpg.Bounds(1 - CLIP, 1 + CLIP, PAPER.cap)
    index = torch.arange(len(problem.sequences))[:, None]
    logp, old = terms(problem).logp[:, 0], problem.token_logp(problem.sampled_from)[:, 0]
    w = (logp - old).exp()
    for a in (problem.rewards + 0.5, problem.rewards + 2.0):
        clipped = torch.minimum(w * a, w.clamp(1 - CLIP, 1 + CLIP) * a)
        yield same(-rpg.clipped_loss(w, a, bounds), clipped)
        slope = slopes(lambda x, a=a: rpg.clipped_loss((x - old).exp(), a, bounds).sum(), logp)  # type: ignore[misc]
        yield same(slope, surrogate_slopes(problem, index, a[:, None])[:, 0, 0])


@claim("RPG-G1-bound")
def what_the_bound_of_negative_advantages_stops() -> Iterator[Found]:
    """It stops the objective from falling and the loss from growing; neither was unbounded the other way."""
    ratios = torch.logspace(-3, 4, 40, dtype=torch.float64)
    for x in rpg.clipped_worlds():
        for a in rpg.advantage(x)[rpg.advantage(x) < 0]:
            without, bounded = (
                rpg.clipped_objective(ratios, a, PAPER._replace(cap=cap)) for cap in (1e9, PAPER.cap)
            )
            # stopped from growing: the bound lowers the objective somewhere
            yield less(0.0, float((without - bounded).max()), by=1.0)
            yield same(bounded, torch.maximum(without, PAPER.cap * a), "corrected")
            yield less(float(without.min()), -1.0, "corrected", by=0.0)
        yield corrected(rpg.wide_is_exact(x))
    largest = float(ratios[-1])
    yield numbers(ratio=largest, without=-largest, bounded=-PAPER.cap, cap=PAPER.cap)


@claim("RPG-G2-token", over=lambda: (x for x in normalized() if x.problem.rows.shape[1] > 1))
def weights_of_tokens(x: OldMeasure) -> Iterator[Found]:
    """The distance from the gradient of the update with ratios and log-ratios of tokens."""
    log_w = terms(x.problem).logp - x.problem.token_logp(x.problem.sampled_from)
    update = token_field(x.problem, log_w.exp() * (x.R[:, None] - BETA * log_w))
    yield observed(relative(update, x.d_objective("URKL")))
    yield numbers(beta=BETA)


# three estimators under one name


@claim("RPG-eq4.1", over=normalized)
def the_stop_gradient_leaves_out_the_ratio(x: OldMeasure) -> Iterator[Found]:
    """As printed only A is detached, and the gradient is that of a sample times 1 + log pi."""
    as_printed = x.grad(coefficient_loss(WIDE, stopped=False))
    share = relative(as_printed, -x.d_objective("URKL"))
    yield printed(share)
    yield corrected(rpg.wide_is_exact(x))
    yield same(as_printed, -x.Es(x.w * rpg.advantage(x) * (1 + x.logp)), "corrected")
    yield observed(share, rare=x.p[x.logp < -1].sum())
    yield numbers(bound=math.exp(-1), factor=1 + math.log(1e-6))


def _updates(x: OldMeasure) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of eq (4.1) with a stopped C, and of the dual-clip loss with a stopped A, [rows, vocab]."""
    return x.grad(coefficient_loss(PAPER, stopped=True)), x.grad(surrogate_loss(PAPER, stopped=True))


@claim("RPG-4.1-direction")
def a_clip_turns_the_update() -> Iterator[Found]:
    """No positive multiple of the clipped updates is the gradient, in either form."""
    angles = []
    for x in rpg.clipped_worlds():
        w, a = x.w, rpg.advantage(x)
        by_coefficient, by_surrogate = (-update for update in _updates(x))
        if len(w) > 2:  # with two answers there is but one direction
            angles += [turned(update, x.d_objective("URKL")) for update in (by_coefficient, by_surrogate)]
        yield same(by_coefficient, x.Es(rpg.effective_ratio(w, a, PAPER) * a), "corrected")
        yield same(by_surrogate, x.Es(rpg.open_gates(w, a, PAPER) * w * a), "corrected")
        yield corrected(rpg.wide_is_exact(x))
    yield printed(max(angles))
    yield numbers(updates=len(angles), median=median(angles), most=max(angles))
    yield numbers(largest_ratio=max(float(x.w.max()) for x in rpg.clipped_worlds()))


@claim("RPG-4.1-alg2", over=rpg.clipped_worlds)
def two_estimators_under_one_name(x: OldMeasure) -> Iterator[Found]:
    """Eq (4.1) keeps a slope where it clips, the loss of appendix G.2 and algorithm 2 has none there."""
    w, a = x.w, rpg.advantage(x)
    by_coefficient, by_surrogate = _updates(x)
    share = relative(by_surrogate, by_coefficient)
    yield printed(share)
    difference = (1 - rpg.open_gates(w, a, PAPER)) * rpg.effective_ratio(w, a, PAPER) * a
    yield same(by_surrogate - by_coefficient, x.Es(difference), "corrected")
    yield corrected(rpg.wide_is_exact(x))
    yield observed(share, lost=x.E(rpg.closed(x)))


def _ratios_replaced(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The loss of URKL with a stop-gradient and a ratio between the bounds in the place of w."""
    ratio = w.detach().clamp(PAPER.low, PAPER.high)
    return -(ratio * (r - BETA * ratio.log())) * logp


@claim("RPG-remF.2-clip", over=rpg.clipped_worlds)
def ratios_replaced_inside_the_weight(x: OldMeasure) -> Iterator[Found]:
    """A weight of clipped ratios is a third estimator: clipped on both sides, its KL as well."""
    sample, ratio = x.slope(_ratios_replaced), x.w.clamp(PAPER.low, PAPER.high)
    unclipped = (ratio == x.w)[:, None, None]
    for loss in (surrogate_loss(PAPER, stopped=True), coefficient_loss(PAPER, stopped=True)):
        share = relative(x.E(sample), x.grad(loss))
        yield observed(share)
        yield printed(share)
        yield same(sample * unclipped, x.slope(loss) * unclipped, "corrected")
    yield same(x.E(sample), -x.Es(ratio * (x.R - BETA * ratio.log())), "corrected")
    yield corrected(rpg.wide_is_exact(x))
    yield numbers(worlds=len(rpg.clipped_worlds()))
