"""Sections 4 and 5: what a partial gradient does, and exact token KLs beside it (tang2025pitfalls)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import errors, learning, sequences
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import hedge_trees, trees
from kl_companion.tabular import prefix_tree


@claim("TM-4.1-reverse-seq", over=each(trees))
def gradient_of_the_reverse_sequence_kl(w: Enumeration) -> Iterator[Found]:
    """grad KL_seq(ref, pi) is the sum of the same token gradients, its prefixes drawn from the reference."""
    yield same(w.partial(forward=True, visits=w.ref), w.d_forward)
    yield differs(w.partial(forward=True), w.d_forward)
    yield differs(w.grad("k3", per_token=True), w.d_forward)


@claim("TM-4.2-analytic-infeasible")
def analytic_sequence_gradient_needs_all_sequences() -> Iterator[Found]:
    """V^T sequences, and the KL depends on every prefix: no sum over fewer of them can be exact.

    With end-of-sequence there are fewer, growing by V - 1 per token. Which prefixes matter is asked of the
    gradient in the logits of the reference: it vanishes at no prefix.
    """
    for v, length in ((2, 3), (3, 2), (3, 4), (4, 3)):
        yield same(len(prefix_tree(v, length).sequences), v**length)
        shorter, longer = (len(prefix_tree(v, n, eos=True).sequences) for n in (length, length + 1))
        yield at_most(longer, v ** (length + 1))
        yield same(longer - shorter, (v - 1) ** (length + 1))
    for problem in trees():
        yield printed(sequences.prefixes_without_effect(problem))
    yield numbers(digits=math.log10(1000) * 99)


def _token_gradients(w: Enumeration) -> torch.Tensor:
    """Exact gradients of the token KLs along every sequence, summed, [count, rows, vocab]."""
    p = w.problem.logits.softmax(-1)
    ratio = w.problem.logits.log_softmax(-1) - w.problem.ref_logits.log_softmax(-1)
    per_row = p * (ratio - (p * ratio).sum(-1, keepdim=True))
    visited = torch.nn.functional.one_hot(w.problem.rows, len(p)).double()
    return (visited * w.problem.completion_mask[..., None]).sum(1)[..., None] * per_row


@claim("TM-4.2-analytic-token", over=each(trees))
def analytic_token_gradients_leave_out_what_follows(w: Enumeration) -> Iterator[Found]:
    """Exact per token, eq (6) has the mean of part i, less variance than by samples, and the same bias."""
    exactly, sampled = _token_gradients(w), w.slope("k2", per_token=True)
    yield same(w.E(exactly), w.partial())
    yield same(w.E(sampled), w.partial())
    yield differs(w.E(exactly), w.d_kl)
    yield less(w.var(exactly), w.var(sampled))


def averaged_tokens(w: Enumeration) -> torch.Tensor:
    """Exact gradient of each token KL, and each score times the exact token KLs after it, per sequence."""
    future = sequences.token_kls(w.problem, w.problem.logits)
    return _token_gradients(w) + w.tokens(sequences.sum_from_here(future) - future)


def with_a_critic(w: Enumeration) -> torch.Tensor:
    """The cumulative estimate less the mean of the log-ratios ahead, per sequence."""
    ahead = sequences.sum_from_here(w.t.log_ratio)
    return w.tokens(ahead - sequences.values_of_prefixes(w.problem)[w.problem.rows])


@claim("TM-4.2-notoken-cv")
def how_hard_a_token_baseline_is() -> Iterator[Found]:
    """Difficult and hard are words of degree; a perfect critic is what can be computed."""
    shares = [w.var(with_a_critic(w)) / w.var(w.cumulative()) for w in each(hedge_trees)()]
    yield numbers(lower=sum(s < 1 for s in shares), trees=len(shares))


@claim("X-token-average")
def exact_token_kls_improve_on_the_cumulative_estimate() -> Iterator[Found]:
    """Replacing sampled log-ratios by the exact KL of each next token: no bias, as a rule less variance."""
    shares = []
    for w in each(hedge_trees, prefix_tree(2, 3, seed=2, eos=True, scale=4.0))():
        better = averaged_tokens(w)
        shares.append(w.var(better) / w.var(w.cumulative()))
        yield same(w.E(better), w.d_kl)
        yield same(w.E(with_a_critic(w)), w.d_kl)
    *shares, worse = shares
    yield printed(errors.hedged(s < 1 for s in shares))
    yield numbers(lower=sum(s < 1 for s in shares), trees=len(shares), worse=worse)
    yield numbers(average=sum(shares) / len(shares), most=max(shares))


def _descent(w: Enumeration) -> tuple[float, float]:
    """Slope of KL_seq down the expected token-level step, over that down the full one: per step, per length.

    The slopes are g.p and g.g with g the gradient and p its part i, divided by the length of the step for
    the second number, which is the cosine between the two.
    """
    visits = w.problem.token_logp(w.problem.logits).sum(-1).exp()  # `terms` would compute scores, too
    g, p = w.d_kl, w.partial(visits=visits)
    product = float((g * p).sum())
    return product / float(g.square().sum()), product / float(g.norm() * p.norm())


@claim("TM-5.3-full")
def full_gradient_minimizes_the_sequence_kl_faster() -> Iterator[Found]:
    """On average over random trees the token-level step lowers KL_seq less, the more so the higher it is."""
    scales = (1.0, 3.0, 6.0)
    drawn = [[Enumeration(prefix_tree(3, 3, seed=s, scale=c)) for s in range(200)] for c in scales]
    descents = torch.tensor([[_descent(w) for w in several] for several in drawn])
    rates, cosines = descents.unbind(-1)
    for rate in rates:
        yield printed(learning.lower_mean(rate, torch.ones_like(rate)))
    yield at_most(rates.mean(-1)[1:], rates.mean(-1)[:-1])
    for w in each(trees)():
        yield same(w.grad("k2", per_token=True), w.partial())
    yield numbers(rates=rates.mean(-1), reach=[2 * c for c in scales], cosines=cosines.mean(-1))
    yield numbers(faster=int((rates > 1).sum()), trees=rates.numel())


def _apart_per_token(w: Enumeration) -> float:
    """Distance of the expected token-level gradients of k3 and k2, over the size of the latter."""
    return errors.relative(w.grad("k3", per_token=True), w.grad("k2", per_token=True))


@claim("TM-5.2-far")
def token_level_estimates_part_far_from_the_reference() -> Iterator[Found]:
    """Near the reference both token-level gradients agree to first order; far away they do not."""
    for w in each(trees)():
        share, half = (_apart_per_token(w.near(bound)) for bound in (0.02, 0.01))
        yield less(share, 0.02)
        yield less(abs(share / half - 2), 0.2, by=0.0)
    far = [_apart_per_token(Enumeration(prefix_tree(3, 3, seed=seed, scale=3.0))) for seed in range(10)]
    yield less(0.25, min(far))
    yield numbers(least=min(far), most=max(far))
