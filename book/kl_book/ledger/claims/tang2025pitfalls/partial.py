"""Sections 4 and 5: what a partial gradient does, and exact token KLs beside it (tang2025pitfalls)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.ground.errors import apart, differs, hedged, less, violation, worst
from kl_book.ledger.claims.ground.learning import lower_mean
from kl_book.ledger.claims.ground.sequences import (
    cumulative_gradients,
    partial_gradient,
    prefixes_without_effect,
    sum_from_here,
    token_kls,
    token_weighted,
    values_of_prefixes,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    mean,
    reverse_kl,
    terms,
    variance,
)
from kl_book.ledger.claims.ground.worlds import hedge_trees, near, trees
from kl_companion.tabular import Problem, prefix_tree


@claim("TM-4.1-reverse-seq")
def gradient_of_the_reverse_sequence_kl() -> Iterator[Found]:
    """grad KL_seq(ref, pi) is the sum of the same token gradients, its prefixes drawn from the reference."""
    errors = []
    for problem in trees():
        gradient = exact(forward_kl, problem)[1]
        from_reference = partial_gradient(problem, forward=True, visits=terms(problem).ref_logp.sum(-1).exp())
        errors += [
            apart(from_reference, gradient),
            differs(partial_gradient(problem, forward=True), gradient),
        ]
        found = mean(terms(problem).p, differentiated("k3", problem, per_token=True))
        errors.append(differs(found, gradient))
    yield from each_form(worst(errors))


@claim("TM-4.2-analytic-infeasible")
def analytic_sequence_gradient_needs_all_sequences() -> Iterator[Found]:
    """V^T sequences, and the KL depends on every prefix: no sum over fewer of them can be exact.

    With end-of-sequence there are fewer, growing by V - 1 per token. Which prefixes matter is asked of the
    gradient in the logits of the reference: it vanishes at no prefix.
    """
    errors = []
    for v, length in ((2, 3), (3, 2), (3, 4), (4, 3)):
        errors.append(apart(len(prefix_tree(v, length).sequences), v**length))
        shorter, longer = (len(prefix_tree(v, n, eos=True).sequences) for n in (length, length + 1))
        errors += [violation(longer - v ** (length + 1)), apart(longer - shorter, (v - 1) ** (length + 1))]
    errors += [prefixes_without_effect(p) for p in trees()]
    yield from each_form(worst(errors), number=math.log10(1000) * 99)


def _token_gradients(problem: Problem) -> torch.Tensor:
    """Exact gradients of the token KLs along every sequence, summed, [count, rows, vocab]."""
    p = problem.logits.softmax(-1)
    ratio = problem.logits.log_softmax(-1) - problem.ref_logits.log_softmax(-1)
    per_row = p * (ratio - (p * ratio).sum(-1, keepdim=True))
    visited = torch.nn.functional.one_hot(problem.rows, len(p)).double() * problem.completion_mask[..., None]
    return visited.sum(1)[..., None] * per_row


@claim("TM-4.2-analytic-token")
def analytic_token_gradients_leave_out_what_follows() -> Iterator[Found]:
    """Exact per token, eq (6) has the mean of part i, less variance than by samples, and the same bias."""
    errors = []
    for problem in trees():
        t, found = terms(problem), _token_gradients(problem)
        sampled = differentiated("k2", problem, per_token=True)
        errors += [
            apart(mean(t.p, found), partial_gradient(problem)),
            apart(mean(t.p, sampled), partial_gradient(problem)),
        ]
        errors.append(differs(mean(t.p, found), exact(reverse_kl, problem)[1]))
        errors.append(less(variance(t.p, found), variance(t.p, sampled)))
    yield from each_form(worst(errors))


def averaged_tokens(problem: Problem) -> torch.Tensor:
    """Exact gradient of each token KL, and each score times the exact token KLs after it, per sequence."""
    future = token_kls(problem, problem.logits)
    return _token_gradients(problem) + token_weighted(problem, sum_from_here(future) - future)


def _beside_cumulative(problem: Problem) -> tuple[float, float, float]:
    """Variance over the cumulative estimate's, with exact token KLs and with a perfect critic; their bias."""
    p, (_, gradient) = terms(problem).p, exact(reverse_kl, problem)
    costs = sum_from_here(terms(problem).log_ratio) - values_of_prefixes(problem)[problem.rows]
    better, critic = averaged_tokens(problem), token_weighted(problem, costs)
    before = variance(p, cumulative_gradients(problem))
    bias = max(apart(mean(p, better), gradient), apart(mean(p, critic), gradient))
    return variance(p, better) / before, variance(p, critic) / before, bias


@claim("TM-4.2-notoken-cv")
def how_hard_a_token_baseline_is() -> Iterator[Found]:
    """Difficult and hard are words of degree; a perfect critic is what can be computed."""
    shares = [_beside_cumulative(p)[1] for p in hedge_trees()]
    yield numbers(sum=sum(s < 1 for s in shares), number_of_shares=len(shares))


@claim("X-token-average")
def exact_token_kls_improve_on_the_cumulative_estimate() -> Iterator[Found]:
    """Replacing sampled log-ratios by the exact KL of each next token: no bias, as a rule less variance."""
    far = prefix_tree(2, 3, seed=2, eos=True, scale=4.0)
    found = [_beside_cumulative(p) for p in (*hedge_trees(), far)]
    *shares, worse = (share for share, _, _ in found)
    yield from each_form(
        max(worst(bias for *_, bias in found), hedged(s < 1 for s in shares)),
        sum=sum(s < 1 for s in shares),
        number_of_shares=len(shares),
        number=sum(shares) / len(shares),
        max_shares=max(shares),
        worse=worse,
    )


def _descent(problem: Problem) -> tuple[float, float]:
    """Slope of KL_seq down the expected token-level step, over that down the full one: per step, per length.

    The slopes are g.p and g.g with g the gradient and p its part i, divided by the length of the step for
    the second number, which is the cosine between the two.
    """
    visits = problem.token_logp(problem.logits).sum(-1).exp()  # `terms` would compute scores, too
    g, p = exact(reverse_kl, problem)[1], partial_gradient(problem, visits=visits)
    product = float((g * p).sum())
    return product / float(g.square().sum()), product / float(g.norm() * p.norm())


@claim("TM-5.3-full")
def full_gradient_minimizes_the_sequence_kl_faster() -> Iterator[Found]:
    """On average over random trees the token-level step lowers KL_seq less, the more so the higher it is."""
    scales = (1.0, 3.0, 6.0)
    found = {c: [_descent(prefix_tree(3, 3, seed=s, scale=c)) for s in range(200)] for c in scales}
    rates = [torch.tensor([rate for rate, _ in found[c]]) for c in scales]
    errors = [lower_mean(r, torch.ones_like(r)) for r in rates]
    errors += [violation(float(b.mean() - a.mean())) for a, b in itertools.pairwise(rates)]
    for problem in trees():
        sampled = mean(terms(problem).p, differentiated("k2", problem, per_token=True))
        errors.append(apart(sampled, partial_gradient(problem)))
    every = torch.cat(rates)
    cosines = [sum(cosine for _, cosine in found[c]) / len(found[c]) for c in scales]
    yield from each_form(
        worst(errors),
        number=", ".join(f"{float(r.mean()):.2f}" for r in rates),
        number_2=", ".join(f"{2 * c:g}" for c in scales),
        number_3=", ".join(f"{c:.2f}" for c in cosines),
        int=int((every > 1).sum()),
        number_of_every=len(every),
    )


def _apart_per_token(problem: Problem) -> float:
    """Distance of the expected token-level gradients of k3 and k2, over the size of the latter."""
    p = terms(problem).p
    right, other = (mean(p, differentiated(k, problem, per_token=True)) for k in ("k2", "k3"))
    return float((other - right).norm() / right.norm())


@claim("TM-5.2-far")
def token_level_estimates_part_far_from_the_reference() -> Iterator[Found]:
    """Near the reference both token-level gradients agree to first order; far away they do not."""
    errors, far = [], []
    for problem in trees():
        shares = [_apart_per_token(near(problem, bound)) for bound in (0.02, 0.01)]
        errors += [less(shares[0], 0.02), violation(abs(shares[0] / shares[1] - 2) - 0.2)]
    for seed in range(10):
        far.append(_apart_per_token(prefix_tree(3, 3, seed=seed, scale=3.0)))
    errors.append(less(0.25, min(far)))
    yield from each_form(worst(errors), min_far=min(far), max_far=max(far))
