"""Sections 1.2 and 1.3: policies of eq (11), and what they maximize (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import Objective, reference, simplex_slopes
from kl_book.ledger.claims.ground.errors import apart, differs, less, violation, worst
from kl_book.ledger.claims.ground.group_objective import (
    group_penalty,
    group_rewards,
    in_logits,
    kl_from_reference,
    policy,
    printed_objective,
)
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.preferences import expected_preference, large_group_preference
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    two_policies,
)
from kl_companion.tabular import Problem

EPSILON = 0.2
BETA = 0.04


def _first_order(problem: Problem, beta: float, size: int) -> torch.Tensor:
    """A policy with (1 - (P_G - E P_G)/beta) pi = ref, found by damped steps, [count]."""
    p, ref = reference(problem), reference(problem)
    for _ in range(60):
        preference = expected_preference(problem.rewards, p, size)
        pairs = list(zip(ref.tolist(), preference.tolist(), strict=True))
        low, high = float(preference.max()), float(preference.max()) + beta
        while low < (middle := (low + high) / 2) < high:
            above = sum(q / (middle - x) for q, x in pairs) > 1 / beta
            low, high = (middle, high) if above else (low, middle)
        p = (p + beta * ref / (high - preference)) / 2
    return p / p.sum()


def _settled() -> Iterator[tuple[Problem, float, int]]:
    """Bandits at the policy that solves eq (11), with beta and the size of groups."""
    for problem in bandits()[3:5]:
        for beta, size in ((1.0, 2), (0.5, 3)):
            yield problem._replace(logits=_first_order(problem, beta, size).log()[None]), beta, size


@claim("VY-1.2-scaling")
def the_reference_is_scaled_by_the_preference() -> Iterator[Found]:
    """Where the gradient of eq (1) vanishes, pi / ref rises with P_G, as 1/(1 - x) and not as exp(x)."""
    errors = []
    for problem, beta, size in _settled():
        slopes = simplex_slopes(printed_objective(problem, size, beta), policy(problem))
        errors.append(apart(slopes, slopes.mean()))
        x = expected_preference(problem.rewards, policy(problem), size)
        x = (x - policy(problem) @ x) / beta
        scale = policy(problem) / reference(problem)
        errors.append(apart(in_logits(problem, beta * x - beta * (1 - 1 / scale)), 0.0))
        order = x.argsort()
        errors.append(violation(1e-6 - float(scale[order].diff().min())))
        pool = x.exp() * reference(problem)
        errors.append(differs(pool / pool.sum(), policy(problem)))
    yield from each_form(worst(errors))


Gap = Callable[[float], float]


def _balance(gap: Gap, ref: float, beta: float) -> float:
    """The probability of the better of two answers that solves eq (11), by bisection between ref and 1.

    ``gap``: P_G of the better answer minus that of the other, where the better one has the probability x.
    """
    low, high = ref, 1.0
    while low < (middle := (low + high) / 2) < high:
        above = gap(middle) > beta * (middle - ref) / (middle * (1 - middle))
        low, high = (middle, high) if above else (low, middle)
    return low


def _pair(x: float, ref: float) -> Problem:
    """Two answers with rewards 1 and 0, sampled from the policy itself."""
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return two_policies((x, 1 - x), (ref, 1 - ref))._replace(rewards=rewards)


def _certain(size: int | None) -> Gap:
    """The gap of rewards 1 and 0 in groups of this size, None for the limit of large ones."""
    rewards = torch.tensor([1.0, 0.0], dtype=torch.float64)

    def gap(x: float) -> float:
        p = torch.tensor([x, 1 - x], dtype=torch.float64)
        found = large_group_preference(rewards, p) if size is None else expected_preference(rewards, p, size)
        return float(found[0] - found[1])

    return gap


@claim("VY-1.2-practice")
def at_the_default_the_reward_decides() -> Iterator[Found]:
    """At beta = 0.04 the better of two answers gets more than half, whatever the reference gave it."""
    errors, lowest = [], 1.0
    for ref, size in product((0.01, 0.1, 0.5), (2, 8, None)):
        x = _balance(_certain(size), ref, BETA)
        lowest = min(lowest, x)
        errors.append(less(0.5, x))
        if size == 2:
            slopes = simplex_slopes(printed_objective(_pair(x, ref), size, BETA), policy(_pair(x, ref)))
            errors.append(apart(slopes[0], slopes[1]))
    narrow = {margin: _balance(lambda x, m=margin: m, 0.1, BETA) for margin in (0.05, 0.2)}  # type: ignore[misc]
    said = " and ".join(f"{x:.2f} at a margin of {margin}" for margin, x in narrow.items())
    yield from each_form(worst(errors), lowest=lowest, said=said)


REFERENCES, RATIOS = (0.001, 0.01, 0.1, 0.5), (0.04, 0.3, 0.7, 1.0, 1.5)


def _candidates(x: float, ref: float) -> torch.Tensor:
    """Policies over two answers: near x, near the reference and between, [policies, 2]."""
    between = torch.linspace(-6, 6, 7, dtype=torch.float64).sigmoid()
    near = torch.tensor([0.95 * x, x + 0.05 * min(x, 1 - x), ref, 1.05 * ref, 2 * ref], dtype=torch.float64)
    first = torch.cat([between, near.clamp(max=0.999)])
    return torch.stack([first, 1 - first], dim=1)


def _best_gain(f: Objective, at: torch.Tensor, others: torch.Tensor) -> tuple[float, float]:
    """What the best of some policies is better than ``at``, and its probability of the first answer."""
    gains = torch.stack([f(other) - f(at) for other in others])
    return float(gains.max()), float(others[gains.argmax(), 0])


def _curvature(f: Objective, at: torch.Tensor) -> float:
    """Second derivative of f along (1, -1), by automatic differentiation."""
    along = torch.tensor([1.0, -1.0], dtype=torch.float64)
    return float(along @ torch.autograd.functional.hessian(f, at) @ along)


def _noisy_pair(x: float, ref: float, beta: float) -> Objective:
    """Eq (1) for two answers that are right with 0.55 and 0.45, groups of two sampled with x."""
    old, q = (torch.tensor([p, 1 - p], dtype=torch.float64) for p in (x, ref))
    levels = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    chances = torch.tensor([[0.55, 0.45], [0.45, 0.55]], dtype=torch.float64)
    return lambda new: group_rewards(new, old, levels, chances, 2) - beta * group_penalty(new, old, q, 2)


def _push(x: float, ref: float, beta: float) -> float:
    """Where the gradient of eq (1) pushes the first of two answers that the policy itself samples."""
    problem = _pair(x, ref)
    slopes = simplex_slopes(printed_objective(problem, 2, beta), policy(problem))
    return float(slopes[0] - slopes[1])


def _with_forward_kl(problem: Problem, beta: float) -> Objective:
    """Eq (1) with beta KL(ref || pi) in the place of its penalty."""
    reward, kl = printed_objective(problem, 2, 0.0), kl_from_reference(problem)
    return lambda new: reward(new) - beta * kl(new)


@claim("VY-1.3-stationary")
def a_solution_need_not_be_a_maximum() -> Iterator[Found]:
    """Where eq (11) holds the gradient on the simplex vanishes; other policies may have more, nearby too."""
    against, corrected, lowest = [], [], []
    for ref, beta in product(REFERENCES, RATIOS):
        x = _balance(lambda _: 1.0, ref, beta)
        problem = _pair(x, ref)
        p, q, f = policy(problem), reference(problem), printed_objective(problem, 2, beta)
        slopes = simplex_slopes(f, p)
        corrected.append(apart(slopes, slopes @ p))
        corrected.append(violation(_best_gain(_with_forward_kl(problem, beta), p, _candidates(x, ref))[0]))
        corrected += [violation(_push(0.9 * x + 0.1, ref, beta)), violation(-_push(0.9 * x, ref, beta))]
        curvature = -beta * float(((2 * q - p) / p**2).sum())
        corrected.append(apart(_curvature(f, p) / curvature, 1.0))
        objectives = (f, printed_objective(problem, 2, beta, EPSILON))
        against.append(min(_best_gain(j, p, _candidates(x, ref))[0] for j in objectives) > 1e-9)
        lowest.append(curvature > 0)
    pair = _pair(_balance(lambda _: 1.0, 0.01, 0.7), 0.01)
    x, bend = float(policy(pair)[0]), _curvature(printed_objective(pair, 2, 0.7), policy(pair))
    gain, better = _best_gain(printed_objective(pair, 2, 0.7), policy(pair), _candidates(x, 0.01))
    y = _balance(lambda _: 0.1, 0.01, BETA)
    start = torch.tensor([y, 1 - y], dtype=torch.float64)
    lost, where = _best_gain(_noisy_pair(y, 0.01, BETA), start, _candidates(y, 0.01))
    yield from each_form(
        share_of_cases(against),
        worst(corrected),
        x=x,
        bend=bend,
        better=better,
        gain=gain,
        sum_of_against=sum(against),
        number_of_against=len(against),
        sum_of_lowest=sum(lowest),
        BETA=BETA,
        y=y,
        lost=lost,
        where=where,
    )
