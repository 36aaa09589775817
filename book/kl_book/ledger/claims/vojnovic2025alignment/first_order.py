"""Sections 1.2 and 1.3: policies of eq (11), and what they maximize (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground import group_objective as grpo
from kl_book.ledger.claims.ground.best_policies import Objective, simplex_slopes
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.preferences import certain
from kl_book.ledger.claims.ground.stationary_policies import question, right_or_wrong, stationary
from kl_book.ledger.claims.ground.two_answers import answer_a, eq14, pair
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits

EPSILON = 0.2
BETA = 0.04
RIGHT = torch.tensor([1.0, 0.0], dtype=torch.float64)


@claim("VY-1.2-scaling", over=lambda: product(each(*bandits()[3:5])(), ((1.0, 2), (0.5, 3))))
def the_reference_is_scaled_by_the_preference(case: tuple[Enumeration, tuple[float, int]]) -> Iterator[Found]:
    """Where the gradient of eq (1) vanishes, pi / ref rises with P_G, as 1/(1 - x) and not as exp(x)."""
    start, (beta, size) = case
    policy = stationary(question(start.ref.tolist(), beta, start.R.tolist(), size))
    w = start.replace(logits=policy.log()[None])
    slopes = simplex_slopes(grpo.printed_objective(w, size, beta), w.pi)
    yield same(slopes, slopes.mean())
    x = certain(w.R).preference(w.pi, size)
    x = (x - w.pi @ x) / beta
    scale = w.pi / w.ref
    yield same(grpo.in_logits(w, beta * x - beta * (1 - 1 / scale)), 0.0)
    yield at_most(1e-6, scale[x.argsort()].diff())
    pool = x.exp() * w.ref
    yield differs(pool / pool.sum(), w.pi)


def _pair(x: float, ref: float) -> Enumeration:
    """Two answers with rewards 1 and 0, sampled from the policy itself."""
    return two((x, 1 - x), (ref, 1 - ref)).replace(rewards=RIGHT)


@claim("VY-1.2-practice")
def at_the_default_the_reward_decides() -> Iterator[Found]:
    """At beta = 0.04 the better of two answers gets more than half, whatever the reference gave it."""
    for ref, size in product((0.01, 0.1, 0.5), (2, 8, None)):
        x = answer_a(pair(ref, BETA, size=size))
        yield observed(x)
        yield less(0.5, x)
        if size == 2:
            yield same(_push(x, ref, BETA), 0.0)
    yield numbers(narrow=eq14(BETA / 0.05, 0.1), wide=eq14(BETA / 0.2, 0.1))


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


def _push(x: float, ref: float, beta: float) -> float:
    """Where the gradient of eq (1) pushes the first of two answers that the policy itself samples."""
    w = _pair(x, ref)
    a, b = simplex_slopes(grpo.printed_objective(w, 2, beta), w.pi)
    return float(a - b)


def _with_forward_kl(w: Enumeration, beta: float) -> Objective:
    """Eq (1) with beta KL(ref || pi) in the place of its penalty."""
    reward, kl = grpo.printed_objective(w, 2, 0.0), grpo.kl_from_reference(w)
    return lambda new: reward(new) - beta * kl(new)


@claim("VY-1.3-stationary")
def a_solution_need_not_be_a_maximum() -> Iterator[Found]:
    """Where eq (11) holds the gradient on the simplex vanishes; other policies may have more, nearby too."""
    against, minima = [], []
    for ref, beta in product(REFERENCES, RATIOS):
        x = eq14(beta, ref)
        w, others = _pair(x, ref), _candidates(x, ref)
        f = grpo.printed_objective(w, 2, beta)
        slopes = simplex_slopes(f, w.pi)
        yield same(slopes, slopes @ w.pi, "corrected")
        yield at_most(_best_gain(_with_forward_kl(w, beta), w.pi, others)[0], 0.0, "corrected")
        yield at_most(_push(0.9 * x + 0.1, ref, beta), 0.0, "corrected")
        yield at_most(0.0, _push(0.9 * x, ref, beta), "corrected")
        curvature = -beta * float(((2 * w.ref - w.pi) / w.pi**2).sum())
        yield same(_curvature(f, w.pi) / curvature, 1.0, "corrected")
        gains = (_best_gain(j, w.pi, others)[0] for j in (f, grpo.printed_objective(w, 2, beta, EPSILON)))
        against.append(min(gains) > 1e-9)
        minima.append(curvature > 0)
    yield printed(share_of_cases(against))
    yield numbers(against=sum(against), settings=len(against), minima=sum(minima))
    w = _pair(eq14(0.7, 0.01), 0.01)  # at a minimum
    f, x = grpo.printed_objective(w, 2, 0.7), float(w.pi[0])
    gain, better = _best_gain(f, w.pi, _candidates(x, 0.01))
    yield numbers(x=x, bend=_curvature(f, w.pi), gain=gain, better=better)
    q = pair(0.01, BETA, (right_or_wrong(0.55), right_or_wrong(0.45)))  # a noisy grader, on old samples
    y = eq14(BETA / q.gamma, 0.01)
    old = _pair(y, 0.01).pi
    lost, where = _best_gain(lambda new: q.objective(new, old), old, _candidates(y, 0.01))
    yield numbers(y=y, lost=lost, where=where)
