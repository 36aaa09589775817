"""Section 5.3, algorithms 1 and 2: an exact head and a sampled tail, on every set of tokens (emapg2026)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_companion.claims.emapg2026.splits import (
    PUBLISHED,
    REPAIRED,
    REVERSE,
    averaged,
    bias,
    heads,
    mass_gradient,
    subsets,
    weights,
)
from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.off_policy import sampled_elsewhere, three_policies
from kl_companion.claims.worlds import (
    apart,
    bandits,
    differentiated,
    exact,
    mean,
    reverse_kl,
    terms,
    two_policies,
    values,
    variance,
    worst,
)
from kl_companion.estimators.top_k import top_k_forward_kl, top_k_reverse_kl
from kl_companion.tabular import Problem

CLIP = (0.0, 2.5)


@cache
def at_the_reference() -> Problem:
    """Four tokens, policy and reference equal."""
    p = torch.tensor([1.0, 0.5, 0.0, -0.5]).double().softmax(-1).tolist()
    return two_policies(p, p)


def _vector(x: torch.Tensor) -> str:
    return "(" + ", ".join(f"{v:.3f}" for v in x.flatten().tolist()) + ")"


def algorithm(
    direction: str, sets: Callable[[Problem], Iterator[torch.Tensor]], *, elsewhere: bool = False
) -> Evidence:
    """Whether value and gradient are unbiased for every set, as published and with one f throughout.

    The corrected error holds what is said of the published form too: its value is unbiased, and its
    gradient is off by plus (reverse) or minus (forward) the gradient of the head's probability.
    """
    split, truth, sign = PUBLISHED[direction]
    printed, corrected = [], []
    for problem in sampled_elsewhere()[:6] if elsewhere else bandits():
        rho, right = weights(problem) if elsewhere else None, exact(truth, problem)
        for chosen in sets(problem):
            value, gradient = bias(split, right, chosen, problem, rho)
            printed += [abs(value), apart(gradient, 0.0)]
            corrected += [abs(value), apart(gradient, sign * mass_gradient(chosen, problem))]
            for repaired in REPAIRED[direction]:
                value, gradient = bias(repaired, right, chosen, problem, rho)
                corrected += [abs(value), apart(gradient, 0.0)]
    small = at_the_reference()
    _, off = bias(split, truth, torch.tensor([True, False, False, False]), small)
    said = "+" if sign > 0 else "-"
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            f"the value is unbiased; the expected gradient is that of the KL {said} the gradient of P(S). "
            "Head and tail must be written with the same f: appendix H.3's tail, or the normalized f "
            "in both"
        ),
        counterexample=(
            f"policy = reference, logits (1, 0.5, 0, -0.5), S = {{first token}}: the {direction} form has "
            f"the expected gradient {_vector(off)}, and the KL has none"
        ),
    )


def of_the_policy(problem: Problem) -> Iterator[torch.Tensor]:
    """The k likeliest tokens of the policy, every k."""
    return heads(terms(problem).logp.sum(-1))


def of_the_reference(problem: Problem) -> Iterator[torch.Tensor]:
    """The k likeliest tokens of the reference, every k."""
    return heads(terms(problem).ref_logp.sum(-1))


def of_the_sampler(problem: Problem) -> Iterator[torch.Tensor]:
    """The k likeliest tokens of whoever samples, every k."""
    return heads(terms(problem).p)


def every_set(problem: Problem) -> Iterator[torch.Tensor]:
    """Every set of tokens."""
    return subsets(len(terms(problem).p))


def both(one: Evidence, other: Evidence) -> Evidence:
    """One statement about both directions."""
    return one._replace(
        printed=max(one.printed, other.printed),
        corrected=max(one.corrected or 0.0, other.corrected or 0.0),
        correction=f"{one.correction} (forward: - instead of +)",
    )


def in_both_directions(sets: Callable[[Problem], Iterator[torch.Tensor]] | None = None) -> Evidence:
    """The evidence about reverse and forward KL together; by default with the head that each one names."""
    return both(algorithm("reverse", sets or of_the_policy), algorithm("forward", sets or of_the_reference))


@claim("EMA-abstract-topk")
def unbiased_at_any_k() -> Evidence:
    """Value and gradient of both KLs, every k."""
    return in_both_directions()


@claim("EMA-fig2")
def a_masked_tail_keeps_it_unbiased() -> Evidence:
    """An exact head and a masked sample: unbiased."""
    return in_both_directions()


@claim("EMA-5.3-partition")
def head_and_tail_add_up() -> Evidence:
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
    return Evidence(worst(errors))


@claim("EMA-eq25-26")
def reverse_form() -> Evidence:
    """Head of the policy's likeliest tokens, K4 outside it."""
    return algorithm("reverse", of_the_policy)


@claim("EMA-eq27")
def forward_form() -> Evidence:
    """Head of the reference's likeliest tokens, K5 outside it."""
    return algorithm("forward", of_the_reference)


def _clipped(direction: str) -> str:
    """What a clip of pi/mu does to the value, in words and numbers."""
    problem = three_policies((0.5, 0.4, 0.1), (0.4, 0.2, 0.4), (0.85, 0.1, 0.05))
    split, truth, _ = PUBLISHED[direction]
    chosen = torch.tensor([True, False, False])
    off, _ = bias(split, truth, chosen, problem, weights(problem).clamp(*CLIP))
    return (
        f"; with pi/mu clipped to [{CLIP[0]:g}, {CLIP[1]:g}] the value is biased too: policy "
        f"(0.5, 0.4, 0.1), reference (0.4, 0.2, 0.4), mu (0.85, 0.1, 0.05), S = {{first token}}: "
        f"by {off:.3f} of {exact(truth, problem)[0]:.3f}"
    )


def printed_algorithm(direction: str, sets: Callable[[Problem], Iterator[torch.Tensor]]) -> Evidence:
    """The algorithm with the weight pi/mu on its tail, on- and off-policy, and what its clip adds."""
    evidence, elsewhere = algorithm(direction, sets), algorithm(direction, sets, elsewhere=True)
    return evidence._replace(
        printed=max(evidence.printed, elsewhere.printed),
        corrected=max(evidence.corrected or 0.0, elsewhere.corrected or 0.0),
        counterexample=f"{evidence.counterexample}{_clipped(direction)}",
        correction=f"{evidence.correction}, and pi/mu not clipped",
    )


@claim("EMA-alg1")
def algorithm_1() -> Evidence:
    """Reverse KL: head from the sampling policy, K4 outside it times pi/mu."""
    return printed_algorithm("reverse", of_the_sampler)


@claim("EMA-alg2")
def algorithm_2() -> Evidence:
    """Forward KL: head from the anchor, K5 outside it times pi/mu."""
    return printed_algorithm("forward", of_the_reference)


@claim("EMA-5.3-anyset")
def unbiased_for_any_set() -> Evidence:
    """Every set of tokens, whether it is a top-k or not."""
    return in_both_directions(every_set)


@claim("EMA-5.3-special")
def both_ends_are_known() -> Evidence:
    """The whole vocabulary gives the exact KL in every sample, the empty set the mean of K4 and K5."""
    errors = []
    for problem in bandits():
        t = terms(problem)
        everything = torch.ones(len(t.p), dtype=torch.bool)
        for direction, name in (("reverse", "k4"), ("forward", "k5")):
            split, truth, _ = PUBLISHED[direction]
            value, gradient = averaged(split, ~everything, problem)
            errors += [apart(value, mean(t.p, values(name, problem)))]
            errors += [apart(gradient, mean(t.p, differentiated(name, problem)))]
            for chosen in (everything, ~everything):
                off, slope = bias(split, truth, chosen, problem)
                errors += [abs(off), apart(slope, 0.0)]
    return Evidence(worst(errors))


@claim("EMA-5.3-memory")
def few_numbers_are_read() -> Evidence:
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
    return Evidence(
        worst(errors),
        condition=(
            "of log-probs that are normalized: their normalizer reads a whole row of logits once per position"
        ),
    )


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


@claim("EMA-5.3-lowervar")
def less_noise_than_sampling() -> Evidence:
    """Var top-k <= Var sampled exactly where the head saves more second moment than squared mean."""
    printed, inside = [], []
    for problem in bandits():
        t = terms(problem)
        log_t = t.log_ratio.sum(-1)
        w, one = (-log_t).exp(), torch.ones_like(log_t)[:, None]
        for chosen in every_set(problem):
            for c, x in ((log_t, t.score), (1 - w, t.score), (log_t, one), (-w * log_t, one)):
                n = noise(c, chosen, t.p, x)
                printed.append(violation(n.top_k - n.sampled))
                if n.saved >= 0:
                    inside.append(violation(n.top_k - n.sampled - 1e-12 * (1 + n.sampled)))
                inside.append(violation(abs(n.sampled - n.top_k - n.saved) - 1e-12 * (1 + n.sampled)))
        r = float(exact(reverse_kl, problem)[1].square().sum() / mean(t.p, _square(log_t, t.score)))
        for chosen in every_set(problem):  # whatever the set, sampling gains no more than a factor 1 - R
            n = noise(log_t, chosen, t.p, t.score)
            inside.append(violation(n.top_k * (1 - r) - n.sampled - 1e-12 * (1 + n.sampled)))
        largest = float(t.p.max())
        inside.append(violation(r - largest / (1 - largest) ** 2 - 1e-12))
    small = two_policies((0.5, 0.5), (0.51, 0.49))
    t = terms(small)
    n = noise(t.log_ratio.sum(-1), torch.tensor([True, False]), t.p, t.score)
    return Evidence(
        max(worst(printed), violation(n.top_k - n.sampled)),
        inside=worst(inside),
        condition=(
            "E[1_S |x|^2] >= |E x|^2 - |E x outside S|^2 for the sampled x (a value, or a coefficient times "
            "the score). The variance of the reverse gradient never exceeds the sampled one by more than a "
            "factor 1/(1 - R), with R = |grad KL|^2 / E|l s|^2 <= p_max / (1 - p_max)^2: next to "
            "nothing where no token has much probability. Only the noise: the published gradient is "
            "biased besides"
        ),
        counterexample=(
            f"policy (0.5, 0.5), reference (0.51, 0.49), S = {{first token}}: gradient variance "
            f"{n.top_k:.2g} with the head, {n.sampled:.2g} without"
        ),
    )


def _square(coefficient: torch.Tensor, score: torch.Tensor) -> torch.Tensor:
    return coefficient.square() * score.flatten(1).square().sum(-1)


@claim("EMA-5.3-mass", how="reading")
def mass_of_language_models() -> Evidence:
    """Next-token distributions of language models are concentrated on few tokens."""
    return Evidence(needs="a language model")


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
def the_head_is_always_on_policy() -> Evidence:
    """At a prefix the head needs no pi/mu; which prefixes are visited is still the sampler's choice."""
    printed, inside = [], []
    for problem in sampled_elsewhere():
        t = terms(problem)
        target = _visits(problem, t.logp.sum(-1).exp())
        vocab = problem.logits.shape[-1]
        for k in range(1, vocab + 1):
            found = _head_field(problem, k, _visits(problem, t.p))
            right = _head_field(problem, k, target)
            error = apart(found, right) / (1e-12 + apart(right, 0.0))
            printed.append(error)
            if len(problem.logits) == 1:
                inside.append(error)
        if len(problem.logits) == 1:
            inside.append(apart(found, exact(reverse_kl, problem)[1]))
    return Evidence(
        worst(printed),
        inside=worst(inside),
        condition="the prefix is given (one decision, or an objective at the prefixes of the sampler)",
        counterexample=(
            "trees whose prefixes another policy visits: an entry of the head's expected gradient is off by "
            f"up to {worst(printed):.0%} of the largest"
        ),
    )
