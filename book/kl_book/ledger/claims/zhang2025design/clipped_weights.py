"""Section 4.1 and appendices F.2 and G.2: three estimators under one name (zhang2025design)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.dual_clip import PAPER, WIDE, effective_ratio, open_gates
from kl_book.ledger.claims.ground.errors import apart, relative, turned, worst
from kl_book.ledger.claims.ground.rpg_losses import (
    advantage,
    clipped_worlds,
    coefficient_loss,
    surrogate_loss,
    wide_is_exact,
)
from kl_book.ledger.claims.ground.sums import field, terms
from kl_book.ledger.claims.ground.unnormalized import (
    BETA,
    log_policy,
    log_weight,
    loss_gradients,
    normalized,
    objective_gradient,
    surrogate_gradient,
)

SETTING = rf"clipped at {PAPER.low} and {PAPER.high}, $c$ = {PAPER.cap:g}, URKL with $\beta$ = {BETA}"


@claim("RPG-eq4.1")
def the_stop_gradient_leaves_out_the_ratio() -> Iterator[Found]:
    """As printed only A is detached, and the gradient is that of a sample times 1 + log pi."""
    printed, corrected, rare = [], [], []
    for world in normalized():
        wanted, p = objective_gradient(world, "URKL"), terms(world.problem).p
        open_form = surrogate_gradient(world, coefficient_loss(WIDE, stopped=False))
        printed.append(relative(open_form, -wanted))
        corrected.append(wide_is_exact(world))
        logp = log_policy(world)
        weight = log_weight(world).exp() * advantage(world) * (1 + logp)
        corrected.append(apart(open_form, -field(weight, world.problem)))
        rare.append(float(p[logp < -1].sum()))
    yield from each_form(
        worst(printed),
        worst(corrected),
        number_of_printed=len(printed),
        min_printed=min(printed),
        max_printed=max(printed),
        number=math.exp(-1),
        max_rare=max(rare),
        number_2=1 + math.log(1e-6),
    )


@claim("RPG-4.1-direction")
def a_clip_turns_the_update() -> Iterator[Found]:
    """No positive multiple of the clipped updates is the gradient, in either form."""
    printed, corrected = [], []
    for world in clipped_worlds():
        wanted, w, a = objective_gradient(world, "URKL"), log_weight(world).exp(), advantage(world)
        by_coefficient = -surrogate_gradient(world, coefficient_loss(PAPER, stopped=True))
        by_surrogate = -surrogate_gradient(world, surrogate_loss(PAPER, stopped=True))
        if len(w) > 2:  # with two answers there is but one direction
            printed += [turned(by_coefficient, wanted), turned(by_surrogate, wanted)]
        corrected.append(apart(by_coefficient, field(effective_ratio(w, a, PAPER) * a, world.problem)))
        corrected.append(apart(by_surrogate, field(open_gates(w, a, PAPER) * w * a, world.problem)))
        corrected.append(wide_is_exact(world))
    yield from each_form(
        worst(printed),
        worst(corrected),
        number_of_printed=len(printed),
        median_printed=median(printed),
        max_printed=max(printed),
        max=max(float(log_weight(x).exp().max()) for x in clipped_worlds()),
    )


@claim("RPG-4.1-alg2")
def two_estimators_under_one_name() -> Iterator[Found]:
    """Eq (4.1) keeps a slope where it clips, the loss of appendix G.2 and algorithm 2 has none there."""
    printed, corrected, lost = [], [], []
    for world in clipped_worlds():
        w, a = log_weight(world).exp(), advantage(world)
        by_coefficient = surrogate_gradient(world, coefficient_loss(PAPER, stopped=True))
        by_surrogate = surrogate_gradient(world, surrogate_loss(PAPER, stopped=True))
        printed.append(relative(by_surrogate, by_coefficient))
        closed = (1 - open_gates(w, a, PAPER)) * effective_ratio(w, a, PAPER) * a
        corrected.append(apart(by_surrogate - by_coefficient, field(closed, world.problem)))
        corrected.append(wide_is_exact(world))
        lost.append(float(terms(world.problem).p @ (1 - open_gates(w, a, PAPER))))
    yield from each_form(
        worst(printed),
        worst(corrected),
        number_of_printed=len(printed),
        min_printed=min(printed),
        max_printed=max(printed),
        min_lost=min(lost),
        max_lost=max(lost),
    )


@claim("RPG-remF.2-clip")
def ratios_replaced_inside_the_weight() -> Iterator[Found]:
    """A weight of clipped ratios is a third estimator: clipped on both sides, its KL as well."""
    printed, corrected = [], []
    for world in clipped_worlds():
        w, r = log_weight(world).exp(), world.problem.rewards
        replaced = w.clamp(PAPER.low, PAPER.high)
        found = loss_gradients(
            world,
            lambda logp, _, r, x=replaced: -(x * (r - BETA * x.log())).detach() * logp,  # type: ignore[misc]
        )
        others = [
            loss_gradients(world, surrogate_loss(PAPER, stopped=True)),
            loss_gradients(world, coefficient_loss(PAPER, stopped=True)),
        ]
        p, inside = terms(world.problem).p[:, None, None], (replaced == w)[:, None, None]
        printed += [relative((p * found).sum(0), (p * other).sum(0)) for other in others]
        corrected += [apart(found * inside, other * inside) for other in others]
        by_hand = replaced * (r - BETA * replaced.log())
        corrected.append(apart((p * found).sum(0), -field(by_hand, world.problem)))
        corrected.append(wide_is_exact(world))
    yield from each_form(
        worst(printed),
        worst(corrected),
        number=len(clipped_worlds()),
        min_printed=min(printed),
        max_printed=max(printed),
    )
