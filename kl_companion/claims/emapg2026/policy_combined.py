"""Appendix J.3 and J.4: K5, K3, K3++ and K4 as policy gradients (emapg2026).

Coefficients of the score come from automatic differentiation, as in J.2.
"""

from __future__ import annotations

import torch

from kl_companion.claims.emapg2026.policy_gradients import ANSWERS, WORLD
from kl_companion.claims.emapg2026.policy_squares import HALF, square, twice
from kl_companion.claims.emapg2026.rollout_groups import (
    SIZES,
    at_target,
    first,
    group,
    log_w,
    log_z,
    reward_gradient,
    rollouts,
    slope,
    small,
    summed,
    to_target,
)
from kl_companion.claims.emapg2026.table_one import k1, k2, k3, k3_plus_plus, k4, k5
from kl_companion.claims.emapg2026.weights import at_optimum
from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.worlds import apart, field, less, log_ratio, terms, worst
from kl_companion.tabular import Problem


@claim("EMA-J3")
def gradient_of_k5() -> Evidence:
    """Per sample (1 - w) s: the printed -w s has the same mean."""
    printed, inside = [], []
    for problem in rollouts():
        w, c = log_w(problem).exp(), at_target(k5, problem)
        printed.append(apart(c, -w))
        inside += [apart(c, 1 - w), apart(field(-w, problem), to_target(problem, forward=True)[1])]
        inside.append(apart(field(c, problem), field(-w, problem)))
    best = at_optimum(small())
    inside.append(apart(at_target(k5, best), 0.0))
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition="in expectation: the score that log r adds is dropped, a baseline of mean 0",
        counterexample=(
            "pi = pi*, any rollout: the derivative of K5 has the coefficient "
            f"{abs(float(at_target(k5, best)[0])):.4f}, the printed one {-float(log_w(best)[0].exp()):.4f}"
        ),
    )


@claim("EMA-J3+softmax")
def softmax_over_the_group() -> Evidence:
    """-(1/N) sum s_i w_i with the Z of eq (143) is -sum s_i softmax_i in every group; biased at finite N."""
    errors, shares = [], []
    for problem in rollouts():
        wanted = to_target(problem, forward=True)[1]
        biases = []
        for size in (*SIZES, 4):
            g = group(problem, size)
            share = (g.reward - g.log_ratio).softmax(-1)
            errors.append(apart(share, (g.reward - g.log_ratio - g.log_z).exp() / size))
            undone = (g.log_z - log_z(problem)).exp()
            errors.append(apart(summed(-share * undone, problem, g), wanted))
            biases.append(float((summed(-share, problem, g) - wanted).norm() / wanted.norm()))
        errors += [less(biases[1], biases[0]), less(biases[2], biases[1])]
        shares.append(biases)
    said = ", ".join(f"{b:.0%}" for b in shares[3])
    return Evidence(
        worst(errors),
        condition=(
            "in every group. As an estimate of the gradient of KL(pi*||pi) it is biased, because the own "
            f"weight is in Z: with four random answers by {said} of its length at N = 2, 3, 4"
        ),
    )


@claim("EMA-J3-mean")
def batched_form() -> Evidence:
    """The line above has -sum; the batched form has the mean, and no minus."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted = to_target(problem, forward=True)[1]
        for size in SIZES:
            g = group(problem, size)
            share = (g.reward - g.log_ratio).softmax(-1)
            line = summed(-(g.reward - g.log_ratio - g.log_z).exp(), problem, g) / size
            undone = (g.log_z - log_z(problem)).exp()
            printed.append(apart(summed(share, problem, g) / size, line))
            corrected += [apart(summed(-share, problem, g), line)]
            corrected.append(apart(summed(-share * undone, problem, g), wanted))
    g = group(small(), 2)
    found = first(summed((g.reward - g.log_ratio).softmax(-1), small(), g))
    return Evidence(
        worst(printed),
        worst(corrected),
        agrees_with="EMA-J3+softmax",
        correction=(
            "minus the sum over the group: softmax holds the 1/N already. As a direction to ascend the "
            "printed form is right up to its length, 1/N of the other"
        ),
        counterexample=(
            f"{WORLD}, N = 2: the line above has the mean {-found:.4f}, the batched form {found / 2:+.4f}"
        ),
    )


@claim("EMA-J3-mean+rwr")
def regression_on_rewards() -> Evidence:
    """With pi = ref the weights are softmax(R), those of RWR and MPO; elsewhere they carry ref/pi."""
    printed: list[float] = []
    inside: list[float] = []
    for problem in rollouts():
        here = problem._replace(logits=problem.ref_logits)
        w = (here.rewards - log_z(here)).exp()
        inside.append(apart(field(-w, here), to_target(here, forward=True)[1]))
        for size in SIZES:
            for world, errors in ((here, inside), (problem, printed)):
                g = group(world, size)
                weights = g.reward.exp() / g.reward.exp().sum(-1, keepdim=True)
                errors.append(apart((g.reward - g.log_ratio).softmax(-1), weights))
    r, x = small().rewards, small().rewards - log_ratio(small())
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "the policy that samples is the anchor, as in MPO, whose target is the old policy times e^Q, and "
            "in RWR. Away from it the weights carry the factor ref/pi"
        ),
        counterexample=(
            f"{ANSWERS}, a group of both: weights {two(x.softmax(-1))}, by the rewards alone "
            f"{two(r.softmax(-1))}"
        ),
    )


def two(x: torch.Tensor) -> str:
    """Numbers in a bracket."""
    return "(" + ", ".join(f"{float(v):.3g}" for v in x) + ")"


def softmax_sum(problem: Problem, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Expected -sum s softmax over the group, and the mean gradient of K5 with the Z of eq (143)."""
    g = group(problem, size)
    logp = terms(problem).logp.sum(-1)[g.drawn]
    target = logp - g.log_ratio + g.reward - g.log_z
    by_k5 = summed(slope(k5, logp, target), problem, g) / size
    return summed(-(g.reward - g.log_ratio).softmax(-1), problem, g), by_k5


def summed_not_averaged() -> Evidence:
    """-s softmax of one rollout is 1/N of the gradient; the sum over the group is the mean K5 gradient."""
    printed, inside = [], []
    for problem in rollouts():
        for size in SIZES:
            total, by_k5 = softmax_sum(problem, size)
            printed.append(apart(total / size, by_k5))
            inside.append(apart(total, by_k5))
        inside.append(apart(field(at_target(k5, problem), problem), to_target(problem, forward=True)[1]))
    mean_of_k5 = first(softmax_sum(small(), 2)[0])
    return Evidence(
        worst([*printed, *inside]),
        inside=worst(inside),
        condition=(
            "it is summed over the N rollouts of a prompt, not averaged like the other losses, since N "
            "softmax is w; in expectation, as the score of log r is dropped; and up to the bias of the "
            "group's Z"
        ),
        counterexample=(
            f"{WORLD}, N = 2: K5 has the mean {mean_of_k5:.4f}, the printed one {mean_of_k5 / 2:.4f} per "
            "rollout"
        ),
    )


@claim("EMA-eq149")
def k5_as_rwr() -> Evidence:
    """See `summed_not_averaged`."""
    return summed_not_averaged()


@claim("EMA-eq150")
def k3_as_a_sum() -> Evidence:
    """grad K3 is (1 - w) s: that of KL(pi*||pi); a REINFORCE term is not in it."""
    printed, corrected = [], []
    for problem in rollouts():
        c, w = at_target(k3, problem), log_w(problem).exp()
        claimed = -(problem.rewards - log_z(problem)) - w
        printed += [apart(c, claimed), apart(field(c, problem), field(claimed, problem))]
        corrected += [apart(c, 1 - w), apart(field(c, problem), to_target(problem, forward=True)[1])]
        corrected += [apart(c, at_target(k1, problem) - w), apart(c, at_target(k5, problem))]
    claimed = -(small().rewards - log_z(small())) - log_w(small()).exp()
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            "(1 - w) grad log pi, K5's gradient sample by sample: KL(pi*||pi) alone, and the reward enters "
            "through w only. As a sum of derivatives L1 + L5 it is right, with grad L1 = grad log pi, of "
            "mean 0"
        ),
        counterexample=(
            f"{WORLD}: K3 has the expected gradient {first(to_target(small(), forward=True)[1]):.4f}, the "
            f"printed sum {first(field(claimed, small())):.4f}"
        ),
    )


@claim("EMA-eq151")
def k3_plus_plus_as_a_sum() -> Evidence:
    """grad K3++ is (l - R + log Z) s, that of K2 alone; the printed sum has a REINFORCE term on top."""
    printed, corrected = [], []
    for problem in rollouts():
        c, wanted = at_target(k3_plus_plus, problem), to_target(problem)[1]
        claimed = -(problem.rewards - log_z(problem)) - log_w(problem)
        printed += [apart(c, claimed), apart(field(claimed, problem), wanted)]
        corrected += [apart(c, at_target(k2, problem)), apart(c, -log_w(problem))]
        corrected.append(apart(field(c, problem), wanted))
        corrected.append(apart(field(claimed, problem), wanted - reward_gradient(problem)))
    claimed = -(small().rewards - log_z(small())) - log_w(small())
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            f"grad L3++ = grad L2, sample by sample, with {HALF}: K3++ is APA alone. The printed sum counts "
            "the reward twice"
        ),
        counterexample=(
            f"{WORLD}: K3++ has the expected gradient {first(to_target(small())[1]):.4f}, the printed sum "
            f"{first(field(claimed, small())):.4f}"
        ),
    )


def k4_and_the_square(printed_square: torch.Tensor, problem: Problem) -> tuple[list[float], list[float]]:
    """Errors of "K4 has this gradient", and of "K4 has that of K2 with its half"."""
    c, wanted = at_target(k4, problem), to_target(problem)[1]
    outside = [apart(field(c, problem), field(printed_square, problem))]
    inside = [apart(c, -log_w(problem)), apart(c, at_target(k2, problem)), apart(field(c, problem), wanted)]
    return outside, inside


@claim("EMA-eq152")
def k4_as_k2() -> Evidence:
    """(l - R + log Z) s sample by sample: K2's gradient with its half, half of the printed one."""
    found = [k4_and_the_square(at_target(square, p), p) for p in rollouts()]
    inside = [e for _, errors in found for e in errors]
    return Evidence(
        worst([*inside, *(e for errors, _ in found for e in errors)]),
        inside=worst(inside),
        condition=(
            "L2 is the derivative of K2 as it stands, 1/2 included, which eq (148) leaves out on the right"
        ),
        counterexample=twice(at_target(square, small()), small()),
    )
