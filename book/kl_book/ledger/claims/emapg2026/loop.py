"""The update of section 1 and algorithm 3: the training loop (emapg2026).

The loop is written out line by line with exact expectations: sequences are enumerated instead of sampled,
and the KL is exact, which is Top-k KL with the whole vocabulary in the head.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, worst
from kl_book.ledger.claims.ground.rollouts import (
    first_logit,
    regularized_gradient,
    reward_gradient,
    rollouts,
    two_answers,
)
from kl_book.ledger.claims.ground.sequences import partial_gradient
from kl_book.ledger.claims.ground.sums import field, kl_gradient, terms
from kl_book.ledger.claims.ground.targets import at_optimum
from kl_book.ledger.claims.ground.worlds import bandits, sampled_elsewhere, tree_of, trees
from kl_companion.tabular import Problem, bandit

RATE, BETA, DECAY = 0.3, 0.5, 0.9


def loss_gradient(problem: Problem, beta: float) -> torch.Tensor:
    """Expected gradient of lines 15 to 22: -sum_n s_n A log pi + beta KL, KL to the problem's reference.

    The rewards are the advantages; the sampler is pi_old.
    """
    theta = problem.logits.detach().clone().requires_grad_()
    p, logp = terms(problem).p, problem.token_logp(theta)
    s = (logp.detach() - problem.token_logp(problem.sampled_from)).exp() * problem.completion_mask
    j = (s * problem.rewards[:, None] * logp).sum(-1)
    every, ref = theta.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    kl = ((every.exp() * (every - ref)).sum(-1)[problem.rows] * problem.completion_mask).sum(-1)
    (gradient,) = torch.autograd.grad(p @ (-j + beta * kl), theta)
    return gradient


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
            gradients.append(loss_gradient(world, BETA))
            theta = theta - RATE * gradients[-1]
        if t % period == 0:
            anchor = DECAY * anchor + (1 - DECAY) * theta
        policies.append(theta)
        anchors.append(anchor)
    return gradients, policies, anchors


def replayed(start: Problem, inner: int, period: int) -> list[float]:
    """Errors of the loop on a bandit against exact objectives and the closed form of the average."""
    gradients, policies, anchors = run(start, iterations=4, inner=inner, period=period)
    errors, theta = [], start.logits
    for step, found in enumerate(gradients):
        world = start._replace(logits=theta, ref_logits=anchors[step // inner])
        errors.append(apart(found, regularized_gradient(world, BETA)))
        theta = theta - RATE * found
    errors.append(apart(theta, policies[-1]))
    added = [policies[t] for t in range(period, 5, period)]
    n = len(added)
    average = DECAY**n * start.logits + sum(
        (1 - DECAY) * DECAY ** (n - 1 - i) * x for i, x in enumerate(added)
    )
    return [*errors, apart(average, anchors[-1])]


@claim("EMA-intro-update")
def coefficient_of_the_kl() -> Iterator[Found]:
    """alpha must stand before the KL as well, or the optimum is that of beta/alpha."""
    rate, beta = 0.1, 0.5
    printed, corrected = [], []
    for problem in bandits()[:6]:
        right = rate * (field(problem.rewards, problem) - beta * kl_gradient(problem))
        printed.append(relative(rate * field(problem.rewards, problem) - beta * kl_gradient(problem), right))
        best = at_optimum(problem._replace(rewards=problem.rewards / beta))._replace(rewards=problem.rewards)
        reward, kl = field(best.rewards, best), kl_gradient(best)
        corrected.append(apart(rate * (reward - beta * kl), 0.0))
        other = at_optimum(problem._replace(rewards=problem.rewards * rate / beta))._replace(
            rewards=problem.rewards
        )
        corrected.append(apart(rate * field(other.rewards, other) - beta * kl_gradient(other), 0.0))
    world = at_optimum(two_answers()._replace(rewards=two_answers().rewards / beta))._replace(
        rewards=two_answers().rewards
    )
    step = first_logit(rate * field(world.rewards, world) - beta * kl_gradient(world))
    yield from each_form(worst(printed), worst(corrected), step=step, number=1e-3 / 1e-6)


@claim("EMA-alg3+step")
def step_of_the_loop() -> Iterator[Found]:
    """theta - alpha grad L is alpha (grad E[R] - beta grad KL) on average, and rests at the optimum."""
    errors = []
    for problem in bandits()[:6]:
        for beta in (0.1, 1.0):
            errors.append(apart(loss_gradient(problem, beta), regularized_gradient(problem, beta)))
            best = at_optimum(problem._replace(rewards=problem.rewards / beta))
            errors.append(apart(loss_gradient(best._replace(rewards=problem.rewards), beta), 0.0))
    yield from each_form(worst(errors))


def _surrogate_gradient(problem: Problem) -> torch.Tensor:
    """Gradient of E_mu[sum_n R pi_n / mu_n], the ratios differentiated as they stand, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    behavior = problem.token_logp(problem.sampled_from).detach()
    ratio = (problem.token_logp(theta) - behavior).exp() * problem.completion_mask
    surrogate = behavior.sum(-1).exp() @ (ratio.sum(-1) * problem.rewards)
    (gradient,) = torch.autograd.grad(surrogate, theta)
    return gradient


def _second_step() -> Problem:
    """Two binary tokens after one inner step: the policy has moved towards the better first token."""
    half = (0.5, 0.5)
    world = tree_of([(0.8, 0.2), (0.8, 0.2), half], [half, half, half])
    old = torch.tensor([half, half, half], dtype=torch.float64).log()
    return world._replace(behavior_logits=old, rewards=torch.tensor([0.0, 1.0, 0.0, 0.0]).double())


@claim("EMA-alg3")
def the_whole_loop() -> Iterator[Found]:
    """Every step has the gradient of PPO's surrogate less beta KL; the anchor averages the new policies."""
    errors: list[float] = []
    for start in (bandit(3, seed=1), bandit(4, seed=2, scale=0.5)):
        errors += [e for inner, period in ((1, 1), (2, 2), (3, 1)) for e in replayed(start, inner, period)]
    for problem in (*rollouts(), *trees()):
        wanted = BETA * partial_gradient(problem) - reward_gradient(problem)
        errors.append(apart(loss_gradient(problem, BETA), wanted))
    for problem in (*sampled_elsewhere(), _second_step()):
        errors.append(apart(-loss_gradient(problem, 0.0), _surrogate_gradient(problem)))
    world = _second_step()
    found, true = first_logit(-loss_gradient(world, 0.0)), first_logit(reward_gradient(world))
    yield from each_form(worst(errors), found=found, true=true)


@claim("EMA-alg3+ref")
def which_anchor() -> Iterator[Found]:
    """The KL of line 18 is to the moving anchor; to the fixed pi_ref it is another step."""
    printed, inside = [], []
    for start in (bandit(3, seed=1), bandit(4, seed=2, scale=0.5)):
        _, policies, anchors = run(start, iterations=3, inner=1, period=1)
        world = start._replace(logits=policies[-1], ref_logits=anchors[-1])
        fixed = loss_gradient(world._replace(ref_logits=start.logits), BETA)
        wanted = regularized_gradient(world, BETA)
        printed.append(relative(fixed, wanted))
        inside.append(apart(loss_gradient(world, BETA), wanted))
        inside.append(differs(anchors[-1], start.logits))
    start = two_answers()
    _, policies, anchors = run(start, iterations=3, inner=1, period=1)
    world = start._replace(logits=policies[-1], ref_logits=anchors[-1])
    both = [first_logit(kl_gradient(world._replace(ref_logits=x))) for x in (start.logits, anchors[-1])]
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        DECAY=DECAY,
        RATE=RATE,
        BETA=BETA,
        both_0=both[0],
        both_1=both[1],
    )
