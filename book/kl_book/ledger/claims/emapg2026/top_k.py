"""Section 5.3 and figure 8: a summed head and a sampled tail, their memory and their noise (emapg2026).

The bias of their gradients is in `kl_book.ledger.claims.emapg2026.top_k_bias`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.evidence import Evidence
from kl_book.ledger.claims.ground.errors import apart, relative, violation, worst
from kl_book.ledger.claims.ground.estimates import top_k_estimate
from kl_book.ledger.claims.ground.positions import STEP, moments
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.top_k import (
    PUBLISHED,
    REVERSE,
    bias_of_top_k,
    every_set,
    heads,
    mean_of_top_k,
    of_the_policy,
    of_the_reference,
)
from kl_book.ledger.claims.ground.worlds import bandits, hedge_bandits, sampled_elsewhere, two_policies
from kl_companion.estimators.top_k import top_k_forward_kl, top_k_reverse_kl
from kl_companion.tabular import Problem


@claim("EMA-5.3-partition")
def head_and_tail_add_up() -> Iterator[Found]:
    """KL = head + tail on every set, and the tail is the mean of K4 (forward: K5) outside the head."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        for chosen in every_set(problem):
            for split, truth, _ in PUBLISHED.values():
                entries = split.head(t.logp.sum(-1), t.ref_logp.sum(-1))
                tail = (t.p * split.tail(t.logp.sum(-1), t.ref_logp.sum(-1)))[~chosen].sum()
                errors += [
                    apart(tail, entries[~chosen].sum()),
                    apart(entries[chosen].sum() + tail, exact(truth, problem)[0]),
                ]
    yield from each_form(worst(errors))


@claim("EMA-5.3-special")
def both_ends_are_known() -> Iterator[Found]:
    """The whole vocabulary gives the exact KL in every sample, the empty set the mean of K4 and K5."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        everything = torch.ones(len(t.p), dtype=torch.bool)
        for direction, name in (("reverse", "k4"), ("forward", "k5")):
            split, truth, _ = PUBLISHED[direction]
            value, gradient = mean_of_top_k(split, ~everything, problem)
            errors += [apart(value, mean(t.p, values(name, problem)))]
            errors += [apart(gradient, mean(t.p, differentiated(name, problem)))]
            for chosen in (everything, ~everything):
                off, slope = bias_of_top_k(split, truth, chosen, problem)
                errors += [abs(off), apart(slope, 0.0)]
    yield from each_form(worst(errors))


@claim("EMA-5.3-memory")
def few_numbers_are_read() -> Iterator[Found]:
    """The estimate and its gradient depend on 2 (k + 1) normalized log-probs per position at the most."""
    errors = []
    for problem in (bandits()[1], bandits()[4], bandits()[7]):
        t = terms(problem)
        p, q = t.logp.sum(-1), t.ref_logp.sum(-1)
        for k in range(len(p) + 1):
            for fn, (split, _, _), source in (
                (top_k_reverse_kl, PUBLISHED["reverse"], p),
                (top_k_forward_kl, PUBLISHED["forward"], q),
            ):
                index = source.topk(k).indices
                for y in range(len(p)):
                    leaves = [x.clone().requires_grad_() for x in (p, q)]
                    found = fn(leaves[0], leaves[1], torch.tensor(y), indices=index, form="published")
                    read = [g.count_nonzero() for g in torch.autograd.grad(found, leaves)]
                    kept = p[index], q[index]  # all that is stored, beside the sample
                    tail = 0.0 if y in index else split.tail(p[y], q[y])
                    errors.append(apart(found.detach(), split.head(*kept).sum() + tail))
                    errors.append(violation(float(sum(read)) - 2 * (k + 1)))
    yield from each_form(worst(errors))


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
    found = []
    for problem in hedge_bandits():
        t = terms(problem)
        log_t = t.log_ratio.sum(-1)
        w, one = (-log_t).exp(), torch.ones_like(log_t)[:, None]
        reverse, forward = [*of_the_policy(problem)], [*of_the_reference(problem)]
        for k in sorted({1, *(max(1, round(share * len(log_t))) for share in SHARES)}):
            of_both = [(reverse[k], log_t, t.score), (forward[k], 1 - w, t.score)]
            if not gradients_only:
                of_both += [(reverse[k], log_t, one), (forward[k], -w * log_t, one)]
            found += [noise(c, chosen, t.p, x) for chosen, c, x in of_both]
    factors = [n.top_k / n.sampled for n in found]
    return Compared(sum(x > 1 for x in factors), len(factors), max(factors))


def exact_comparison() -> float:
    """Error of the exact condition and of the bound, for every set of tokens."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        log_t = t.log_ratio.sum(-1)
        w, one = (-log_t).exp(), torch.ones_like(log_t)[:, None]
        for chosen in every_set(problem):
            for c, x in ((log_t, t.score), (1 - w, t.score), (log_t, one), (-w * log_t, one)):
                n = noise(c, chosen, t.p, x)
                errors.append(violation(abs(n.sampled - n.top_k - n.saved) - 1e-12 * (1 + n.sampled)))
        r = float(exact(reverse_kl, problem)[1].square().sum() / mean(t.p, _square(log_t, t.score)))
        for chosen in every_set(problem):  # whatever the set, sampling gains no more than a factor 1 - R
            n = noise(log_t, chosen, t.p, t.score)
            errors.append(violation(n.top_k * (1 - r) - n.sampled - 1e-12 * (1 + n.sampled)))
        largest = float(t.p.max())
        errors.append(violation(r - largest / (1 - largest) ** 2 - 1e-12))
    return worst(errors)


def two_even_tokens() -> Noise:
    """Noise of the reverse gradient of the policy (0.5, 0.5), reference (0.51, 0.49), first token summed."""
    t = terms(two_policies((0.5, 0.5), (0.51, 0.49)))
    return noise(t.log_ratio.sum(-1), torch.tensor([True, False]), t.p, t.score)


@claim("EMA-5.3-lowervar")
def less_noise_than_sampling() -> Iterator[Found]:
    """Var top-k <= Var sampled exactly where the head saves more second moment than squared mean."""
    found, n = compared(), two_even_tokens()
    yield from each_form(
        max(found.share, float(n.top_k > n.sampled) / found.cases),
        exact_comparison(),
        top_k=n.top_k,
        sampled=n.sampled,
        noisier=found.noisier,
        cases=found.cases,
        factor=found.factor,
    )


def _square(coefficient: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    return coefficient.square() * score.flatten(1).square().sum(-1)


def _head_field(problem: Problem, k: int, visits: torch.Tensor) -> torch.Tensor:
    """Sum over prefixes of visits times the gradient of the head at the prefix, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    p, q = theta.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    index = problem.sampled_from.topk(k).indices
    head = REVERSE.head(p.gather(-1, index), q.gather(-1, index)).sum(-1)
    (gradient,) = torch.autograd.grad((visits * head).sum(), theta)
    return gradient


def _visits(problem: Problem, p: torch.Tensor) -> torch.Tensor:
    """Expected visits of every prefix row, by the probabilities of whole sequences."""
    seen = torch.zeros(len(problem.logits), dtype=torch.float64)
    weight = p.unsqueeze(-1) * problem.completion_mask
    return seen.index_add(0, problem.rows.flatten(), weight.flatten())


@claim("EMA-fig8-head")
def the_head_is_always_on_policy() -> Iterator[Found]:
    """At a prefix the head needs no pi/mu; which prefixes are visited is still the sampler's choice."""
    printed, inside = [], []
    for problem in sampled_elsewhere():
        t = terms(problem)
        target = _visits(problem, t.logp.sum(-1).exp())
        vocab = problem.logits.shape[-1]
        for k in range(1, vocab + 1):
            found = _head_field(problem, k, _visits(problem, t.p))
            right = _head_field(problem, k, target)
            error = relative(found, right)
            printed.append(error)
            if len(problem.logits) == 1:
                inside.append(error)
        if len(problem.logits) == 1:
            inside.append(apart(found, exact(reverse_kl, problem)[1]))
    yield from each_form(worst(printed), inside=worst(inside), worst_printed=worst(printed))


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
def a_dense_signal() -> Evidence:
    """One draw reads k or k + 1 of the anchor's log-probs instead of one; the noise is less, or is not."""
    dense = []
    for problem in bandits():
        t = terms(problem)
        p = t.logp.sum(-1)
        for forward, scores in ((False, p), (True, t.ref_logp.sum(-1))):
            for k, chosen in enumerate(heads(scores)):
                dense.append(apart(_read(problem, k, forward=forward), k + (~chosen).long()))
        whole = moments(partial(top_k_estimate, k=len(p), forward=True), problem)[1]
        dense.append(apart(whole, exact(_cross_entropy, problem)[1]))
    found = less_noise_than_sampling()  # of values too; here it is the gradients alone
    noisier = compared(gradients_only=True).share
    return found._replace(printed=noisier, corrected=max(worst(dense), found.corrected or 0.0))
