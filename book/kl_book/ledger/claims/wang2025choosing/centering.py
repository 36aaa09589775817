"""Section 8: one gradient from loss and reward, and what centering does to it (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, corrected, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import off_policy, sums
from kl_book.ledger.claims.ground.errors import apart, degree, turned, worst
from kl_book.ledger.claims.ground.groups import (
    Centering,
    centered,
    centered_gradient,
    groups,
    leave_one_out_gain,
    standardized,
    worlds_with_group_sizes,
)
from kl_book.ledger.claims.ground.world import SMALL, Enumeration, each
from kl_book.ledger.claims.ground.worlds import all_worlds, arms, bandits, hedge_bandits, hedge_trees, trees
from kl_book.ledger.claims.standard import DEGREE, TOLERANCE
from kl_companion.rollout import credit
from kl_companion.tabular import draw_statistics

Sized = tuple[Enumeration, int]


def sized() -> list[Sized]:
    """Small worlds, each with the size of its groups."""
    return [(Enumeration(problem), n) for problem, n in worlds_with_group_sizes()]


def expected(case: Sized, how: Centering, cost: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of `centered_gradient` over all groups, [rows, vocab]."""
    w, n = case
    return sums.mean(groups(w.problem, n)[0], centered_gradient(w.problem, n, how, cost))


@claim("WZ-8.1-equiv", over=each(all_worlds))
def loss_and_reward_are_one_vector(w: Enumeration) -> Iterator[Found]:
    """-beta rho s k1 from sg(rho) k2, from rho k3 and from k1 in the reward, for every sample."""
    for vector in (w.in_loss("k2", "detached"), w.in_loss("k3"), w.in_reward("k1")):
        yield same(vector, w.times_score(w.l))


@claim("WZ-8.1-nocentre", over=sized)
def no_centering_is_unbiased(case: Sized) -> Iterator[Found]:
    """E[(1/n) sum g_i kl_i] = grad KL."""
    yield same(expected(case, "none"), case[0].d_kl)


@claim("WZ-8.1-samebatch", over=sized)
def the_batch_mean_takes_away_one_nth(case: Sized) -> Iterator[Found]:
    """Centered by the mean of the whole group, the expected gradient is (1 - 1/n) grad KL."""
    yield same(expected(case, "mean"), (1 - 1 / case[1]) * case[0].d_kl)


BETA = 0.7
GRPO_GROUP = 64  # answers per question in shao2024deepseekmath


@claim("WZ-8.1-effbeta")
def a_smaller_effective_coefficient() -> Iterator[Found]:
    """With A = r - mean(r) of the shaped reward both parts shrink: the step is smaller, and beta stays.

    A KL that is left out of the mean, beside a reward that is centered so, makes beta larger by n / (n - 1).
    """
    errors = {}
    for case in sized():
        (w, n), rest = case, 1 - 1 / case[1]
        if w.problem.logits.numel() == 2:
            continue  # one free parameter: there is but one direction
        kl, reward = BETA * w.d_kl, w.Es(w.R)
        together = expected(case, "mean", w.R - BETA * w.l)
        errors[turned(together, reward - rest * kl)] = {"count": len(w.p), "n": n}
        yield same(together, rest * (reward - kl), "corrected")
        without = expected(case, "mean", w.R) - BETA * expected(case, "none")
        yield same(without, rest * (reward - kl / rest), "corrected")
        alone = expected(case, "leave_one_out", w.R) - BETA * expected(case, "mean")
        yield same(alone, reward - rest * kl, "inside", by=turned)
    yield printed(worst(errors))
    yield numbers(off=max(errors), **errors[max(errors)], BETA=BETA, GRPO_GROUP=GRPO_GROUP)
    yield numbers(larger_8=8 / 7 - 1, larger_GRPO=GRPO_GROUP / (GRPO_GROUP - 1) - 1)


@cache
def _drawn() -> tuple[Enumeration, ...]:
    return tuple(each(hedge_bandits, hedge_trees)())


def _leave_one_out_share(w: Enumeration, n: int) -> float:
    """Variance with leave-one-out over variance without centering, from moments of one draw."""
    return 1 - leave_one_out_gain(w.problem, n) / w.var(w.vanilla())


def _variances(case: Sized) -> tuple[float, float]:
    """Variance over all groups, without centering and with leave-one-out."""
    w, n = case
    chance, _ = groups(w.problem, n)
    none, left = (
        sums.variance(chance, centered_gradient(w.problem, n, how)) for how in ("none", "leave_one_out")
    )
    return none, left


@claim("WZ-8.1-LOO")
def leave_one_out_is_unbiased_and_of_less_variance() -> Iterator[Found]:
    """Unbiased for every n; the variance falls only beyond a number of samples, if at all."""
    higher, wrong = [], []
    for case in sized():
        (w, n), (none, left) = case, _variances(case)
        higher.append(left > none)
        moments = abs(n * (none - left) - leave_one_out_gain(w.problem, n)) / (1 + none)
        wrong.append(max(apart(expected(case, "leave_one_out"), w.d_kl), moments) > TOLERANCE)
    yield printed(off_policy.share_of_cases(higher))
    yield corrected(off_policy.share_of_cases(wrong))
    none, left = _variances((SMALL, 2))
    yield numbers(none=none, left=left, worlds=len(_drawn()), GRPO_GROUP=GRPO_GROUP)
    yield numbers(never=off_policy.share_of_cases(_leave_one_out_share(w, 10**9) > 1 for w in _drawn()))
    for name, n in (("8", 8), ("GRPO", GRPO_GROUP)):
        shares = torch.tensor([_leave_one_out_share(w, n) for w in _drawn()])
        yield numbers(**{f"fewer_{name}": (shares < 1).double().mean(), f"median_{name}": shares.median()})


@claim("WZ-8.1-negligible")
def the_shrinkage_is_small_for_large_groups() -> Iterator[Found]:
    """The bias is 1/n of the gradient: within a tenth in groups of 16 and of 64, beyond it in groups of 8."""
    statistics = draw_statistics("k1", arms(), placement="reward", baseline="mean")
    sizes = torch.tensor([8, 16, GRPO_GROUP])
    bias = torch.as_tensor(statistics.at(sizes).gradient_bias)
    lost = bias / torch.as_tensor(statistics.target_gradient).flatten(1).norm(dim=-1)[:, None]
    yield same(lost * sizes, 1.0)
    few, many, most = lost.amax(0).tolist()
    yield printed(worst((degree(many), degree(most))))
    yield numbers(few=few, many=many, most=most, GRPO_GROUP=GRPO_GROUP, DEGREE=DEGREE)


@claim("WZ-8.1-absorbed")
def a_baseline_absorbs_a_part() -> Iterator[Found]:
    """What is left of the KL in a sample's advantage is smaller; the expected gradient stays as it is."""
    absorbed = []
    for w, _ in sized():
        whole, left = float(w.E(w.l.square())), float(w.E((w.l - w.kl).square()))
        yield less(left, whole, by=1e-12)
        yield same(whole - left, w.kl**2)
        yield same(w.Es(w.l - w.kl), w.d_kl)
        absorbed.append((whole - left) / whole)
    yield numbers(least=min(absorbed), most=max(absorbed))


def _kl_part(case: Sized, rewards: torch.Tensor, how: str, placement: str) -> torch.Tensor:
    """What the KL adds to the update of every group: with beta minus without, [groups, rows, vocab]."""
    w, n = case
    _, index = groups(w.problem, n)
    cost = w.l[index]

    def advantage(x: torch.Tensor) -> torch.Tensor:
        return standardized(x) if how == "standardized" else centered(x, how)  # type: ignore[arg-type]

    def update(beta: float) -> torch.Tensor:
        if placement == "reward":
            return torch.einsum("gi,girv->grv", advantage(rewards[index] - beta * cost), w.s[index]) / n
        own = torch.einsum("gi,girv->grv", cost, w.s[index]) / n
        return torch.einsum("gi,girv->grv", advantage(rewards[index]), w.s[index]) / n - beta * own

    return update(0.5) - update(0.0)


@claim("WZ-8.2-coupling", over=lambda: [(Enumeration(bandits()[4]), 3), (Enumeration(trees()[0]), 2)])
def the_loss_is_decoupled_and_the_reward_coupled(case: Sized) -> Iterator[Found]:
    """The KL's part of the update: the same for every advantage in the loss, changed by it in the reward."""
    w, n = case
    chance, other = groups(w.problem, n)[0], w.R.flip(0) * 3
    loss = [_kl_part(case, r, how, "loss") for r in (w.R, other) for how in ("none", "standardized")]
    for part in loss:
        yield same(part, loss[0])
    plain, left, scaled = (
        _kl_part(case, w.R, how, "reward") for how in ("none", "leave_one_out", "standardized")
    )
    yield differs(left, plain)
    yield differs(scaled, left)
    for part in (loss[0], plain, left):
        yield same(sums.mean(chance, part), -0.5 * w.d_kl)
    yield differs(_kl_part(case, other, "standardized", "reward"), scaled)
    yield same(_kl_part(case, other, "leave_one_out", "reward"), left)


@claim("WZ-8.2-centering", over=sized)
def absolute_and_relative_penalties(case: Sized) -> Iterator[Found]:
    """In the loss a sample's KL gradient depends on that sample alone; centered, on the whole group."""
    w, n = case
    chance, index = groups(w.problem, n)
    kl, alone = w.l[index], w.in_loss("k3")[index]
    relative = centered(kl, "mean")[..., None, None] * w.s[index]
    first = index[:, 0] == 0  # groups that share their first sample
    yield same(alone[first, 0], alone[first, 0][0])
    yield differs(relative[first, 0], relative[first, 0][0].expand_as(relative[first, 0]))
    yield same(sums.mean(chance, alone.mean(1)), w.d_kl)
    yield same(sums.mean(chance, relative.mean(1)), (1 - 1 / n) * w.d_kl)
    yield same(centered(kl + 7.0, "mean"), centered(kl, "mean"))


@claim("WZ-8.2-credit", over=each(trees))
def local_and_earlier_decisions(w: Enumeration) -> Iterator[Found]:
    """The loss per token charges a token with its own log-ratio; the return adds the later ones."""
    local = w.slope("k2", per_token=True)
    own, ahead = (
        w.tokens(credit(w.t.log_ratio, w.problem.completion_mask, discount=discount))
        for discount in (0.0, 1.0)
    )
    yield same(own, local)
    yield differs(ahead, local)
    yield same(w.E(ahead), w.d_kl)
    yield differs(w.E(local), w.d_kl)


@claim(
    "WZ-8.1-independent",
    over=lambda: [Enumeration(p).near(math.log(3)) for p in (*bandits()[:6], trees()[0])],
)
def the_loss_knows_no_critic(w: Enumeration) -> Iterator[Found]:
    """The KL gradient of the loss is -beta k1 s, whatever rewards, baseline and scale come with it."""
    chance, index = groups(w.problem, 2)
    own = -0.5 * w.vanilla()[index].mean(1)
    yield same(sums.mean(chance, own), -0.5 * w.d_kl)
    for rewards in (w.R, -3 * w.R.flip(0), w.R + 10):
        for how in ("none", "leave_one_out", "standardized"):
            yield same(_kl_part((w, 2), rewards, how, "loss"), own)
        yield differs(_kl_part((w, 2), rewards, "standardized", "reward"), own)
