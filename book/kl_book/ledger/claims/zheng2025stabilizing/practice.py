"""Sections 4.1 and 4.2: MiniRL, its advantage, its clip and its measurements (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.errors import (
    apart,
    differs,
    less,
    relative,
    violation,
    worst,
)
from kl_book.ledger.claims.ground.minirl import (
    HIGH,
    LOW,
    advantages,
    mask_of,
    minirl,
    one_engine,
    without_the_mask,
)
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import token_weighted
from kl_book.ledger.claims.ground.sums import exact, forward_kl, mean, reverse_kl, terms, variance
from kl_book.ledger.claims.ground.surrogates import (
    exponent,
    gradient_of,
    not_of_order,
    of_tokens,
    sampled_trees,
    towards,
)
from kl_book.ledger.claims.ground.updates import binary
from kl_book.ledger.claims.ground.worlds import hedge_trees
from kl_companion.tabular import Problem

NEAR = 0.1  # share of the way from sampler to policy
UPDATES = 8  # mini-batches of a global step


@claim("QW-4.1-advantage")
def rewards_minus_their_mean() -> Iterator[Found]:
    """Under the sampler the advantage has mean zero, and the deviation of the rewards is not divided out."""
    errors = []
    for problem in sampled_trees():
        sampled = problem.token_logp(problem.sampled_from).sum(-1).exp()
        found = advantages(problem)
        errors += [apart(sampled @ found, 0.0), apart(found, problem.rewards - sampled @ problem.rewards)]
        errors.append(differs(variance(sampled, found), 1.0))
    yield from each_form(worst(errors))


def _pooled(numbers: list[torch.Tensor], shares: list[torch.Tensor]) -> float:
    """Variance over prompts, all alike likely, and over their answers."""
    p = torch.cat(shares) / len(shares)
    return variance(p, torch.cat(numbers))


@claim("QW-4.1-variance")
def the_mean_of_a_prompt_as_a_baseline() -> Iterator[Found]:
    """A prompt's own variance stays; over prompts the variance of their mean rewards is taken away."""
    prompts = [p._replace(behavior_logits=None) for p in sampled_trees()]
    shares = [terms(p).p for p in prompts]
    raw, centered_rewards = [p.rewards for p in prompts], [advantages(p) for p in prompts]
    unchanged = [
        abs(variance(p, a) - variance(p, r)) < 1e-9
        for p, a, r in zip(shares, centered_rewards, raw, strict=True)
    ]
    before, after = _pooled(raw, shares), _pooled(centered_rewards, shares)
    means = torch.stack([p @ r for p, r in zip(shares, raw, strict=True)])
    within = [float(p @ (r - p @ r).square()) for p, r in zip(shares, raw, strict=True)]
    inside = [apart(after, sum(within) / len(within)), less(after, before)]
    inside.append(apart(before - after, means.var(correction=0)))
    noise = [
        variance(terms(p).p, advantages(p)[:, None, None] * terms(p).score)
        < variance(terms(p).p, p.rewards[:, None, None] * terms(p).score)
        for p in map(binary, hedge_trees())
    ]
    yield from each_form(
        share_of_cases(unchanged),
        inside=worst(inside),
        number_of_prompts=len(prompts),
        before=before,
        after=after,
        sum_of_noise=sum(noise),
        number_of_noise=len(noise),
    )


@claim("QW-eq7-mask")
def the_mask_is_that_of_ppo() -> Iterator[Found]:
    """The derivative of PPO's clipped term is M_t times ratio and advantage, for every token."""
    errors, closed = [], 0.0
    for problem in sampled_trees():
        old, mask = problem.token_logp(problem.ref_logits), problem.completion_mask
        leaf = terms(problem).logp.clone().requires_grad_()
        ratio, a = (leaf - old).exp(), advantages(problem)[:, None]
        clipped = torch.minimum(ratio * a, ratio.clamp(1 - LOW, 1 + HIGH) * a) * mask
        (slopes,) = torch.autograd.grad(clipped.sum(), leaf)
        by_mask = mask_of(problem) * terms(problem).log_ratio.exp() * a * mask
        errors.append(apart(slopes, by_mask))
        closed += float(((mask_of(problem) == 0) * mask).sum())
    errors.append(violation(1.0 - closed))
    yield from each_form(worst(errors), LOW=LOW, HIGH=HIGH)


def _few_clipped(problem: Problem) -> Problem:
    """All three policies near each other: the target a twentieth of the way, the older one in between."""
    near = towards(problem, NEAR / 2)
    return near._replace(ref_logits=towards(problem, NEAR / 4).logits)


@claim("QW-eq7")
def minirl_has_the_gradient_of_the_surrogate() -> Iterator[Found]:
    """The advantage leaves the gradient of eq (3) as it is; the mask takes out the clipped tokens."""
    errors, sizes = [], []
    for problem in sampled_trees():
        wanted = gradient_of(of_tokens, problem)
        errors.append(apart(gradient_of(without_the_mask, problem), wanted))
        coefficient = token_ratios(problem) * advantages(problem)[:, None]
        taken = mean(terms(problem).p, token_weighted(problem, (1 - mask_of(problem)) * coefficient))
        errors.append(apart(gradient_of(minirl, problem), wanted - taken))
        sizes.append(relative(gradient_of(minirl, problem), wanted))
        near = _few_clipped(problem)
        errors.append(apart(gradient_of(minirl, near), gradient_of(of_tokens, near)))
    yield from each_form(worst(errors), min_sizes=min(sizes), max_sizes=max(sizes))


def _sampled_log_ratio(problem: Problem) -> float:
    """E_mu of the log-ratios sampler to older policy, added up over the tokens."""
    return float(
        terms(problem).p @ (problem.token_logp(problem.sampled_from) - terms(problem).ref_logp).sum(-1)
    )


@claim("QW-4.2-kl")
def kl_from_inference_to_training() -> Iterator[Found]:
    """Added up over the tokens it is the KL of whole answers, from the sampler to the older policy."""
    errors = []
    for problem in sampled_trees():
        sampler = problem._replace(logits=problem.sampled_from, behavior_logits=None)
        errors.append(apart(_sampled_log_ratio(problem), exact(reverse_kl, sampler)[0]))
        errors.append(differs(_sampled_log_ratio(problem), exact(forward_kl, sampler)[0]))
    yield from each_form(worst(errors))


def _entropy_gap(problem: Problem, share: float) -> float:
    """Summed next-token entropies along answers of the sampler minus the entropy of the policy's answers."""
    there = towards(problem, share)
    logp = there.logits.log_softmax(-1)
    by_row = -(logp.exp() * logp).sum(-1)
    along = (by_row[there.rows] * there.completion_mask).sum(-1)
    own = exact(lambda p, q: -(p.exp() * p).sum(), there)[0]
    return float(terms(there).p @ along) - own


@claim("QW-4.2-entropy")
def entropy_along_sampled_prefixes() -> Iterator[Found]:
    """Equal to the policy's own where it samples; elsewhere the error is of first order in the distance."""
    errors, off = [], []
    for problem in sampled_trees():
        errors.append(apart(_entropy_gap(problem, 0.0), 0.0))
        off.append(abs(_entropy_gap(problem, NEAR)))
        power = exponent(lambda h, world=problem: abs(_entropy_gap(world, h)))  # type: ignore[misc]
        errors.append(not_of_order(power, 1))
    yield from each_form(worst(errors), NEAR=NEAR, max_off=max(off))


@claim("QW-4.2-batches")
def sizes_of_batches() -> Iterator[Found]:
    """Prompts times answers are the mini-batch, and global over mini-batch is N."""
    main, small = 64 * 16, 128 * 16
    printed = ((2048, main, 2), (4096, main, 4), (8192, main, 8), (4096, small, 2))
    errors = [apart(whole / part, n) for whole, part, n in printed]
    yield from each_form(worst([*errors, apart(main, 1024), apart(small, 2048)]), main=main)


@claim("QW-2.4-later")
def later_updates_are_further_from_the_rollout() -> Iterator[Found]:
    """Eight updates with the answers of one rollout: its KL to the target grows with every update."""
    errors, drift = [], []
    for problem in sampled_trees():
        world, path = one_engine(problem), [0.0]
        for _ in range(UPDATES):
            world = world._replace(logits=world.logits + 0.2 * gradient_of(of_tokens, world))
            path.append(exact(forward_kl, world)[0])
        errors += [less(a, b, by=1e-9) for a, b in pairwise(path)]
        errors.append(apart(path[-1], float(terms(world).p @ -terms(world).log_ratio.sum(-1))))
        drift.append(path[-1] / path[1])
    yield from each_form(worst(errors), UPDATES=UPDATES, min_drift=min(drift), max_drift=max(drift))
