"""Section 6 and figure 8: remarks on what head and tail of Top-k KL are good for (emapg2026)."""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.claims.emapg2026.splits import PUBLISHED, bias, heads, weights
from kl_companion.claims.emapg2026.table_one import SEEN, STEP, k4, k5, moments, with_head
from kl_companion.claims.emapg2026.top_k import noise, of_the_reference, of_the_sampler
from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.off_policy import sampled_elsewhere, three_policies
from kl_companion.claims.worlds import (
    apart,
    bandits,
    differentiated,
    differs,
    exact,
    forward_kl,
    reverse_kl,
    terms,
    two_policies,
    values,
    worst,
)
from kl_companion.tabular import Problem


def _read(problem: Problem, k: int, *, forward: bool) -> torch.Tensor:
    """How many of the anchor's log-probs the estimate of each sample depends on, [count]."""
    p, q = terms(problem).logp.sum(-1), terms(problem).ref_logp.sum(-1)
    before = with_head(p, q, k=k, forward=forward)
    moved = (with_head(p, q + STEP * one, k=k, forward=forward) for one in torch.eye(len(q)).double())
    return torch.stack([after != before for after in moved]).sum(0)


def _cross_entropy(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """-sum pi_ref log pi: the loss of distillation."""
    return -(q.exp() * p).sum()


@claim("EMA-6-distillation")
def a_dense_signal() -> Evidence:
    """One draw reads k or k + 1 of the anchor's log-probs instead of one; the noise is less, or is not."""
    printed, inside = [], []
    for problem in (*bandits(), two_policies((0.51, 0.49), (0.515, 0.485))):
        t = terms(problem)
        p, log_t = t.logp.sum(-1), t.log_ratio.sum(-1)
        for forward, scores in ((False, p), (True, t.ref_logp.sum(-1))):
            for k, chosen in enumerate(heads(scores)):
                inside.append(apart(_read(problem, k, forward=forward), k + (~chosen).long()))
                c = 1 - (-log_t).exp() if forward else log_t
                n = noise(c, chosen, t.p, t.score)
                printed.append(violation(n.top_k - n.sampled))
                if n.saved >= 0:
                    inside.append(violation(n.top_k - n.sampled - 1e-12 * (1 + n.sampled)))
        whole = moments(partial(with_head, k=len(p), forward=True), problem)[1]
        inside.append(apart(whole, exact(_cross_entropy, problem)[1]))
    n = noise(log_t, p >= p.max(), t.p, t.score)  # of the last problem
    return Evidence(
        max(worst(printed), worst(inside)),
        inside=worst(inside),
        condition=(
            "the signal is dense (one draw reads the anchor at k tokens, or k + 1, instead of one, and with "
            "k = |V| the forward form has the gradient of distillation); the noise is less where the head "
            "saves more second moment than squared mean (EMA-5.3-lowervar)"
        ),
        counterexample=(
            "policy (0.51, 0.49), reference (0.515, 0.485), k = 1: gradient variance "
            f"{n.top_k:.2g} with the head, {n.sampled:.2g} without"
        ),
    )


@claim("EMA-6-positive-k")
def without_a_head_nothing_changes() -> Evidence:
    """k = 0 is K4 (forward: K5) sample by sample; k = 1 is another estimate already, k = |V| the exact KL."""
    errors = []
    for problem in bandits():
        for forward, sampled, truth in ((False, k4, reverse_kl), (True, k5, forward_kl)):
            everything = partial(with_head, k=len(terms(problem).p), forward=forward)
            errors.append(apart(values(everything, problem), exact(truth, problem)[0]))  # no noise is left
            for k in range(len(terms(problem).p) + 1):
                form = partial(with_head, k=k, forward=forward)
                if k:
                    errors.append(differs(values(form, problem), values(sampled, problem), SEEN))
                else:
                    errors.append(apart(differentiated(form, problem), differentiated(sampled, problem)))
                    errors.append(apart(values(form, problem), values(sampled, problem)))
    return Evidence(
        worst(errors),
        condition="beside the sampled estimate; what a head with k > 0 gains is EMA-5.3-lowervar",
    )


def _tails(problem: Problem, direction: str, chosen: torch.Tensor) -> tuple[float, float, float]:
    """Bias of the value: with the tail corrected by pi/mu, as it is sampled, and without a tail."""
    split, truth, _ = PUBLISHED[direction]
    without = split._replace(tail=lambda p, q: 0 * p)
    corrected = bias(split, truth, chosen, problem, weights(problem))
    left, dropped = (bias(x, truth, chosen, problem) for x in (split, without))
    return abs(corrected[0]), abs(left[0]), abs(dropped[0])


def _outside(problem: Problem, direction: str, chosen: torch.Tensor) -> float:
    """The part of the KL that the tokens outside the head hold, by its definition."""
    p, q = problem.logits[0].log_softmax(-1), problem.ref_logits[0].log_softmax(-1)
    a, b = (p, q) if direction == "reverse" else (q, p)
    return abs((a.exp() * (a - b))[~chosen].sum().item())


@claim("EMA-fig8-tail")
def an_uncorrected_tail() -> Evidence:
    """Corrected it is right. As it is it misses the KL, and by more than none at all where mu is far away."""
    printed, inside, worse = [], [], {"reverse": 0, "forward": 0}
    near = three_policies((0.5, 0.3, 0.2), (0.2, 0.35, 0.45), (0.48, 0.33, 0.19))
    for problem in (*sampled_elsewhere()[:6], near):
        for direction, heads_of in (("reverse", of_the_sampler), ("forward", of_the_reference)):
            for chosen in [*heads_of(problem)][1:-1]:
                corrected, left, dropped = _tails(problem, direction, chosen)
                inside += [corrected, violation(SEEN - left), violation(SEEN - dropped)]
                inside.append(apart(dropped, _outside(problem, direction, chosen)))
                printed.append(violation(dropped - left))
                worse[direction] += left > dropped
    example = _tails(near, "reverse", torch.tensor([True, False, False]))
    return Evidence(
        max(worst(inside), worst(printed)),
        inside=worst(inside),
        condition=(
            "as advice to correct it, which leaves no bias of the value while no weight is clipped. An "
            "uncorrected tail is worse than none where mu is far from pi: here under "
            f"{worse['reverse']} (reverse) and {worse['forward']} (forward) of {len(printed) // 2} heads each"
        ),
        counterexample=(
            "pi = (0.5, 0.3, 0.2), pi_ref = (0.2, 0.35, 0.45), mu = (0.48, 0.33, 0.19), S = {first token}: "
            f"with the uncorrected tail the value is off by {example[1]:.4f}, without it by {example[2]:.4f}"
        ),
    )
