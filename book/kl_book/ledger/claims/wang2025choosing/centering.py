"""Section 8: one gradient from loss and reward, and what centering does to it (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, degree, differs, less, turned, worst
from kl_book.ledger.claims.ground.groups import (
    Centering,
    centered,
    centered_gradient,
    groups,
    leave_one_out_gain,
    standardized,
    worlds_with_group_sizes,
)
from kl_book.ledger.claims.ground.off_policy import in_loss, in_reward, share_of_cases, times_score
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    variance,
)
from kl_book.ledger.claims.ground.worlds import (
    all_worlds,
    arms,
    bandits,
    hedge_bandits,
    hedge_trees,
    near,
    trees,
    two_policies,
)
from kl_book.ledger.claims.standard import DEGREE, TOLERANCE
from kl_companion.rollout import credit
from kl_companion.tabular import Problem, draw_statistics


def expected(problem: Problem, n: int, how: Centering, cost: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of `centered_gradient` over all groups, [rows, vocab]."""
    return mean(groups(problem, n)[0], centered_gradient(problem, n, how, cost))


@claim("WZ-8.1-equiv")
def loss_and_reward_are_one_vector() -> Iterator[Found]:
    """-beta rho s k1 from sg(rho) k2, from rho k3 and from k1 in the reward, for every sample."""
    errors = []
    for problem in all_worlds():
        vector = times_score(log_ratio(problem), problem)
        same = (in_loss("k2", problem, "detached"), in_loss("k3", problem), in_reward("k1", problem))
        errors += [apart(x, vector) for x in same]
    yield from each_form(worst(errors))


@claim("WZ-8.1-nocentre")
def no_centering_is_unbiased() -> Iterator[Found]:
    """E[(1/n) sum g_i kl_i] = grad KL."""
    errors = (apart(expected(p, n, "none"), kl_gradient(p)) for p, n in worlds_with_group_sizes())
    yield from each_form(worst(errors))


@claim("WZ-8.1-samebatch")
def the_batch_mean_takes_away_one_nth() -> Iterator[Found]:
    """Centered by the mean of the whole group, the expected gradient is (1 - 1/n) grad KL."""
    errors = [
        apart(expected(p, n, "mean"), (1 - 1 / n) * kl_gradient(p)) for p, n in worlds_with_group_sizes()
    ]
    yield from each_form(worst(errors))


BETA = 0.7
GRPO_GROUP = 64  # answers per question in shao2024deepseekmath


@claim("WZ-8.1-effbeta")
def a_smaller_effective_coefficient() -> Iterator[Found]:
    """With A = r - mean(r) of the shaped reward both parts shrink: the step is smaller, and beta stays.

    A KL that is left out of the mean, beside a reward that is centered so, makes beta larger by n / (n - 1).
    """
    printed, corrected, inside, cases = [], [], [], []
    for problem, n in worlds_with_group_sizes():
        if problem.logits.shape[-1] == 2 and len(problem.logits) == 1:
            continue  # one free parameter: there is but one direction
        gain, kl, rest = problem.rewards, kl_gradient(problem), 1 - 1 / n
        reward = torch.tensordot(terms(problem).p * gain, terms(problem).score, 1)
        together = expected(problem, n, "mean", gain - BETA * log_ratio(problem))
        without = expected(problem, n, "mean", gain) - BETA * expected(problem, n, "none")
        printed.append(turned(together, reward - BETA * rest * kl))
        corrected.append(apart(together, rest * (reward - BETA * kl)))
        corrected.append(apart(without, rest * (reward - BETA / rest * kl)))
        alone = expected(problem, n, "leave_one_out", gain) - BETA * expected(problem, n, "mean")
        inside.append(turned(alone, reward - BETA * rest * kl))
        cases.append((len(problem.sequences), n, printed[-1]))
    count, n, off = max(cases, key=lambda case: case[2])
    larger = {size: size / (size - 1) - 1 for size in (8, GRPO_GROUP)}
    yield from each_form(
        worst(printed),
        corrected=worst(corrected),
        inside=worst(inside),
        count=count,
        n=n,
        BETA=BETA,
        off=off,
        larger_8=larger[8],
        larger_GRPO_GROUP=larger[GRPO_GROUP],
        GRPO_GROUP=GRPO_GROUP,
    )


@cache
def _drawn() -> tuple[Problem, ...]:
    return (*hedge_bandits(), *hedge_trees())


def _leave_one_out_share(problem: Problem, n: int) -> float:
    """Variance with leave-one-out over variance without centering, from moments of one draw."""
    t = terms(problem)
    return 1 - leave_one_out_gain(problem, n) / variance(t.p, log_ratio(problem)[:, None, None] * t.score)


@claim("WZ-8.1-LOO")
def leave_one_out_is_unbiased_and_of_less_variance() -> Iterator[Found]:
    """Unbiased for every n; the variance falls only beyond a number of samples, if at all."""
    printed, corrected = [], []
    for problem, n in worlds_with_group_sizes():
        p, _ = groups(problem, n)
        none, left = (variance(p, centered_gradient(problem, n, how)) for how in ("none", "leave_one_out"))
        printed.append(left > none)
        field = apart(expected(problem, n, "leave_one_out"), kl_gradient(problem))
        moments = abs(n * (none - left) - leave_one_out_gain(problem, n)) / (1 + none)
        corrected.append(max(field, moments) > TOLERANCE)
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    p, _ = groups(small, 2)
    none, left = (variance(p, centered_gradient(small, 2, how)) for how in ("none", "leave_one_out"))
    found = {n: [_leave_one_out_share(q, n) for q in _drawn()] for n in (8, GRPO_GROUP)}
    fewer = {n: share_of_cases(x < 1 for x in shares) for n, shares in found.items()}
    never = share_of_cases(_leave_one_out_share(q, 10**9) > 1 for q in _drawn())
    median = {n: float(torch.tensor(shares).median()) for n, shares in found.items()}
    yield from each_form(
        share_of_cases(printed),
        corrected=share_of_cases(corrected),
        none=none,
        left=left,
        number=len(_drawn()),
        fewer_8=fewer[8],
        fewer_GRPO_GROUP=fewer[GRPO_GROUP],
        GRPO_GROUP=GRPO_GROUP,
        median_8=median[8],
        median_GRPO_GROUP=median[GRPO_GROUP],
        never=never,
    )


@claim("WZ-8.1-negligible")
def the_shrinkage_is_small_for_large_groups() -> Iterator[Found]:
    """The bias is 1/n of the gradient: within a tenth in groups of 16 and of 64, beyond it in groups of 8."""
    found = draw_statistics("k1", arms(), placement="reward", baseline="mean")
    sizes = torch.tensor([8, 16, GRPO_GROUP])
    bias = torch.as_tensor(found.at(sizes).gradient_bias)
    truth = torch.as_tensor(found.target_gradient).flatten(1).norm(dim=-1)
    lost = bias / truth[:, None]
    few, *large = lost.amax(0).tolist()
    yield from each_form(
        max(apart(lost * sizes, torch.ones_like(lost)), worst(degree(x) for x in large)),
        large_0=large[0],
        large_1=large[1],
        GRPO_GROUP=GRPO_GROUP,
        few=few,
        DEGREE=DEGREE,
    )


@claim("WZ-8.1-absorbed")
def a_baseline_absorbs_a_part() -> Iterator[Found]:
    """What is left of the KL in a sample's advantage is smaller; the expected gradient stays as it is."""
    errors, absorbed = [], []
    for problem, _ in worlds_with_group_sizes():
        p, x = terms(problem).p, log_ratio(problem)
        kl = exact(reverse_kl, problem)[0]
        whole, left = float((p * x.square()).sum()), float((p * (x - kl).square()).sum())
        errors += [less(left, whole, by=1e-12), abs(whole - left - kl**2)]
        errors.append(apart(mean(p * (x - kl), terms(problem).score), kl_gradient(problem)))
        absorbed.append((whole - left) / whole)
    yield from each_form(worst(errors), min_absorbed=min(absorbed), max_absorbed=max(absorbed))


def _kl_part(problem: Problem, n: int, rewards: torch.Tensor, how: str, placement: str) -> torch.Tensor:
    """What the KL adds to the update of every group: with beta minus without, [groups, rows, vocab]."""
    _, index = groups(problem, n)
    scores, beta, cost = terms(problem).score[index], 0.5, log_ratio(problem)[index]
    advantage = {
        "none": lambda x: x,
        "leave_one_out": lambda x: centered(x, "leave_one_out"),
        "standardized": standardized,
    }[how]

    def update(beta: float) -> torch.Tensor:
        if placement == "reward":
            return torch.einsum("gi,girv->grv", advantage(rewards[index] - beta * cost), scores) / n
        own = torch.einsum("gi,girv->grv", cost, scores) / n
        return torch.einsum("gi,girv->grv", advantage(rewards[index]), scores) / n - beta * own

    return update(beta) - update(0.0)


@claim("WZ-8.2-coupling")
def the_loss_is_decoupled_and_the_reward_coupled() -> Iterator[Found]:
    """The KL's part of the update: the same for every advantage in the loss, changed by it in the reward."""
    errors, linear = [], []
    for problem, n in ((bandits()[4], 3), (trees()[0], 2)):
        one, other = problem.rewards, problem.rewards.flip(0) * 3
        loss = [_kl_part(problem, n, r, h, "loss") for r in (one, other) for h in ("none", "standardized")]
        errors += [apart(x, loss[0]) for x in loss]
        whole = -0.5 * kl_gradient(problem)
        errors.append(apart(mean(groups(problem, n)[0], loss[0]), whole))
        plain, left, scaled = (
            _kl_part(problem, n, one, h, "reward") for h in ("none", "leave_one_out", "standardized")
        )
        errors += [differs(left, plain), differs(scaled, left)]
        errors += [apart(mean(groups(problem, n)[0], x), whole) for x in (plain, left)]
        errors.append(differs(_kl_part(problem, n, other, "standardized", "reward"), scaled))
        linear += [apart(_kl_part(problem, n, other, "leave_one_out", "reward"), left)]
    yield from each_form(max(worst(errors), worst(linear)))


@claim("WZ-8.2-centering")
def absolute_and_relative_penalties() -> Iterator[Found]:
    """In the loss a sample's KL gradient depends on that sample alone; centered, on the whole group."""
    errors = []
    for problem, n in worlds_with_group_sizes():
        _, index = groups(problem, n)
        kl = log_ratio(problem)[index]
        alone = in_loss("k3", problem)[index]
        relative = centered(kl, "mean")[..., None, None] * terms(problem).score[index]
        same = index[:, 0] == 0  # groups that share their first sample
        errors.append(apart(alone[same, 0], alone[same, 0][0]))
        errors.append(differs(relative[same, 0], relative[same, 0][0].expand_as(relative[same, 0])))
        p = groups(problem, n)[0]
        errors.append(apart(mean(p, alone.mean(1)), kl_gradient(problem)))
        errors.append(apart(mean(p, relative.mean(1)), (1 - 1 / n) * kl_gradient(problem)))
        shifted = centered(kl + 7.0, "mean")
        errors.append(apart(shifted, centered(kl, "mean")))
    yield from each_form(worst(errors))


@claim("WZ-8.2-credit")
def local_and_earlier_decisions() -> Iterator[Found]:
    """The loss per token charges a token with its own log-ratio; the return adds the later ones."""
    errors = []
    for problem in trees():
        t = terms(problem)
        for discount, returns in ((0.0, False), (1.0, True)):
            charged = credit(t.log_ratio, problem.completion_mask, discount=discount)
            update = torch.einsum("it,itrv->irv", charged * problem.completion_mask, t.scores)
            local = differentiated("k2", problem, per_token=True)
            errors.append(differs(update, local) if returns else apart(update, local))
        ahead = torch.einsum(
            "it,itrv->irv", credit(t.log_ratio, problem.completion_mask, discount=1.0), t.scores
        )
        errors.append(apart(mean(t.p, ahead), kl_gradient(problem)))
        errors.append(differs(mean(t.p, differentiated("k2", problem, per_token=True)), kl_gradient(problem)))
    yield from each_form(worst(errors))


def critic_is_out(problem: Problem) -> float:
    """Error of "the loss's KL gradient is -beta k1 s, whatever rewards, baseline and scale come with it"."""
    p, index = groups(problem, 2)
    wanted = -0.5 * (log_ratio(problem)[:, None, None] * terms(problem).score)[index].mean(1)
    errors = [apart(mean(p, wanted), -0.5 * kl_gradient(problem))]
    for rewards in (problem.rewards, -3 * problem.rewards.flip(0), problem.rewards + 10):
        for how in ("none", "leave_one_out", "standardized"):
            errors.append(apart(_kl_part(problem, 2, rewards, how, "loss"), wanted))
            errors.append(differs(_kl_part(problem, 2, rewards, "standardized", "reward"), wanted))
    return worst(errors)


@claim("WZ-8.1-independent")
def the_loss_knows_no_critic() -> Iterator[Found]:
    """The KL gradient of the loss is a function of k1 and the score alone, for every baseline."""
    yield from each_form(worst(critic_is_out(near(p, math.log(3))) for p in (*bandits()[:6], trees()[0])))
