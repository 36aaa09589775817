"""Sections 1.2, 1.3, 2.2: the objective, its clip, its penalty and its maxima (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import (
    Found,
    at_most,
    differs,
    inside,
    less,
    numbers,
    observed,
    printed,
    same,
)
from kl_book.ledger.claims.ground import group_objective as grpo
from kl_book.ledger.claims.ground import questions as ab
from kl_book.ledger.claims.ground import worlds
from kl_book.ledger.claims.ground.best_policies import Objective, simplex_slopes
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import reverse_kl
from kl_book.ledger.claims.ground.world import Enumeration, each, two

EPSILON = 0.2
BETA = 0.04
RIGHT = torch.tensor([1.0, 0.0], dtype=torch.float64)


@claim("VY-1.2-scaling", over=lambda: product(each(*worlds.bandits()[3:5])(), ((1.0, 2), (0.5, 3))))
def the_reference_is_scaled_by_the_preference(case: tuple[Enumeration, tuple[float, int]]) -> Iterator[Found]:
    """Where the gradient of eq (1) vanishes, pi / ref rises with P_G, as 1/(1 - x) and not as exp(x)."""
    start, (beta, size) = case
    policy = ab.stationary(ab.question(start.ref.tolist(), beta, start.R.tolist(), size))
    w = start.replace(logits=policy.log()[None])
    slopes = simplex_slopes(grpo.printed_objective(w, size, beta), w.pi)
    yield same(slopes, slopes.mean())
    x = grpo.certain(w.R).preference(w.pi, size)
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
        x = ab.answer_a(ab.pair(ref, BETA, size=size))
        yield observed(x)
        yield less(0.5, x)
        if size == 2:
            yield same(_push(x, ref, BETA), 0.0)
    yield numbers(narrow=ab.eq14(BETA / 0.05, 0.1), wide=ab.eq14(BETA / 0.2, 0.1))


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
        x = ab.eq14(beta, ref)
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
    w = _pair(ab.eq14(0.7, 0.01), 0.01)  # at a minimum
    f, x = grpo.printed_objective(w, 2, 0.7), float(w.pi[0])
    gain, better = _best_gain(f, w.pi, _candidates(x, 0.01))
    yield numbers(x=x, bend=_curvature(f, w.pi), gain=gain, better=better)
    grader = (ab.right_or_wrong(0.55), ab.right_or_wrong(0.45))  # noisy, and on old samples
    q = ab.pair(0.01, BETA, grader)
    y = ab.eq14(BETA / q.gamma, 0.01)
    old = _pair(y, 0.01).pi
    lost, where = _best_gain(lambda new: q.objective(new, old), old, _candidates(y, 0.01))
    yield numbers(y=y, lost=lost, where=where)


# the objective and its clip


def _are_slopes(w: Enumeration, f: Objective, claimed: torch.Tensor) -> Iterator[Found]:
    """Claimed derivatives are those of f, one by one and in the logits of the policy."""
    yield same(simplex_slopes(f, w.pi), claimed)
    yield same(grpo.in_logits(w, claimed), grpo.exact_in_policy(w, f)[1])


def _penalty(w: Enumeration, size: int = 2) -> Objective:
    """E[(1/G) sum_i D_i] as a function of pi_theta."""
    return lambda new: grpo.group_penalty(new, w.p, w.ref, size)


def _kl(w: Enumeration) -> Objective:
    """KL(pi || pi_ref) as a function of pi_theta."""
    return lambda new: reverse_kl(new.log(), w.ref.log())


def _moved(w: Enumeration, by: float) -> Enumeration:
    """Sampled from its policy, which has moved: the ratios reach from 1 - by to 1 + by."""
    old = w.problem.logits.softmax(-1)
    direction = w.R[None] - old @ w.R
    new = old * (1 + by * direction / direction.abs().max())
    return w.replace(logits=new.log(), behavior_logits=w.problem.logits)


@claim("VY-eq1-clip", over=each(lambda: worlds.bandits()[::2]))
def near_the_old_policy_the_clip_does_nothing(start: Enumeration) -> Iterator[Found]:
    """While no ratio leaves [0.8, 1.2], value and gradient of eq (1) are those without its clip."""
    for by in (0.05, EPSILON - 1e-9):
        near = _moved(start, by)
        for size in (2, 3) if len(near.R) < 6 else (2,):
            forms = (grpo.printed_objective(near, size, BETA, e) for e in (EPSILON, None))
            (value, slope), (unclipped, unclipped_slope) = (grpo.exact_in_policy(near, f) for f in forms)
            yield same(value, unclipped)
            yield same(slope, unclipped_slope)
    far = _moved(start, 0.9)
    ratio = far.pi / far.p
    yield same(grpo.clipped(ratio, EPSILON), ratio.clamp(max=1 + EPSILON).clamp(min=1 - EPSILON))
    with_clip, without = (grpo.printed_objective(far, 2, BETA, e)(far.pi) for e in (EPSILON, None))
    yield differs(with_clip, without)


def _kl_0(w: Enumeration) -> Objective:
    """KL_0 as printed below eq (7), as a function of pi_theta."""
    old, ref = w.p, w.ref
    return lambda new: old @ (ref / new) - old @ (ref / new).log() - 1


def _off_policy_and_near() -> Iterator[Enumeration]:
    yield from each(worlds.few_sampled_elsewhere)()
    yield from (_moved(w, 0.1) for w in each(*worlds.bandits()[:6])())


@claim("VY-eq1", over=_off_policy_and_near)
def the_objective_in_two_parts(w: Enumeration) -> Iterator[Found]:
    """Eq (1) group by group is E_pi[P_G] - beta KL_0, off-policy without the clip and near it with it."""
    near = float((w.pi / w.p - 1).abs().max()) < EPSILON
    cost = grpo.exact_in_policy(w, _kl_0(w))[0]
    for size in (2, 3):
        value = grpo.printed_objective(w, size, BETA, EPSILON if near else None)(w.pi)
        gain = grpo.policy_mean(w, grpo.certain(w.R).preference(w.p, size))[0]
        yield same(value, gain - BETA * cost)


@claim("VY-1.3-infinite")
def where_the_reference_gives_nothing() -> Iterator[Found]:
    """The penalty is infinite if the old policy samples such an answer; if it does not, it is finite."""
    sampled, never = (
        Enumeration(worlds.three_policies((0.5, 0.4, 0.1), (0.7, 0.3, 0.0), old))
        for old in ((0.5, 0.3, 0.2), (0.6, 0.4, 0.0))
    )
    infinite, finite = ([float(_penalty(w, size)(w.pi)) for size in (2, 3)] for w in (sampled, never))
    yield printed(share_of_cases(x < math.inf for x in (*finite, *infinite)))
    yield inside(share_of_cases(x < math.inf for x in infinite))
    yield numbers(penalty=finite[0])


# section 2.2: the penalty


@claim("VY-eq7", over=each(worlds.few_sampled_elsewhere, worlds.bandits, lambda: worlds.trees()[:2]))
def the_penalty_is_a_mean_of_k3(w: Enumeration) -> Iterator[Found]:
    """E[(1/G) sum_i D_i] over all groups is KL_0, for groups of 2 and 3, on- and off-policy."""
    for size in (2, 3):
        yield same(_penalty(w, size)(w.pi), grpo.exact_in_policy(w, _kl_0(w))[0])


@claim("VY-2.2-unbiased", over=each(worlds.all_worlds))
def the_value_of_the_penalty(w: Enumeration) -> Iterator[Found]:
    """On-policy it is KL(pi || pi_ref); where another policy samples it is another number."""
    value = float(_penalty(w)(w.pi))
    if w.problem.behavior_logits is None:
        yield same(value, w.kl)
    else:
        yield differs(value, w.kl)
        yield observed(abs(value / w.kl - 1))


@claim("VY-eq8", over=each(worlds.sampled_elsewhere, worlds.bandits))
def derivative_of_the_penalty(w: Enumeration) -> Iterator[Found]:
    """-old ref / pi^2 + old / pi for every answer, wherever it is sampled from."""
    return _are_slopes(w, _penalty(w), -w.p * w.ref / w.pi**2 + w.p / w.pi)


@claim("VY-eq9", over=each(worlds.worlds))
def derivative_of_the_kl(w: Enumeration) -> Iterator[Found]:
    """-log(ref / pi) + 1 for every answer."""
    return _are_slopes(w, _kl(w), -(w.ref / w.pi).log() + 1)


@claim("VY-eq10", over=each(worlds.worlds))
def derivative_of_the_penalty_on_policy(w: Enumeration) -> Iterator[Found]:
    """-ref / pi + 1 where the policy samples itself."""
    return _are_slopes(w, _penalty(w), -w.ref / w.pi + 1)


def _doubled(w: Enumeration, f: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """How the derivatives of f(pi, ref) change if the reference is twice as large, [count]."""
    with_two, with_one = (simplex_slopes(lambda x, q=q: f(x, q), w.pi) for q in (2 * w.ref, w.ref))  # type: ignore[misc]
    return with_two - with_one


@claim("VY-2.2-different", over=each(worlds.worlds))
def the_two_gradients_differ(w: Enumeration) -> Iterator[Found]:
    """On-policy too, in the logits: with twice the reference one falls by ref/pi, the other by log 2."""
    d_penalty, d_kl = (grpo.exact_in_policy(w, f(w))[1] for f in (_penalty, _kl))
    yield differs(d_penalty, d_kl)
    yield same(d_kl, w.d_kl)
    yield same(_doubled(w, lambda x, q: grpo.group_penalty(x, w.p, q, 2)), -w.ref / w.pi)
    yield same(_doubled(w, lambda x, q: reverse_kl(x.log(), q.log())), -math.log(2.0))


@claim("VY-2.2-reverse", over=each(worlds.worlds))
def the_penalty_has_the_gradient_of_the_other_kl(w: Enumeration) -> Iterator[Found]:
    """On-policy its gradient is that of KL(ref || pi): -ref/pi up to one constant for all answers."""
    yield from _are_slopes(w, grpo.kl_from_reference(w), -w.ref / w.pi)
    slopes, others = (simplex_slopes(f(w), w.pi) for f in (_penalty, grpo.kl_from_reference))
    yield same(slopes - others, 1.0)
    d_penalty = grpo.exact_in_policy(w, _penalty(w))[1]
    yield same(d_penalty, w.d_forward)
    yield differs(d_penalty, w.d_kl)


@claim("VY-2.2-constant", over=each(worlds.worlds))
def a_constant_in_the_gradient_does_nothing(w: Enumeration) -> Iterator[Found]:
    """Added to every derivative it leaves the gradient in the logits, and the best policy, as they are."""
    for constant in (0.0, 1.0, -5.0):
        yield same(grpo.in_logits(w, -w.ref / w.pi + constant), grpo.exact_in_policy(w, _penalty(w))[1])
