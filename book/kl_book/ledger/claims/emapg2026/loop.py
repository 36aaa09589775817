"""The update of section 1 and algorithm 3: the training loop (emapg2026).

The loop is written out line by line with exact expectations: sequences are enumerated instead of sampled,
and the KL is exact, which is Top-k KL with the whole vocabulary in the head.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, differs, same
from kl_book.ledger.claims.ground import errors, rollouts, sequences
from kl_book.ledger.claims.ground.rollouts import first_logit, two_answers
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere, tree_of, trees
from kl_companion.tabular import Problem, bandit

RATE, BETA, DECAY = 0.3, 0.5, 0.9
STARTS = bandit(3, seed=1), bandit(4, seed=2, scale=0.5)


def loop_gradient(problem: Problem, beta: float = BETA) -> torch.Tensor:
    """Expected gradient of lines 15 to 22: -sum_n s_n A log pi + beta KL, KL to the problem's reference.

    The rewards are the advantages; the sampler is pi_old.
    """
    return sequences.loss_gradient(problem, sequences.ratios(problem) * problem.rewards[:, None], beta)


def run(
    start: Problem, *, iterations: int, inner: int, period: int
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Algorithm 3: the gradients of all inner steps, the policies after each iteration, the anchors."""
    theta, anchor = start.logits.clone(), start.logits.clone()
    gradients, policies, anchors = [], [theta], [anchor]
    for t in range(1, iterations + 1):
        old = theta
        for v in range(inner):
            behavior = old if v else None
            world = start._replace(logits=theta, ref_logits=anchor, behavior_logits=behavior)
            gradients.append(loop_gradient(world))
            theta = theta - RATE * gradients[-1]
        if t % period == 0:
            anchor = DECAY * anchor + (1 - DECAY) * theta
        policies.append(theta)
        anchors.append(anchor)
    return gradients, policies, anchors


def replayed(start: Problem, inner: int, period: int) -> Iterator[Found]:
    """The loop on a bandit against exact objectives and the closed form of the average."""
    gradients, policies, anchors = run(start, iterations=4, inner=inner, period=period)
    theta = start.logits
    for step, gradient in enumerate(gradients):
        w = Enumeration(start._replace(logits=theta, ref_logits=anchors[step // inner]))
        yield same(gradient, BETA * w.d_kl - w.d_reward)
        theta = theta - RATE * gradient
    yield same(theta, policies[-1])
    average = start.logits
    for policy in policies[period::period]:
        average = DECAY * average + (1 - DECAY) * policy
    yield same(average, anchors[-1])


def _printed_step(w: Enumeration, rate: float = 0.1, beta: float = 0.5) -> torch.Tensor:
    """alpha before the gradient of the reward alone."""
    return rate * w.Es(w.R) - beta * w.d_kl


@claim("EMA-intro-update", over=each(*bandits()[:6]))
def coefficient_of_the_kl(w: Enumeration) -> Iterator[Found]:
    """alpha must stand before the KL as well, or the optimum is that of beta/alpha."""
    rate, beta = 0.1, 0.5
    yield same(_printed_step(w), rate * (w.Es(w.R) - beta * w.d_kl), by=errors.relative)
    best = Enumeration(at_optimum(w.problem, beta))
    yield same(rate * (best.Es(best.R) - beta * best.d_kl), 0.0, "corrected")
    yield same(_printed_step(Enumeration(at_optimum(w.problem, beta / rate))), 0.0, "corrected")


@words("EMA-intro-update")
def step_from_the_optimum() -> dict[str, Any]:
    """Of two answers; by how much the KL weighs more with the step size of the experiments."""
    step = first_logit(_printed_step(Enumeration(at_optimum(two_answers(), 0.5))))
    return {"step": step, "times": 1e-3 / 1e-6}


@claim("EMA-alg3+step", over=each(*bandits()[:6]))
def step_of_the_loop(w: Enumeration) -> Iterator[Found]:
    """theta - alpha grad L is alpha (grad E[R] - beta grad KL) on average, and rests at the optimum."""
    for beta in (0.1, 1.0):
        yield same(loop_gradient(w.problem, beta), beta * w.d_kl - w.d_reward)
        yield same(loop_gradient(at_optimum(w.problem, beta), beta), 0.0)


def _second_step() -> Problem:
    """Two binary tokens after one inner step: the policy has moved towards the better first token."""
    half = (0.5, 0.5)
    world = tree_of([(0.8, 0.2), (0.8, 0.2), half], [half, half, half])
    old = torch.tensor([half, half, half], dtype=torch.float64).log()
    return world._replace(behavior_logits=old, rewards=torch.tensor([0.0, 1.0, 0.0, 0.0]).double())


@claim("EMA-alg3")
def the_whole_loop() -> Iterator[Found]:
    """Every step has the gradient of PPO's surrogate less beta KL; the anchor averages the new policies."""
    for start in STARTS:
        for inner, period in ((1, 1), (2, 2), (3, 1)):
            yield from replayed(start, inner, period)
    for w in each(rollouts.rollouts, trees)():
        yield same(loop_gradient(w.problem), BETA * w.partial() - w.d_reward)
    for w in each(sampled_elsewhere, _second_step())():
        surrogate = sequences.surrogate_gradient(w.problem, partial(torch.mul, w.R[:, None]))
        yield same(-loop_gradient(w.problem, 0.0), surrogate)


@words("EMA-alg3")
def second_step_and_the_true_gradient() -> dict[str, Any]:
    """The first logit's entry of each."""
    world = _second_step()
    step = first_logit(-loop_gradient(world, 0.0))
    return {"step": step, "true": first_logit(Enumeration(world).d_reward)}


def _after_three_steps(start: Problem) -> tuple[Enumeration, Enumeration]:
    """The policy with the anchor as its reference, and with the initial policy."""
    _, policies, anchors = run(start, iterations=3, inner=1, period=1)
    moved = Enumeration(start).replace(logits=policies[-1])
    return moved.replace(ref_logits=anchors[-1]), moved.replace(ref_logits=start.logits)


@claim("EMA-alg3+ref", over=each(*STARTS))
def which_anchor(w: Enumeration) -> Iterator[Found]:
    """The KL of line 18 is to the moving anchor; to the fixed pi_ref it is another step."""
    moving, fixed = _after_three_steps(w.problem)
    right = BETA * moving.d_kl - moving.d_reward
    yield same(loop_gradient(fixed.problem), right, by=errors.relative)
    yield same(loop_gradient(moving.problem), right, "inside")
    yield differs(moving.problem.ref_logits, w.problem.logits, "inside")


@words("EMA-alg3+ref")
def gradient_of_either_kl() -> dict[str, Any]:
    """The first logit's entry, from the anchor and from the initial policy."""
    moving, fixed = (first_logit(w.d_kl) for w in _after_three_steps(two_answers()))
    return {"decay": DECAY, "rate": RATE, "beta": BETA, "moving": moving, "fixed": fixed}
