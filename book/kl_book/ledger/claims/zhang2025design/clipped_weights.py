"""Section 4.1 and appendices F.2 and G.2: three estimators under one name (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, corrected, numbers, printed, same
from kl_book.ledger.claims.ground.dual_clip import PAPER, WIDE, effective_ratio, open_gates
from kl_book.ledger.claims.ground.errors import relative, turned
from kl_book.ledger.claims.ground.rpg_losses import (
    advantage,
    clipped_worlds,
    closed,
    coefficient_loss,
    surrogate_loss,
    wide_is_exact,
)
from kl_book.ledger.claims.ground.unnormalized import BETA, OldMeasure, normalized


@claim("RPG-eq4.1")
def the_stop_gradient_leaves_out_the_ratio() -> Iterator[Found]:
    """As printed only A is detached, and the gradient is that of a sample times 1 + log pi."""
    shares = []
    for x in normalized():
        as_printed = x.grad(coefficient_loss(WIDE, stopped=False))
        shares.append(relative(as_printed, -x.d_objective("URKL")))
        yield printed(shares[-1])
        yield corrected(wide_is_exact(x))
        yield same(as_printed, -x.Es(x.w * advantage(x) * (1 + x.logp)), "corrected")
    rare = max(float(x.p[x.logp < -1].sum()) for x in normalized())
    yield numbers(worlds=len(shares), least=min(shares), most=max(shares), most_rare=rare)
    yield numbers(bound=math.exp(-1), factor=1 + math.log(1e-6))


def _updates(x: OldMeasure) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of eq (4.1) with a stopped C, and of the dual-clip loss with a stopped A, [rows, vocab]."""
    return x.grad(coefficient_loss(PAPER, stopped=True)), x.grad(surrogate_loss(PAPER, stopped=True))


@claim("RPG-4.1-direction")
def a_clip_turns_the_update() -> Iterator[Found]:
    """No positive multiple of the clipped updates is the gradient, in either form."""
    angles = []
    for x in clipped_worlds():
        w, a = x.w, advantage(x)
        by_coefficient, by_surrogate = (-update for update in _updates(x))
        if len(w) > 2:  # with two answers there is but one direction
            angles += [turned(update, x.d_objective("URKL")) for update in (by_coefficient, by_surrogate)]
        yield same(by_coefficient, x.Es(effective_ratio(w, a, PAPER) * a), "corrected")
        yield same(by_surrogate, x.Es(open_gates(w, a, PAPER) * w * a), "corrected")
        yield corrected(wide_is_exact(x))
    yield printed(max(angles))
    yield numbers(updates=len(angles), median=median(angles), most=max(angles))
    yield numbers(largest_ratio=max(float(x.w.max()) for x in clipped_worlds()))


@claim("RPG-4.1-alg2")
def two_estimators_under_one_name() -> Iterator[Found]:
    """Eq (4.1) keeps a slope where it clips, the loss of appendix G.2 and algorithm 2 has none there."""
    shares, lost = [], []
    for x in clipped_worlds():
        w, a = x.w, advantage(x)
        by_coefficient, by_surrogate = _updates(x)
        shares.append(relative(by_surrogate, by_coefficient))
        yield printed(shares[-1])
        difference = (1 - open_gates(w, a, PAPER)) * effective_ratio(w, a, PAPER) * a
        yield same(by_surrogate - by_coefficient, x.Es(difference), "corrected")
        yield corrected(wide_is_exact(x))
        lost.append(float(x.E(closed(x))))
    yield numbers(worlds=len(shares), least=min(shares), most=max(shares))
    yield numbers(least_lost=min(lost), most_lost=max(lost))


def _clipped_ratio(w: torch.Tensor) -> torch.Tensor:
    """The ratio between the bounds, on both sides, held fixed."""
    return w.detach().clamp(PAPER.low, PAPER.high)


def _ratios_replaced(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """The loss of URKL with a stop-gradient and a clipped ratio in the place of w."""
    ratio = _clipped_ratio(w)
    return -(ratio * (r - BETA * ratio.log())) * logp


@claim("RPG-remF.2-clip")
def ratios_replaced_inside_the_weight() -> Iterator[Found]:
    """A weight of clipped ratios is a third estimator: clipped on both sides, its KL as well."""
    shares = []
    for x in clipped_worlds():
        sample, ratio = x.slope(_ratios_replaced), _clipped_ratio(x.w)
        unclipped = (ratio == x.w)[:, None, None]
        for loss in (surrogate_loss(PAPER, stopped=True), coefficient_loss(PAPER, stopped=True)):
            shares.append(relative(x.E(sample), x.grad(loss)))
            yield printed(shares[-1])
            yield same(sample * unclipped, x.slope(loss) * unclipped, "corrected")
        yield same(x.E(sample), -x.Es(ratio * (x.R - BETA * ratio.log())), "corrected")
        yield corrected(wide_is_exact(x))
    yield numbers(worlds=len(clipped_worlds()), least=min(shares), most=max(shares))
