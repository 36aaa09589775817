"""Sections 3.3 and 4.1, figure 3, appendices F.2 and G: ratios that are clipped (zhang2025design)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, corrected, less, numbers, printed, same
from kl_book.ledger.claims.ground import rpg_losses as rpg
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
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.rpg_losses import advantage, surrogate_loss, wide_is_exact
from kl_book.ledger.claims.ground.sums import mean, terms
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    OldMeasure,
    each_divergence,
    measured,
    normalized,
    slopes,
)
from kl_book.ledger.claims.ground.updates import utility_gradient
from kl_companion.tabular import Problem


@claim("RPG-3.3-loss", over=normalized)
def the_loss_is_minus_the_objective(x: OldMeasure) -> Iterator[Found]:
    """The two printed forms are each other's negative, and with A held fixed their slopes are the gates."""
    w, a = x.w, advantage(x)
    for some in (a, -a, torch.full_like(w, -1.0)):
        for ratio in (w, 3 * w, w / 3):
            yield same(dual_clip_loss(ratio, some, PAPER), -dual_clip_objective(ratio, some, PAPER))
    yield same(x.grad(surrogate_loss(PAPER, stopped=True)), -x.Es(w * a * open_gates(w, a, PAPER)))
    yield printed(x.loss_error(surrogate_loss(WIDE, stopped=True), "URKL"))


@claim("RPG-3.3-A-URKL", over=measured)
def advantage_of_the_unnormalized_reverse_kl(x: OldMeasure) -> Iterator[Found]:
    """Z w (R - beta log w) is the weight, and a constant baseline changes no expected gradient."""
    for b in (0.0, rpg.BASELINE):
        yield same(x.Es(x.mass * x.w * ((x.R - b) - BETA * x.log_w)), x.d_objective("URKL"))


@claim("RPG-3.3-A-RKL", over=normalized)
def advantage_of_the_reverse_kl(x: OldMeasure) -> Iterator[Found]:
    """w (R - beta(log w + 1)) is the weight, and a constant baseline changes no expected gradient."""
    for b in (0.0, rpg.BASELINE):
        yield same(x.Es(x.w * ((x.R - b) - BETA * (x.log_w + 1))), x.d_objective("RKL"))


@claim("RPG-3.3-matches")
def advantages_that_carry_a_gradient() -> Iterator[Found]:
    """Differentiated, -wA has the reverse KLs right in the mean and no forward KL at all; SG(A) mends it."""
    forward = []
    for divergence, x in each_divergence():
        wanted, reverse = x.d_objective(divergence), divergence.endswith("RKL")
        attached, fixed = (
            -x.mass * x.grad(surrogate_loss(WIDE, stopped=stopped, divergence=divergence))
            for stopped in (False, True)
        )
        share = relative(attached, wanted)
        forward += [] if reverse else [share]
        yield printed(share)
        yield same(fixed, wanted, "corrected")
        yield same(attached, wanted if reverse else utility_gradient(x.problem), "corrected")
    yield numbers(cases=len(forward), most=max(forward), beta=BETA)


@claim("RPG-3.3-range")
def what_the_dual_clip_bounds() -> Iterator[Found]:
    """For A >= 0 only from above; for A < 0 between 1 - eps_1 and c, an upper bound of the ratio."""
    factors = []
    for x in normalized():
        for a in (advantage(x), -advantage(x)):
            factor = dual_clip_objective(x.w, a, PAPER) / a
            yield same(factor, effective_ratio(x.w, a, PAPER), "corrected")
            factors += factor[a > 0].tolist()
        yield corrected(wide_is_exact(x))
    outside = [factor < PAPER.low - 1e-12 or factor > PAPER.high + 1e-12 for factor in factors]
    yield printed(share_of_cases(outside))
    yield numbers(low=PAPER.low, high=PAPER.high, smallest=min(factors), more=PAPER.low / min(factors))
    yield numbers(outside=sum(outside), factors=len(outside))


@claim("RPG-eqC.3", over=lambda: [p for p in stale() if p.rows.shape[1] == 1])
def for_positive_advantages_it_is_the_clip_of_ppo(problem: Problem) -> Iterator[Found]:
    """min(wA, clip(w)A), in value and slope."""
    bounds, index = Bounds(1 - CLIP, 1 + CLIP, PAPER.cap), torch.arange(len(problem.sequences))[:, None]
    logp, old = terms(problem).logp[:, 0], problem.token_logp(problem.sampled_from)[:, 0]
    w = (logp - old).exp()
    for a in (problem.rewards + 0.5, problem.rewards + 2.0):
        clipped = torch.minimum(w * a, w.clamp(1 - CLIP, 1 + CLIP) * a)
        yield same(-dual_clip_loss(w, a, bounds), clipped)
        slope = slopes(lambda x, a=a: dual_clip_loss((x - old).exp(), a, bounds).sum(), logp)  # type: ignore[misc]
        yield same(slope, surrogate_slopes(problem, index, a[:, None])[:, 0, 0])


@claim("RPG-G1-bound")
def what_the_bound_of_negative_advantages_stops() -> Iterator[Found]:
    """It stops the objective from falling and the loss from growing; neither was unbounded the other way."""
    ratios = torch.logspace(-3, 4, 40, dtype=torch.float64)
    for x in rpg.clipped_worlds():
        for a in advantage(x)[advantage(x) < 0]:
            without, bounded = (
                dual_clip_objective(ratios, a, PAPER._replace(cap=cap)) for cap in (1e9, PAPER.cap)
            )
            # stopped from growing: the bound lowers the objective somewhere
            yield less(0.0, float((without - bounded).max()), by=1.0)
            yield same(bounded, torch.maximum(without, PAPER.cap * a), "corrected")
            yield less(float(without.min()), -1.0, "corrected", by=0.0)
        yield corrected(wide_is_exact(x))
    largest = float(ratios[-1])
    yield numbers(ratio=largest, without=-largest, bounded=-PAPER.cap, cap=PAPER.cap)


@claim("RPG-G2-token")
def weights_of_tokens() -> Iterator[Found]:
    """How far the update with ratios and log-ratios of tokens is from the gradient."""
    shares = []
    for x in (x for x in normalized() if x.problem.rows.shape[1] > 1):
        t = terms(x.problem)
        log_w = t.logp - x.problem.token_logp(x.problem.sampled_from)
        weight = log_w.exp() * (x.R[:, None] - BETA * log_w) * x.problem.completion_mask
        update = mean(t.p, (weight[..., None, None] * t.scores).sum(1))
        shares.append(relative(update, x.d_objective("URKL")))
    yield numbers(least=min(shares), most=max(shares), beta=BETA)
