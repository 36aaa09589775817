"""Sections 1.2, 1.3 and 2.2: clip, penalty and its gradients (vojnovic2025alignment)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.best_policies import Objective, reference, simplex_slopes
from kl_book.ledger.claims.ground.errors import apart, differs, worst
from kl_book.ledger.claims.ground.group_objective import (
    clipped,
    exact_in_policy,
    group_penalty,
    in_logits,
    kl_from_reference,
    old_policy,
    policy,
    policy_mean,
    printed_objective,
)
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.preferences import expected_preference
from kl_book.ledger.claims.ground.sums import exact, forward_kl, kl_gradient, reverse_kl
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    few_sampled_elsewhere,
    sampled_elsewhere,
    three_policies,
    trees,
    worlds,
)
from kl_companion.tabular import Problem

EPSILON = 0.2
BETA = 0.04


def _error_of_slopes(problem: Problem, f: Objective, printed: torch.Tensor) -> float:
    """How far printed derivatives are from those of f, one by one and in the logits of the policy."""
    one_by_one = apart(simplex_slopes(f, policy(problem)), printed)
    return worst((one_by_one, apart(in_logits(problem, printed), exact_in_policy(problem, f)[1])))


def _penalty(problem: Problem, size: int = 2) -> Objective:
    """E[(1/G) sum_i D_i] as a function of pi_theta."""
    return lambda new: group_penalty(new, old_policy(problem), reference(problem), size)


def _kl(problem: Problem) -> Objective:
    """KL(pi || pi_ref) as a function of pi_theta."""
    return lambda new: reverse_kl(new.log(), reference(problem).log())


# sections 1 and 1.3: the objective and its clip


def _moved(problem: Problem, by: float) -> Problem:
    """Sampled from its policy, which has moved: the ratios reach from 1 - by to 1 + by."""
    old = problem.logits.softmax(-1)
    direction = problem.rewards[None] - old @ problem.rewards
    new = old * (1 + by * direction / direction.abs().max())
    return problem._replace(logits=new.log(), behavior_logits=problem.logits)


@claim("VY-eq1-clip")
def near_the_old_policy_the_clip_does_nothing() -> Iterator[Found]:
    """While no ratio leaves [0.8, 1.2], value and gradient of eq (1) are those without its clip."""
    errors = []
    for start in bandits()[::2]:
        for by in (0.05, EPSILON - 1e-9):
            near = _moved(start, by)
            for size in (2, 3) if len(near.rewards) < 6 else (2,):
                with_clip, without = (
                    exact_in_policy(near, printed_objective(near, size, BETA, e)) for e in (EPSILON, None)
                )
                errors += [apart(with_clip[0], without[0]), apart(with_clip[1], without[1])]
        far = _moved(start, 0.9)
        ratio = policy(far) / old_policy(far)
        bounded = ratio.clamp(max=1 + EPSILON).clamp(min=1 - EPSILON)
        errors.append(apart(clipped(ratio, EPSILON), bounded))
        outside = [printed_objective(far, 2, BETA, e)(policy(far)) for e in (EPSILON, None)]
        errors.append(differs(outside[0], outside[1]))
    yield from each_form(worst(errors))


@claim("VY-eq1")
def the_objective_in_two_parts() -> Iterator[Found]:
    """Eq (1) group by group is E_pi[P_G] - beta KL_0, off-policy without the clip and near it with it."""
    errors = []
    for problem in (*few_sampled_elsewhere(), *(_moved(p, 0.1) for p in bandits()[:6])):
        near = float((policy(problem) / old_policy(problem) - 1).abs().max()) < EPSILON
        for size in (2, 3):
            preference = expected_preference(problem.rewards, old_policy(problem), size)
            value = policy_mean(problem, preference)[0]
            value -= BETA * exact_in_policy(problem, _kl_0(problem))[0]
            found = printed_objective(problem, size, BETA, EPSILON if near else None)(policy(problem))
            errors.append(apart(found, value))
    yield from each_form(worst(errors))


@claim("VY-1.3-infinite")
def where_the_reference_gives_nothing() -> Iterator[Found]:
    """The penalty is infinite if the old policy samples such an answer; if it does not, it is finite."""
    found = {}
    for sampled in (True, False):
        old = (0.5, 0.3, 0.2) if sampled else (0.6, 0.4, 0.0)
        problem = three_policies((0.5, 0.4, 0.1), (0.7, 0.3, 0.0), old)
        found[sampled] = [float(_penalty(problem, size)(policy(problem))) for size in (2, 3)]
    finite = found[False]
    yield from each_form(
        share_of_cases(x < float("inf") for x in (*finite, *found[True])),
        inside=share_of_cases(x < float("inf") for x in found[True]),
        finite_0=finite[0],
    )


# section 2.2: the penalty


def _kl_0(problem: Problem) -> Objective:
    """KL_0 as printed below eq (7), as a function of pi_theta."""
    old, ref = old_policy(problem), reference(problem)
    return lambda new: old @ (ref / new) - old @ (ref / new).log() - 1


@claim("VY-eq7")
def the_penalty_is_a_mean_of_k3() -> Iterator[Found]:
    """E[(1/G) sum_i D_i] over all groups is KL_0, for groups of 2 and 3, on- and off-policy."""
    errors = []
    for problem in (*few_sampled_elsewhere(), *bandits(), *trees()[:2]):
        wanted = exact_in_policy(problem, _kl_0(problem))[0]
        errors += [apart(_penalty(problem, size)(policy(problem)), wanted) for size in (2, 3)]
    yield from each_form(worst(errors))


@claim("VY-2.2-unbiased")
def the_value_of_the_penalty() -> Iterator[Found]:
    """On-policy it is KL(pi || pi_ref); where another policy samples it is another number."""
    errors = [apart(_penalty(p)(policy(p)), exact(reverse_kl, p)[0]) for p in worlds()]
    off = []
    for problem in sampled_elsewhere():
        value, kl = float(_penalty(problem)(policy(problem))), exact(reverse_kl, problem)[0]
        errors.append(differs(value, kl))
        off.append(abs(value / kl - 1))
    yield from each_form(worst(errors), max_off=max(off))


@claim("VY-eq8")
def derivative_of_the_penalty() -> Iterator[Found]:
    """-old ref / pi^2 + old / pi for every answer, wherever it is sampled from."""
    errors = []
    for problem in (*sampled_elsewhere(), *bandits()):
        p, old, ref = policy(problem), old_policy(problem), reference(problem)
        errors.append(_error_of_slopes(problem, _penalty(problem), -old * ref / p**2 + old / p))
    yield from each_form(worst(errors))


@claim("VY-eq9")
def derivative_of_the_kl() -> Iterator[Found]:
    """-log(ref / pi) + 1 for every answer."""
    errors = []
    for problem in worlds():
        printed = -(reference(problem) / policy(problem)).log() + 1
        errors.append(_error_of_slopes(problem, _kl(problem), printed))
    yield from each_form(worst(errors))


@claim("VY-eq10")
def derivative_of_the_penalty_on_policy() -> Iterator[Found]:
    """-ref / pi + 1 where the policy samples itself."""
    errors = []
    for problem in worlds():
        printed = -reference(problem) / policy(problem) + 1
        errors.append(_error_of_slopes(problem, _penalty(problem), printed))
    yield from each_form(worst(errors))


def _on_samples_of(old: torch.Tensor, new: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """The penalty in groups of two, a scalar."""
    return group_penalty(new, old, ref, 2)


def _doubled(problem: Problem, f: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """How the derivatives of f(pi, ref) change if the reference is twice as large, [count]."""
    p, ref = policy(problem), reference(problem)
    return simplex_slopes(lambda x: f(x, 2 * ref), p) - simplex_slopes(lambda x: f(x, ref), p)


@claim("VY-2.2-different")
def the_two_gradients_differ() -> Iterator[Found]:
    """On-policy too, in the logits: with twice the reference one falls by ref/pi, the other by log 2."""
    errors = []
    for problem in worlds():
        p, ref = policy(problem), reference(problem)
        penalty, kl = (exact_in_policy(problem, f)[1] for f in (_penalty(problem), _kl(problem)))
        errors += [differs(penalty, kl), apart(kl, kl_gradient(problem))]
        old = old_policy(problem)
        errors.append(apart(_doubled(problem, partial(_on_samples_of, old)), -ref / p))
        errors.append(apart(_doubled(problem, lambda x, q: reverse_kl(x.log(), q.log())), -math.log(2.0)))
    yield from each_form(worst(errors))


@claim("VY-2.2-reverse")
def the_penalty_has_the_gradient_of_the_other_kl() -> Iterator[Found]:
    """On-policy its gradient is that of KL(ref || pi): -ref/pi up to one constant for all answers."""
    errors = []
    for problem in worlds():
        p, ref = policy(problem), reference(problem)
        errors.append(_error_of_slopes(problem, kl_from_reference(problem), -ref / p))
        slopes, others = (simplex_slopes(f(problem), p) for f in (_penalty, kl_from_reference))
        errors.append(apart(slopes - others, 1.0))
        penalty = exact_in_policy(problem, _penalty(problem))[1]
        errors += [apart(penalty, exact(forward_kl, problem)[1]), differs(penalty, kl_gradient(problem))]
    yield from each_form(worst(errors))


@claim("VY-2.2-constant")
def a_constant_in_the_gradient_does_nothing() -> Iterator[Found]:
    """Added to every derivative it leaves the gradient in the logits, and the best policy, as they are."""
    errors = []
    for problem in worlds():
        printed = -reference(problem) / policy(problem)
        wanted = exact_in_policy(problem, _penalty(problem))[1]
        errors += [apart(in_logits(problem, printed + c), wanted) for c in (0.0, 1.0, -5.0)]
    yield from each_form(worst(errors))
