"""Sections 7 and 9.3: the estimate as a detached part of the reward, step by step too (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim, claim_rows, words
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, regardless, rises, same
from kl_book.ledger.claims.ground import learning, spreads, sums
from kl_book.ledger.claims.ground.errors import apart
from kl_book.ledger.claims.ground.groups import (
    centered_gradient,
    groups,
    standardized,
    worlds_with_group_sizes,
)
from kl_book.ledger.claims.ground.sequences import sum_from_here, values_of_prefixes
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import all_worlds, sampled_elsewhere, trees, worlds
from kl_companion.tabular import Problem, prefix_tree

BETA = 0.3


def _unseen(x: torch.Tensor, w: Enumeration) -> torch.Tensor:
    """What is left of a function of the sequences after its least-squares fit by the scores, [count]."""
    weight, scores = (w.p * w.rho).sqrt(), w.s.flatten(1)
    return x - scores @ (torch.linalg.pinv(weight[:, None] * scores) @ (weight * x))


def _objective_gradient(w: Enumeration) -> torch.Tensor:
    """Gradient of the expected reward less `BETA` times the KL, [rows, vocab]."""
    return torch.tensordot(w.pi * w.R, w.s, 1) - BETA * w.d_kl


@claim("WZ-7.1-condition", over=each(all_worlds))
def condition_on_a_detached_estimate(w: Enumeration) -> Iterator[Found]:
    """The update is right exactly where E[s k] = E[s k1]: tested on estimates on both sides of it.

    Right are k1 plus a constant and k1 plus any function whose projection on the score is taken away.
    """
    wrong = [w.value(k) for k in ("k3", "k2")]
    right = [w.l + 3, *(w.l + _unseen(k, w) for k in wrong)]
    for i, k in enumerate((*right, *wrong)):
        update, pull = w.E(w.times_score(w.R - BETA * k)), w.E(w.times_score(k))
        off = apart(update, _objective_gradient(w))
        yield same(BETA * apart(pull, w.d_kl), off)
        yield same(off, 0.0) if i < len(right) else differs(off, 0.0)


@claim("WZ-7.1-k1", over=each(all_worlds))
def log_ratio_in_the_reward(w: Enumeration) -> Iterator[Found]:
    """E[s k1] = grad KL(q||p)."""
    yield same(w.E(w.in_reward("k1")), w.d_kl)


def _of_second_order(w: Enumeration, estimator: str) -> Iterator[Found]:
    """The update is not the gradient of the KL, and of second order near the reference."""
    yield differs(w.E(w.in_reward(estimator)), w.d_kl)
    for close in (w.near(0.02), w.near(0.01)):
        size = close.E(close.in_reward(estimator)).norm() / close.d_kl.norm()
        yield less(float(size) / float(close.l.abs().max()), 2.0, by=0.0)


@claim("WZ-7.1-k3", over=each(worlds))
def reduced_value_in_the_reward(w: Enumeration) -> Iterator[Found]:
    """E[s k3] = grad KL(q||p) - grad KL(p||q)."""
    yield same(w.E(w.in_reward("k3")), w.d_kl - w.d_forward)
    yield from _of_second_order(w, "k3")


@claim("WZ-7.1-k2", over=each(worlds))
def half_square_in_the_reward(w: Enumeration) -> Iterator[Found]:
    """E[s k2] = grad E_q[k2] - grad KL(q||p), which is not grad KL(q||p)."""
    yield same(w.E(w.in_reward("k2")), w.d_square - w.d_kl)
    yield from _of_second_order(w, "k2")


@claim("WZ-7.1-mixture")
def no_pure_regularization_is_left() -> Iterator[Found]:
    """k3 in the reward minimizes KL(q||p) - KL(p||q), which falls without bound as q loses an arm of p."""
    lost = [two((1 - d, d), (0.5, 0.5)) for d in (1e-2, 1e-20, 1e-200)]
    yield rises([w.forward - w.kl for w in lost], by=5.0 + 1e-6)
    for w in each(worlds)():
        yield from reduced_value_in_the_reward(w)
    yield printed(learning.training_is_unstable("k3"))


@claim("WZ-7.1-offpolicy", over=each(sampled_elsewhere))
def one_ratio_is_enough(w: Enumeration) -> Iterator[Found]:
    """Off-policy E_mu[rho s (R - beta k1)] is the gradient wanted; a second ratio on k1 spoils it."""
    yield same(w.E(w.times_score(w.R - BETA * w.l)), _objective_gradient(w))
    yield differs(w.E(w.times_score(w.R - BETA * w.rho * w.l)), _objective_gradient(w))
    yield differs(w.E(w.in_reward("k3")), w.d_kl)


@claim("WZ-7.1-shah")
def stable_and_unstable_training() -> Iterator[Found]:
    """The report is about language models; exact training on bandits shows the same split."""
    yield numbers()


def property_of_an_estimate(case: tuple[str, Callable[[str], float]]) -> Iterator[Found]:
    """An estimate has a property, such as an unbiased value, a wrong update or stable training."""
    name, error = case
    yield printed(error(name))


UNBIASED, BIASED = learning.value_is_unbiased, learning.value_is_biased
RIGHT, WRONG = learning.update_is_right, learning.update_is_wrong
STABLE, UNSTABLE = learning.training_is_stable, learning.training_is_unstable
TABLE = {
    "WZ-7.2-k1": [("k1", UNBIASED), ("k1", RIGHT), ("k1", STABLE)],
    "WZ-7.2-k2": [("k2", BIASED), ("k2", WRONG), ("k2", UNSTABLE)],
    "WZ-7.2-k3": [("k3", UNBIASED), ("k3", WRONG), ("k3", UNSTABLE)],
}
claim_rows(property_of_an_estimate, TABLE)


@words("WZ-7.1-shah", *TABLE)
def _training() -> dict[str, float]:
    return learning.training_numbers("k1", "k2", "k3")


@claim("WZ-9.3-k1")
def nine_three_k1() -> Iterator[Found]:
    """k1: unbiased value, right update, a variance above that of k3."""
    yield from regardless(learning.value_is_unbiased("k1"))
    yield from regardless(learning.update_is_right("k1"))
    yield from spreads.smaller_variances("k3")


@claim("WZ-9.3-k2", over=each(worlds))
def nine_three_k2(w: Enumeration) -> Iterator[Found]:
    """k2: biased value, wrong update."""
    yield differs(w.bias("k2"), 0.0, by=1e-9)
    yield from half_square_in_the_reward(w)


@claim("WZ-9.3-k3")
def nine_three_k3() -> Iterator[Found]:
    """k3: unbiased value of low variance; its update is off by -grad KL(p||q), and can collapse."""
    yield from regardless(learning.value_is_unbiased("k3"))
    yield from regardless(learning.training_is_unstable("k3"))
    for w in each(worlds)():
        yield from regardless(same(w.E(w.in_reward("k3")) - w.d_kl, -w.d_forward).error)
    yield from spreads.smaller_variances("k3")


@claim("WZ-9.4-axes", over=each(worlds))
def value_and_gradient_are_two_axes(w: Enumeration) -> Iterator[Found]:
    """All four combinations of an unbiased value and a right gradient occur."""
    yield same(w.bias("k1"), 0.0)
    yield same(w.E(w.in_reward("k1")), w.d_kl)
    yield same(w.bias("k3"), 0.0)
    yield differs(w.E(w.in_reward("k3")), w.d_kl)
    yield differs(w.bias("k2"), 0.0, by=1e-9)
    yield same(w.grad("k2"), w.d_kl)
    yield differs(w.E(w.in_reward("k2")), w.d_kl)


@cache
def steps_elsewhere() -> tuple[Problem, ...]:
    """Trees that another policy samples."""
    drawn = [prefix_tree(3, 2, seed=s, off_policy=True, scale=2.0) for s in range(3)]
    return (*(p for p in sampled_elsewhere() if p.rows.shape[1] > 1), *drawn)


def _expected_cost(w: Enumeration) -> torch.Tensor:
    """Mean under the policy of the log-ratios from each token on, given all up to it, [count, length]."""
    cost, out = sum_from_here(w.t.log_ratio), []
    tokens = torch.where(w.problem.completion_mask > 0, w.problem.sequences, -1)
    for step in range(tokens.shape[1]):
        alike = (tokens[:, None, : step + 1] == tokens[None, :, : step + 1]).all(-1).double()
        out.append((alike @ (w.pi * cost[:, step])) / (alike @ w.pi))
    return torch.stack(out, dim=1)


def _errors(w: Enumeration) -> dict[str, float]:
    """Error of the update with each of four charges of a token: weighted log-ratios from it on."""
    problem, cost = w.problem, w.t.log_ratio
    ratio = (problem.token_logp(problem.logits) - problem.token_logp(problem.sampled_from)).exp()
    until = ratio.cumprod(-1)
    charges = {
        "own token": ratio * sum_from_here(cost),
        "own token, values": ratio * _expected_cost(w),
        "every step": sum_from_here(until * cost),
        "up to the token, values": until * _expected_cost(w),
    }
    return {name: apart(w.E(w.tokens(charge)), w.d_kl) for name, charge in charges.items()}


@claim("WZ-7.1-multistep")
def several_steps_need_weights_or_values() -> Iterator[Found]:
    """The token's own ratio is not enough; a ratio for every step is, or values after the token's product."""
    with_values = []
    for w in each(steps_elsewhere)():
        errors = _errors(w)
        yield less(0.0, errors["own token"])
        yield same(errors["every step"], 0.0)
        yield same(errors["up to the token, values"], 0.0)
        with_values.append(errors["own token, values"])
    for w in each(trees)():  # on-policy all of them are right
        for error in _errors(w).values():
            yield same(error, 0.0)
    yield numbers(least=min(with_values), most=max(with_values), trees=len(with_values))


def _advantages(w: Enumeration, critic: torch.Tensor, decay: float) -> torch.Tensor:
    """Generalized advantages of the log-ratios as costs, discount 1, [count, length]."""
    mask = w.problem.completion_mask
    value = critic[w.problem.rows] * mask
    later = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], dim=1)
    delta = (w.t.log_ratio + later - value) * mask
    out, running = [], torch.zeros_like(value[:, 0])
    for step in reversed(range(mask.shape[1])):
        running = delta[:, step] + decay * running
        out.append(running)
    return torch.stack(out[::-1], dim=1)


@claim("WZ-7.2-extra-bias")
def where_more_bias_comes_from() -> Iterator[Found]:
    """A wrong critic inside GAE and a division by the group's spread bias the update; a baseline does not."""
    for w in each(trees)():
        critic = values_of_prefixes(w.problem)
        wrong = critic + torch.sin(2.0 + torch.arange(len(critic)).double())
        for decay in (0.0, 0.5, 1.0):
            yield same(w.E(w.tokens(_advantages(w, critic, decay))), w.d_kl)
            learned = w.E(w.tokens(_advantages(w, wrong, decay)))
            yield same(learned, w.d_kl) if decay == 1.0 else differs(learned, w.d_kl, by=1e-3)
    cosines = []
    for problem, n in worlds_with_group_sizes():
        if problem.logits.numel() == 2:
            continue  # one free parameter: there is but one direction
        w, (chance, index) = Enumeration(problem), groups(problem, n)
        scaled = torch.einsum("g,gi,girv->rv", chance, standardized(w.l[index]), w.s[index])
        yield same(sums.mean(chance, centered_gradient(problem, n, "leave_one_out")), w.d_kl)
        cosines.append(float((scaled * w.d_kl).sum() / (scaled.norm() * w.d_kl.norm())))
    yield less(max(cosines), 1.0, by=1e-4)
    yield numbers(least=min(cosines), most=max(cosines))
