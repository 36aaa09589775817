"""Section 4.1 and appendices F.2 and G.2: three estimators under one name (zhang2025design)."""

from __future__ import annotations

import math
from statistics import median

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
from kl_book.ledger.claims.ledger import Evidence, claim

SETTING = rf"clipped at {PAPER.low} and {PAPER.high}, $c$ = {PAPER.cap:g}, URKL with $\beta$ = {BETA}"


@claim("RPG-eq4.1")
def the_stop_gradient_leaves_out_the_ratio() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        agrees_with="RPG-tab2-URKL",
        correction=(
            r"$-\E[\mathrm{SG}(C(w, A)) \log \pi]$, with the ratio inside the stop-gradient, as Table 2 and "
            "algorithm 2 have it."
        ),
        counterexample=(
            "as printed, a sample that is not clipped has the gradient $-wA(1 + \\log \\pi) \\nabla \\log "
            f"\\pi$: in {len(printed)} worlds the update is {min(printed):.0%} to {max(printed):.0%} away "
            "from the gradient with nothing clipped"
        ),
        practice=(
            f"$1 + \\log \\pi$ is negative for every sample of probability below {math.exp(-1):.2f}, in the "
            f"worlds tried up to {max(rare):.0%} of the samples: they are pushed the wrong way. The factor "
            f"of an answer of probability $10^{{-6}}$ is {1 + math.log(1e-6):.1f}."
        ),
    )


@claim("RPG-4.1-direction")
def a_clip_turns_the_update() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            "The clip keeps the sign of the contribution of every sample and changes its size: eq (4.1) with "
            r"a stopped $C$ puts the clipped ratio in the place of $w$, algorithm 2 leaves the sample out. "
            "The direction is kept while no ratio is clipped."
        ),
        counterexample=(
            f"{len(printed)} updates in worlds where a ratio is clipped, {SETTING}: the best positive "
            f"multiple of an update is {median(printed):.0%} away from the gradient in the median, and "
            f"{max(printed):.0%} in the worst world, where the update points against it"
        ),
        practice=(
            f"Section 6 and appendix G.1 say so themselves. The gradient is kept at the first mini-batch of "
            f"a rollout, where $w = 1$; these worlds have ratios up to "
            f"{max(float(log_weight(x).exp().max()) for x in clipped_worlds()):.1f}."
        ),
    )


@claim("RPG-4.1-alg2")
def two_estimators_under_one_name() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            r"They are one where nothing is clipped. A clipped sample contributes $C(w, A) \nabla \log \pi$ "
            "to eq (4.1) with a stopped $C$, as in CISPO, and nothing to the loss of appendix G.2 and to "
            "algorithm 2, as in PPO."
        ),
        counterexample=(
            f"{len(printed)} worlds, {SETTING}: with eq (4.1) read with a stopped $C$, the two updates "
            f"differ by {min(printed):.0%} to {max(printed):.0%}, where {min(lost):.0%} to {max(lost):.0%} "
            "of the samples are clipped"
        ),
        practice=(
            "In the released code of June 2026 algorithm 2's function is defined and never called: the "
            "scripts named after RPG-REINFORCE run the dual-clip loss of PPO, with the KL in the reward."
        ),
    )


@claim("RPG-remF.2-clip")
def ratios_replaced_inside_the_weight() -> Evidence:
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
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            r"It agrees with section 3.3 and with eq (4.1) for samples with $w$ inside $[1-\epsilon_1, "
            r"1+\epsilon_2]$, and with neither outside: $w$ is clipped on both sides for both signs of $A$, "
            "$c$ does not occur, and the KL is that of the clipped ratio."
        ),
        counterexample=(
            rf"{len(clipped_worlds())} worlds, {SETTING}, the ratio clipped to these bounds: "
            f"the update differs by {min(printed):.0%} to {max(printed):.0%} from those of section 3.3 (with "
            "$A$ held fixed) and eq (4.1) (with $C$ held fixed)"
        ),
        practice=(
            "The remark does not say how $w$ is clipped. The released code has this estimator too, under the "
            "suffix clip_hard, beside clip_ppo, which is algorithm 2 with the branches on the sign of the "
            "reward's part and the KL of the clipped ratio; no script runs either."
        ),
    )
