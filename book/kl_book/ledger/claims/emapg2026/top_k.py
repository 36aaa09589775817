"""Section 5.3 and figure 8: a summed head and a sampled tail, their memory and their noise (emapg2026).

The bias of their gradients is in `kl_book.ledger.claims.emapg2026.top_k_bias`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, inside, less, printed, same
from kl_book.ledger.claims.ground import top_k
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.estimates import top_k_estimate
from kl_book.ledger.claims.ground.positions import STEP, moments
from kl_book.ledger.claims.ground.sums import exact, mean, terms, variance
from kl_book.ledger.claims.ground.synthetic_task import HEADS, forms, tasks
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, hedge_bandits, sampled_elsewhere
from kl_companion.estimators.top_k import top_k_forward_kl, top_k_reverse_kl
from kl_companion.tabular import Problem


@claim("EMA-5.3-partition", over=each(bandits))
def head_and_tail_add_up(w: Enumeration) -> Iterator[Found]:
    """KL = head + tail on every set, and the tail is the mean of K4 (forward: K5) outside the head."""
    p, q = w.t.logp.sum(-1), w.t.ref_logp.sum(-1)
    for chosen in top_k.every_set(w.problem):
        for split, truth, _ in top_k.PUBLISHED.values():
            entries, tail = split.head(p, q), (w.p * split.tail(p, q))[~chosen].sum()
            yield same(tail, entries[~chosen].sum())
            yield same(entries[chosen].sum() + tail, exact(truth, w.problem)[0])


@claim("EMA-5.3-special", over=each(bandits))
def both_ends_are_known(w: Enumeration) -> Iterator[Found]:
    """The whole vocabulary gives the exact KL in every sample, the empty set the mean of K4 and K5."""
    everything = torch.ones(len(w.p), dtype=torch.bool)
    for direction, name in (("reverse", "k4"), ("forward", "k5")):
        split, truth, _ = top_k.PUBLISHED[direction]
        value, gradient = top_k.mean_of_top_k(split, ~everything, w.problem)
        yield same(value, w.E(w.value(name)))
        yield same(gradient, w.grad(name))
        for chosen in (everything, ~everything):
            value, gradient = top_k.bias_of_top_k(split, truth, chosen, w.problem)
            yield same(value, 0.0)
            yield same(gradient, 0.0)


@claim("EMA-5.3-memory", over=lambda: (Enumeration(bandits()[i]) for i in (1, 4, 7)))
def few_numbers_are_read(w: Enumeration) -> Iterator[Found]:
    """The estimate and its gradient depend on 2 (k + 1) normalized log-probs per position at the most."""
    p, q = w.t.logp.sum(-1), w.t.ref_logp.sum(-1)
    for fn, direction, source in ((top_k_reverse_kl, "reverse", p), (top_k_forward_kl, "forward", q)):
        split = top_k.PUBLISHED[direction][0]
        for k in range(len(p) + 1):
            index = source.topk(k).indices
            for y in range(len(p)):
                leaves = [x.clone().requires_grad_() for x in (p, q)]
                estimate = fn(leaves[0], leaves[1], torch.tensor(y), indices=index, form="published")
                read = [g.count_nonzero() for g in torch.autograd.grad(estimate, leaves)]
                tail = 0.0 if y in index else split.tail(p[y], q[y])
                # the head reads what is stored, beside the sample
                yield same(estimate.detach(), split.head(p[index], q[index]).sum() + tail)
                yield at_most(float(sum(read)), 2 * (k + 1))


SHARES = (0.1, 0.3)  # of the vocabulary that the top k are, beside k = 1


class Noise(NamedTuple):
    """Variances of the sampled and of the top-k form, and by how much the head is worth its part."""

    sampled: float
    top_k: float
    saved: float


def noise(coefficient: torch.Tensor, chosen: torch.Tensor, p: torch.Tensor, x: torch.Tensor) -> Noise:
    """Variances of c x over the sampled token, and E[1_S |c x|^2] - (|E[c x]|^2 - |E[c x outside S]|^2)."""
    shape = (-1, *[1] * (x.ndim - 1))
    whole, tail = (c.reshape(shape) * x for c in (coefficient, coefficient * ~chosen))
    inside = float((p * chosen * whole.reshape(len(p), -1).square().sum(-1)).sum())
    saved = inside - float(mean(p, whole).square().sum() - mean(p, tail).square().sum())
    return Noise(variance(p, whole), variance(p, tail), saved)


class Compared(NamedTuple):
    """How often the top-k form is noisier than the sampled one, and by what factor of the variance."""

    noisier: int
    cases: int
    factor: float

    @property
    def share(self) -> float:
        """Of the cases in which it is noisier."""
        return self.noisier / self.cases


@cache
def compared(*, gradients_only: bool = False) -> Compared:
    """Both directions over the fixed list of bandits, with three sizes of the top-k part each."""
    of_all: list[Noise] = []
    for problem in hedge_bandits():
        t = terms(problem)
        log_t = t.log_ratio.sum(-1)
        w, one = (-log_t).exp(), torch.ones_like(log_t)[:, None]
        reverse, forward = [*top_k.of_the_policy(problem)], [*top_k.of_the_reference(problem)]
        for k in sorted({1, *(max(1, round(share * len(log_t))) for share in SHARES)}):
            of_both = [(reverse[k], log_t, t.score), (forward[k], 1 - w, t.score)]
            if not gradients_only:
                of_both += [(reverse[k], log_t, one), (forward[k], -w * log_t, one)]
            of_all += [noise(c, chosen, t.p, x) for chosen, c, x in of_both]
    factors = [n.top_k / n.sampled for n in of_all]
    return Compared(sum(x > 1 for x in factors), len(factors), max(factors))


def bounds_of_the_noise(w: Enumeration) -> Iterator[Found]:
    """The exact condition and the bound, for every set of tokens."""
    ratio, one = (-w.l).exp(), torch.ones_like(w.l)[:, None]
    for chosen in top_k.every_set(w.problem):
        for c, x in ((w.l, w.s), (1 - ratio, w.s), (w.l, one), (-ratio * w.l, one)):
            n = noise(c, chosen, w.p, x)
            yield at_most(abs(n.sampled - n.top_k - n.saved), 1e-12 * (1 + n.sampled), "corrected")
    second_moment = w.E(w.l.square() * w.s.flatten(1).square().sum(-1))
    r = float(w.d_kl.square().sum() / second_moment)
    for chosen in top_k.every_set(w.problem):  # whatever the set, sampling gains no more than a factor 1 - R
        n = noise(w.l, chosen, w.p, w.s)
        yield at_most(n.top_k * (1 - r), n.sampled + 1e-12 * (1 + n.sampled), "corrected")
    largest = float(w.p.max())
    yield at_most(r, largest / (1 - largest) ** 2 + 1e-12, "corrected")


def two_even_tokens() -> Noise:
    """Noise of the reverse gradient of the policy (0.5, 0.5), reference (0.51, 0.49), first token summed."""
    w = two((0.5, 0.5), (0.51, 0.49))
    return noise(w.l, torch.tensor([True, False]), w.p, w.s)


def less_noise_in_appendix_g() -> Iterator[Found]:
    """Every task of the setting has the less noisy gradient with every k."""
    for x, k in itertools.product(tasks(), HEADS):
        yield less(forms(x, k)["published"].noise, forms(x, k)["sampled"].noise, "inside")


@claim("EMA-5.3-lowervar")
def less_noise_than_sampling() -> Iterator[Found]:
    """Var top-k <= Var sampled exactly where the head saves more second moment than squared mean."""
    cases, n = compared(), two_even_tokens()
    yield printed(cases.share)
    yield from less_noise_in_appendix_g()
    yield printed(float(n.top_k > n.sampled) / cases.cases)
    for w in each(bandits)():
        yield from bounds_of_the_noise(w)


@words("EMA-5.3-lowervar", "EMA-6-distillation")
def noise_of_two_tokens_and_of_many() -> dict[str, Any]:
    """Variances with two tokens, and how often the top-k form is noisier on the fixed list."""
    return {**two_even_tokens()._asdict(), **compared()._asdict()}


def _head_field(problem: Problem, k: int, visits: torch.Tensor) -> torch.Tensor:
    """Sum over prefixes of visits times the gradient of the head at the prefix, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    p, q = theta.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    index = problem.sampled_from.topk(k).indices
    head = top_k.REVERSE.head(p.gather(-1, index), q.gather(-1, index)).sum(-1)
    (gradient,) = torch.autograd.grad((visits * head).sum(), theta)
    return gradient


def _visits(problem: Problem, p: torch.Tensor) -> torch.Tensor:
    """Expected visits of every prefix row, by the probabilities of whole sequences."""
    seen = torch.zeros(len(problem.logits), dtype=torch.float64)
    weight = p.unsqueeze(-1) * problem.completion_mask
    return seen.index_add(0, problem.rows.flatten(), weight.flatten())


def _head_of_the_sampler(w: Enumeration, k: int) -> float:
    """Error of the head's expected gradient at the prefixes that the sampler visits."""
    return relative(*(_head_field(w.problem, k, _visits(w.problem, p)) for p in (w.p, w.pi)))


@claim("EMA-fig8-head", over=each(sampled_elsewhere))
def the_head_is_always_on_policy(w: Enumeration) -> Iterator[Found]:
    """At a prefix the head needs no pi/mu; which prefixes are visited is still the sampler's choice."""
    count, vocab = w.problem.logits.shape
    form = inside if count == 1 else printed
    for k in range(1, vocab + 1):
        yield form(_head_of_the_sampler(w, k))
    if count == 1:
        yield same(_head_field(w.problem, vocab, _visits(w.problem, w.p)), w.d_kl, "inside")


@words("EMA-fig8-head")
def largest_error_of_the_head() -> dict[str, Any]:
    """Over worlds that another policy samples, and all k."""
    sizes = ((w, range(1, w.problem.logits.shape[1] + 1)) for w in each(sampled_elsewhere)())
    return {"largest": max(_head_of_the_sampler(w, k) for w, ks in sizes for k in ks)}


def _read(problem: Problem, k: int, *, forward: bool) -> torch.Tensor:
    """How many of the anchor's log-probs the estimate of each sample depends on, [count]."""
    p, q = terms(problem).logp.sum(-1), terms(problem).ref_logp.sum(-1)
    before = top_k_estimate(p, q, k=k, forward=forward)
    moved = (top_k_estimate(p, q + STEP * one, k=k, forward=forward) for one in torch.eye(len(q)).double())
    return torch.stack([after != before for after in moved]).sum(0)


def _cross_entropy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """-sum pi_ref log pi: the loss of distillation."""
    return -(q.exp() * p).sum()


@claim("EMA-6-distillation")
def a_dense_signal() -> Iterator[Found]:
    """One draw reads k or k + 1 of the anchor's log-probs instead of one; the noise is less, or is not."""
    yield printed(compared(gradients_only=True).share)  # EMA-5.3-lowervar has values too
    yield from less_noise_in_appendix_g()
    for w in each(bandits)():
        yield from bounds_of_the_noise(w)
        for forward, scores in ((False, w.t.logp.sum(-1)), (True, w.t.ref_logp.sum(-1))):
            for k, chosen in enumerate(top_k.heads(scores)):
                yield same(_read(w.problem, k, forward=forward), k + (~chosen).long(), "corrected")
        whole = moments(partial(top_k_estimate, k=len(w.p), forward=True), w.problem)[1]
        yield same(whole, exact(_cross_entropy, w.problem)[1], "corrected")
