"""Appendix J.3 and J.4: K5, K3, K3++ and K4 as policy gradients (emapg2026).

Coefficients of the score come from automatic differentiation, as in J.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.ground.errors import apart, less, relative, worst
from kl_book.ledger.claims.ground.estimates import k1, k2, k3, k3_plus_plus, k4, k5
from kl_book.ledger.claims.ground.rollout_texts import (
    another_optimum,
    counted_twice,
    in_brackets,
)
from kl_book.ledger.claims.ground.rollouts import (
    GROUP_SIZE,
    SIZES,
    expected_sum,
    first_logit,
    group,
    kl_to_target,
    log_w,
    log_z,
    logp_slope,
    reward_gradient,
    rollouts,
    slope_at_target,
    two_answers,
)
from kl_book.ledger.claims.ground.sums import field, log_ratio, terms
from kl_companion.tabular import Problem


@claim("EMA-J3")
def gradient_of_k5() -> Iterator[Found]:
    """In expectation -w s, the gradient of KL(pi*||pi); per sample it is (1 - w) s."""
    errors = []
    for problem in rollouts():
        w, c = log_w(problem).exp(), slope_at_target(k5, problem)
        errors += [apart(field(c, problem), field(-w, problem)), apart(c, 1 - w)]
        errors.append(apart(field(-w, problem), kl_to_target(problem, forward=True)[1]))
    yield from each_form(worst(errors))


@claim("EMA-J3+softmax")
def softmax_over_the_group() -> Iterator[Found]:
    """-(1/N) sum s_i w_i with the Z of eq (143) is -sum s_i softmax_i in every group; biased at finite N."""
    errors, shares = [], []
    for problem in rollouts():
        wanted = kl_to_target(problem, forward=True)[1]
        biases = []
        for size in (*SIZES, 4):
            g = group(problem, size)
            share = (g.reward - g.log_ratio).softmax(-1)
            errors.append(apart(share, (g.reward - g.log_ratio - g.log_z).exp() / size))
            undone = (g.log_z - log_z(problem)).exp()
            errors.append(apart(expected_sum(-share * undone, problem, g), wanted))
            biases.append(float((expected_sum(-share, problem, g) - wanted).norm() / wanted.norm()))
        errors += [less(biases[1], biases[0]), less(biases[2], biases[1])]
        shares.append(biases)
    said = ", ".join(f"{b:.0%}" for b in shares[3])
    yield from each_form(worst(errors), said=said)


@claim("EMA-J3-mean")
def batched_form() -> Iterator[Found]:
    """The line above has -sum; the batched form has the mean, and no minus."""
    printed, corrected = [], []
    for problem in rollouts():
        wanted = kl_to_target(problem, forward=True)[1]
        for size in SIZES:
            g = group(problem, size)
            share = (g.reward - g.log_ratio).softmax(-1)
            line = expected_sum(-(g.reward - g.log_ratio - g.log_z).exp(), problem, g) / size
            undone = (g.log_z - log_z(problem)).exp()
            printed.append(relative(expected_sum(share, problem, g) / size, line))
            corrected += [apart(expected_sum(-share, problem, g), line)]
            corrected.append(apart(expected_sum(-share * undone, problem, g), wanted))
    g = group(two_answers(), 2)
    found = first_logit(expected_sum((g.reward - g.log_ratio).softmax(-1), two_answers(), g))
    yield from each_form(
        worst(printed), worst(corrected), number=-found, number_2=found / 2, GROUP_SIZE=GROUP_SIZE
    )


@claim("EMA-J3-mean+rwr")
def regression_on_rewards() -> Iterator[Found]:
    """A judgement; computed is where the weights are those of the two methods."""
    here = two_answers()._replace(logits=two_answers().ref_logits)
    same, x = ((p.rewards - log_ratio(p)).softmax(-1) for p in (here, two_answers()))
    yield numbers(in_brackets_same=in_brackets(same), in_brackets_x=in_brackets(x))


def softmax_sum(problem: Problem, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Expected -sum s softmax over the group, and the mean gradient of K5 with the Z of eq (143)."""
    g = group(problem, size)
    logp = terms(problem).logp.sum(-1)[g.drawn]
    target = logp - g.log_ratio + g.reward - g.log_z
    by_k5 = expected_sum(logp_slope(k5, logp, target), problem, g) / size
    return expected_sum(-(g.reward - g.log_ratio).softmax(-1), problem, g), by_k5


@claim("EMA-eq149")
def k5_as_rwr() -> Iterator[Found]:
    """-s softmax of one rollout is 1/N of the gradient; the sum over the group is the mean K5 gradient."""
    printed, inside = [], []
    for problem in rollouts():
        for size in SIZES:
            total, by_k5 = softmax_sum(problem, size)
            printed.append(relative(total / size, by_k5))
            inside.append(apart(total, by_k5))
        inside.append(
            apart(field(slope_at_target(k5, problem), problem), kl_to_target(problem, forward=True)[1])
        )
    mean_of_k5 = first_logit(softmax_sum(two_answers(), 2)[0])
    yield from each_form(
        worst([*printed, *inside]), inside=worst(inside), mean_of_k5=mean_of_k5, number=mean_of_k5 / 2
    )


@claim("EMA-eq150")
def k3_as_a_sum() -> Iterator[Found]:
    """grad K3 is (1 - w) s: that of KL(pi*||pi); a REINFORCE term is not in it."""
    printed, corrected = [], []
    for problem in rollouts():
        c, w = slope_at_target(k3, problem), log_w(problem).exp()
        claimed = -(problem.rewards - log_z(problem)) - w
        printed.append(relative(field(claimed, problem), field(c, problem)))
        corrected += [apart(c, 1 - w), apart(field(c, problem), kl_to_target(problem, forward=True)[1])]
        corrected += [apart(c, slope_at_target(k1, problem) - w), apart(c, slope_at_target(k5, problem))]
    claimed = -(two_answers().rewards - log_z(two_answers())) - log_w(two_answers()).exp()
    yield from each_form(
        worst(printed),
        worst(corrected),
        first_logit=first_logit(kl_to_target(two_answers(), forward=True)[1]),
        first_logit_2=first_logit(field(claimed, two_answers())),
        practice=another_optimum(),
    )


@claim("EMA-eq151")
def k3_plus_plus_as_a_sum() -> Iterator[Found]:
    """grad K3++ is (l - R + log Z) s, that of K2 alone; the printed sum has a REINFORCE term on top."""
    printed, corrected = [], []
    for problem in rollouts():
        c, wanted = slope_at_target(k3_plus_plus, problem), kl_to_target(problem)[1]
        claimed = -(problem.rewards - log_z(problem)) - log_w(problem)
        printed.append(relative(field(claimed, problem), wanted))
        corrected += [apart(c, slope_at_target(k2, problem)), apart(c, -log_w(problem))]
        corrected.append(apart(field(c, problem), wanted))
        corrected.append(apart(field(claimed, problem), wanted - reward_gradient(problem)))
    claimed = -(two_answers().rewards - log_z(two_answers())) - log_w(two_answers())
    yield from each_form(
        worst(printed),
        worst(corrected),
        first_logit=first_logit(kl_to_target(two_answers())[1]),
        first_logit_2=first_logit(field(claimed, two_answers())),
        practice=counted_twice(),
    )


@claim("EMA-eq152")
def k4_as_k2() -> Iterator[Found]:
    """(l - R + log Z) s sample by sample: K2's gradient."""
    errors = []
    for problem in rollouts():
        c, wanted = slope_at_target(k4, problem), kl_to_target(problem)[1]
        errors += [
            apart(c, -log_w(problem)),
            apart(c, slope_at_target(k2, problem)),
            apart(field(c, problem), wanted),
        ]
    yield from each_form(worst(errors))
