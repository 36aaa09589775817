"""Section 8: one force from loss and reward, and what centering does to it (wang2025choosing)."""

from __future__ import annotations

import math
from typing import Literal

import torch

from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.off_policy import (
    all_worlds,
    centered,
    groups,
    in_loss,
    in_reward,
    k1,
    kl_gradient,
    near,
    times_score,
)
from kl_companion.claims.tang2025pitfalls.gradients import leave_one_out_gain
from kl_companion.claims.worlds import (
    apart,
    arms,
    bandits,
    differentiated,
    differs,
    less,
    mean,
    terms,
    trees,
    two_policies,
    variance,
    worst,
)
from kl_companion.rollout import credit
from kl_companion.tabular import Problem, draw_statistics

Centering = Literal["none", "mean", "leave_one_out"]


def grouped(problem: Problem, n: int, how: Centering, cost: torch.Tensor | None = None) -> torch.Tensor:
    """(1/n) sum of centered cost times score, of every group, [groups, rows, vocab]."""
    _, index = groups(problem, n)
    x = (k1(problem) if cost is None else cost)[index]
    return torch.einsum("gi,girv->grv", centered(x, how), terms(problem).score[index]) / n


def expected(problem: Problem, n: int, how: Centering, cost: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of `grouped` over all groups, [rows, vocab]."""
    return mean(groups(problem, n)[0], grouped(problem, n, how, cost))


def small_worlds() -> list[tuple[Problem, int]]:
    """Bandits and a tree with every group size that is quickly enumerated."""
    several = [(p, n) for p in bandits() for n in (2, 3) if len(p.sequences) ** n <= 250]
    return [*several, (trees()[0], 2), (trees()[0], 3), (two_policies((0.75, 0.25), (0.5, 0.5)), 6)]


@claim("WZ-8.1-equiv")
def loss_and_reward_are_one_vector() -> Evidence:
    """-beta rho s k1 from sg(rho) k2, from rho k3 and from k1 in the reward, for every sample."""
    errors = []
    for problem in all_worlds():
        vector = times_score(k1(problem), problem)
        same = (in_loss("k2", problem, "detached"), in_loss("k3", problem), in_reward("k1", problem))
        errors += [apart(x, vector) for x in same]
    return Evidence(
        worst(errors), condition="samples that are one decision or a whole sequence, with its ratio"
    )


@claim("WZ-8.2-gradform")
def both_columns_have_one_form() -> Evidence:
    """rho s k1 in the loss (k2 and k3 forms) and in the reward."""
    return loss_and_reward_are_one_vector()


@claim("WZ-8.1-nocentre")
def no_centering_is_unbiased() -> Evidence:
    """E[(1/n) sum g_i kl_i] = grad KL."""
    return Evidence(worst(apart(expected(p, n, "none"), kl_gradient(p)) for p, n in small_worlds()))


@claim("WZ-8.1-samebatch")
def the_batch_mean_takes_away_one_nth() -> Evidence:
    """Centered by the mean of the whole group, the expected gradient is (1 - 1/n) grad KL."""
    errors = [apart(expected(p, n, "mean"), (1 - 1 / n) * kl_gradient(p)) for p, n in small_worlds()]
    return Evidence(worst(errors), condition="shrunk by 1/n means: times 1 - 1/n")


def _direction(problem: Problem, n: int, beta: float, together: bool) -> float:
    """Distance of the expected update from that of a beta smaller by 1 - 1/n, up to a positive factor."""
    t, gain = terms(problem), problem.rewards
    reward = torch.tensordot(t.p * gain, t.score, 1)
    if together:  # A = r - mean(r) with r = R - beta kl, as GRPO centers
        found = expected(problem, n, "mean", gain - beta * k1(problem))
    else:
        found = expected(problem, n, "leave_one_out", gain) - beta * expected(problem, n, "mean")
    wanted = reward - beta * (1 - 1 / n) * kl_gradient(problem)
    return float(1 - (found * wanted).sum() / (found.norm() * wanted.norm()))


@claim("WZ-8.1-effbeta")
def a_smaller_effective_coefficient() -> Evidence:
    """True where the KL alone is centered so; centered with the reward, both shrink and beta stays."""
    several = [(p, n) for p, n in small_worlds() if p.logits.shape[-1] > 2 or len(p.logits) > 1]
    inside = worst(abs(_direction(p, n, 0.7, False)) for p, n in several)
    both = []
    for problem, n in several:
        t, shaped = terms(problem), problem.rewards - 0.7 * k1(problem)
        whole = torch.tensordot(t.p * shaped, t.score, 1)
        both.append(apart(expected(problem, n, "mean", shaped), (1 - 1 / n) * whole))
    problem, n = several[0]
    return Evidence(
        max(inside, violation(*(_direction(p, n, 0.7, True) for p, n in several))),
        corrected=worst(both),
        inside=inside,
        condition=(
            "the KL is centered by its batch mean and the reward is not (or by leave-one-out); where "
            "R - beta kl is centered as a whole, reward and KL shrink alike: a smaller step, the same beta"
        ),
        counterexample=(
            f"{len(problem.sequences)} arms, n = {n}, R - 0.7 kl centered as a whole: the expected update "
            "has "
            f"cosine {1 - _direction(problem, n, 0.7, True):.4f} with that of beta = 0.7 (1 - 1/n), and is "
            f"(1 - 1/n) times that of beta = 0.7 up to {both[0]:.1g}"
        ),
        correction="with the shaped reward centered as a whole, the step shrinks by 1 - 1/n and beta stays",
    )


@claim("WZ-8.1-LOO")
def leave_one_out_is_unbiased_and_of_less_variance() -> Evidence:
    """Unbiased for every n; the variance falls only beyond a number of samples, if at all."""
    field, formula, gains = [], [], []
    for problem, n in small_worlds():
        p, _ = groups(problem, n)
        field.append(apart(expected(problem, n, "leave_one_out"), kl_gradient(problem)))
        spread = [variance(p, grouped(problem, n, how)) for how in ("none", "leave_one_out")]
        gains.append(spread[0] - spread[1])
        formula.append(abs(n * gains[-1] - leave_one_out_gain(problem, n)) / (1 + spread[0]))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    p, _ = groups(small, 2)
    none, left = (variance(p, grouped(small, 2, how)) for how in ("none", "leave_one_out"))
    return Evidence(
        max(worst(field), violation(*(-g for g in gains))),
        inside=max(worst(field), worst(formula)),
        condition=(
            "unbiased always; less variance exactly where KL (2 E[l|s|^2] - KL E|s|^2) exceeds "
            "(Var(l) E|s|^2 + |grad KL|^2) / (n - 1), with l the log-ratio and s the score"
        ),
        counterexample=(
            f"policy (3/4, 1/4), reference (1/2, 1/2), n = 2: variance {none:.4f} without centering, "
            f"{left:.4f} with leave-one-out"
        ),
    )


@claim("WZ-8.1-negligible")
def the_shrinkage_is_small_beside_the_noise() -> Evidence:
    """The bias is 1/n of the gradient; in groups of 8 to 64 it is a small part of the error."""
    found, errors = draw_statistics("k1", arms(), placement="reward", baseline="mean"), []
    sizes = torch.tensor([8, 16, 64])
    at = found.at(sizes)
    bias, mse = torch.as_tensor(at.gradient_bias), torch.as_tensor(at.gradient_mse)
    truth = torch.as_tensor(found.target_gradient).flatten(1).norm(dim=-1)
    errors.append(apart(bias * sizes, truth[:, None].expand_as(bias)))
    share = (bias**2 / mse).amax(0)
    errors += [violation(float(share.max()) - 0.05), violation(*(share[1:] - share[:-1]).tolist())]
    return Evidence(
        worst(errors),
        condition=(
            "bandits of appendix C of tang2025pitfalls: the squared bias is at most "
            f"{100 * float(share[0]):.2f} "
            f"percent of the mean squared error at n = 8 and {100 * float(share[-1]):.3f} at n = 64; over "
            "many "
            "steps noise averages out and a bias does not"
        ),
    )


@claim("WZ-8.1-absorbed")
def a_baseline_absorbs_a_part() -> Evidence:
    """A baseline that does not see the sample leaves the expected force as it is; one that does takes 1/n."""
    inside, kept = [], []
    for problem, n in small_worlds():
        force, x = kl_gradient(problem).norm(), k1(problem)
        for baseline in (0.4, float((terms(problem).p * x).sum())):
            kept.append(float(expected(problem, n, "none", x - baseline).norm() / force))
        inside.append(abs(float(expected(problem, n, "mean").norm() / force) - (1 - 1 / n)))
    return Evidence(
        max(worst(inside), *(less(share, 1.0) for share in kept)),
        inside=worst(inside),
        condition=(
            "the baseline depends on the sample that it is subtracted from, as a batch mean does; any "
            "other one "
            "(the expected KL, a value of the state) changes each sample and not the expected force"
        ),
        counterexample=(
            f"a constant or the KL itself as the baseline, in all {len(inside)} worlds: the expected force "
            f"keeps {min(kept):.6f} to {max(kept):.6f} of its size"
        ),
    )


def standardized(x: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, over its standard deviation, [groups, n]."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-4)


def _kl_part(problem: Problem, n: int, rewards: torch.Tensor, how: str, placement: str) -> torch.Tensor:
    """What the KL adds to the update of every group: with beta minus without, [groups, rows, vocab]."""
    _, index = groups(problem, n)
    scores, beta, cost = terms(problem).score[index], 0.5, k1(problem)[index]
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
def the_loss_is_decoupled_and_the_reward_coupled() -> Evidence:
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
    return Evidence(
        max(worst(errors), worst(linear)),
        condition=(
            "the baseline changes the KL's part in the reward; the rewards themselves change it only "
            "where the "
            "advantage is not linear in them (divided by a standard deviation, clipped)"
        ),
    )


@claim("WZ-8.2-centering")
def absolute_and_relative_penalties() -> Evidence:
    """In the loss a sample's KL gradient depends on that sample alone; centered, on the whole group."""
    errors = []
    for problem, n in small_worlds():
        _, index = groups(problem, n)
        kl = k1(problem)[index]
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
    return Evidence(worst(errors))


@claim("WZ-8.2-credit")
def local_and_earlier_decisions() -> Evidence:
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
    return Evidence(
        worst(errors),
        condition=(
            "what flows back decides about the objective: the whole return gives the gradient of the KL of "
            "sequences, the local charge does not"
        ),
    )


@claim("WZ-8.2-suitable", how="reading")
def what_each_form_is_for() -> Evidence:
    """A recommendation; the facts behind it are the other rows of the table."""
    return Evidence(
        needs="a judgement",
        correction=(
            "without a baseline, both forms of a whole sample are one vector; they part where advantages are "
            "centered, scaled or spread over tokens"
        ),
    )


def critic_is_out(problem: Problem) -> float:
    """Error of "the loss's KL gradient is -beta k1 s, whatever rewards, baseline and scale come with it"."""
    p, index = groups(problem, 2)
    wanted = -0.5 * (k1(problem)[:, None, None] * terms(problem).score)[index].mean(1)
    errors = [apart(mean(p, wanted), -0.5 * kl_gradient(problem))]
    for rewards in (problem.rewards, -3 * problem.rewards.flip(0), problem.rewards + 10):
        for how in ("none", "leave_one_out", "standardized"):
            errors.append(apart(_kl_part(problem, 2, rewards, how, "loss"), wanted))
            errors.append(differs(_kl_part(problem, 2, rewards, "standardized", "reward"), wanted))
    return worst(errors)


@claim("WZ-8.1-independent")
def the_loss_knows_no_critic() -> Evidence:
    """The KL gradient of the loss is a function of k1 and the score alone, for every baseline."""
    return Evidence(worst(critic_is_out(near(p, math.log(3))) for p in (*bandits()[:6], trees()[0])))
