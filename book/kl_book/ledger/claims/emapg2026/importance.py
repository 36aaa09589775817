"""Section 5.2 off-policy: importance weights on sampled tokens, and what they leave out (emapg2026)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Form, Found, differs, same
from kl_book.ledger.claims.ground.estimates import SAMPLED, k3, k3_plus_plus, k4, top_k_estimate
from kl_book.ledger.claims.ground.positions import OBJECTIVES, SMALLEST_BIAS, importance_weighted, moments
from kl_book.ledger.claims.ground.sequences import softmax_pull, token_kls, visit_probabilities
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, three_policies, tree_of
from kl_companion.tabular import Problem, bandit, truncate

UNBIASED = {"K3++": "reverse", "K4": "reverse", "K5": "forward"}  # of value and gradient, and of which KL


@cache
def elsewhere() -> tuple[Problem, ...]:
    """One token that another policy samples, every token with some probability."""
    flat = tuple(p for p in sampled_elsewhere() if p.rows.shape[1] == 1)
    return (*flat, bandit(12, seed=4, scale=2.0, off_policy=True))


@claim("EMA-5.2-offpolicy", over=each(elsewhere))
def the_weight_keeps_what_was_unbiased(w: Enumeration) -> Iterator[Found]:
    """E_mu[s x] = E_pi[x], of values and gradients; without s it is not."""
    for name, estimate in SAMPLED.items():
        weighted = moments(importance_weighted(estimate, w.problem), w.problem)
        at_home, alone = (
            moments(estimate, w.replace(behavior_logits=None).problem),
            moments(estimate, w.problem),
        )
        right = exact(OBJECTIVES[UNBIASED[name]], w.problem) if name in UNBIASED else at_home
        for i in (0, 1):  # value, gradient
            yield same(weighted[i], at_home[i])
            yield same(weighted[i], right[i])
            if name in UNBIASED:
                yield differs(alone[i], right[i], by=SMALLEST_BIAS)


@words("EMA-5.2-offpolicy")
def from_the_policy_cut_to_two_tokens() -> dict[str, Any]:
    """Mass of the two, mean of the weighted K4, KL."""
    w = Enumeration(truncate(bandit(4, seed=1), top_k=2))
    mean = moments(importance_weighted(k4, w.problem), w.problem)[0]
    return {"mass": w.problem.logits[0].softmax(-1).topk(2).values.sum(), "mean": mean, "kl": w.kl}


def _head_only(logp: torch.Tensor, ref_logp: torch.Tensor, *, k: int, forward: bool) -> torch.Tensor:
    """The exact sum over the head of algorithm 1 or 2."""
    head = (ref_logp if forward else logp).detach().topk(k).indices
    p, q, x = logp[head].exp(), ref_logp[head].exp(), (logp - ref_logp)[head]
    return (-q * x if forward else p * x).sum()


def _clipped(w: Enumeration, clip: tuple[float, float], k: int, forward: bool) -> tuple[float, torch.Tensor]:
    """Mean value and gradient of algorithm 1 or 2 with clipped weights on the sampled part."""
    form, head = (partial(f, k=k, forward=forward) for f in (top_k_estimate, _head_only))

    def estimate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        tail = importance_weighted(lambda x, y: form(x, y) - head(a, b), w.problem, clip)
        return head(a, b) + tail(a, b)

    return moments(estimate, w.problem)


@claim("EMA-5.2-clip", over=each(elsewhere))
def clipped_weights(w: Enumeration) -> Iterator[Found]:
    """Values stay unbiased while no weight reaches the range's ends; one clipped weight biases them.

    Values of both algorithms for every k, gradients of K4 and of K5.
    """
    clips: dict[Form, tuple[float, float]] = {"inside": (0.0, float(w.rho.max()) + 1), "printed": (0.5, 2.0)}
    for (form, clip), target in itertools.product(clips.items(), ("reverse", "forward")):
        value, gradient = exact(OBJECTIVES[target], w.problem)
        of_each_k = [_clipped(w, clip, k, target == "forward") for k in range(len(w.p) + 1)]
        for mean, _ in of_each_k:
            yield same(mean, value, form)
        yield same(of_each_k[0][1], gradient, form)


@words("EMA-5.2-clip")
def one_clipped_weight() -> dict[str, Any]:
    """Mean of K4, and the KL."""
    w = Enumeration(three_policies((0.5, 0.5), (0.25, 0.75), (0.9, 0.1)))
    return {"mean": moments(importance_weighted(k4, w.problem, (0.0, 2.5)), w.problem)[0], "kl": w.kl}


@claim("EMA-eq22+resembles", over=each(elsewhere))
def k3_plus_plus_and_the_modified_k3(w: Enumeration) -> Iterator[Found]:
    """K3 with the attached ratio pi/pi_old, and sg(pi/pi_old) K3++: one value and one gradient per sample."""
    yield same(w.in_loss(k3), w.in_loss(k3_plus_plus, "detached"))
    yield same(w.value(k3), w.value(k3_plus_plus))
    yield differs(w.in_loss(k3), w.in_loss(k3, "detached"))
    yield same(moments(importance_weighted(k3_plus_plus, w.problem), w.problem)[1], w.d_kl)


SMALL = three_policies((0.75, 0.25), (0.5, 0.5), (0.5, 0.5))


@claim("EMA-eq22+sg", over=each(elsewhere, SMALL))
def the_weight_should_carry_no_gradient(w: Enumeration) -> Iterator[Found]:
    """Detached it keeps the on-policy value and gradient of every estimator; attached it does not."""
    for estimate in SAMPLED.values():
        value, gradient = moments(estimate, w.replace(behavior_logits=None).problem)
        yield same(moments(importance_weighted(estimate, w.problem), w.problem)[0], value)
        yield same(w.E(w.in_loss(estimate, "detached")), gradient)
        yield differs(w.E(w.in_loss(estimate)), gradient)
    yield same(w.E(w.in_loss(k3)), w.d_kl)


@words("EMA-eq22+sg")
def first_logit_from_a_weighted_k3() -> dict[str, Any]:
    """With the weight attached and detached."""
    attached, detached = (
        Enumeration(SMALL).E(Enumeration(SMALL).in_loss(k3, r)) for r in ("attached", "detached")
    )
    return {"attached": attached[0, 0], "detached": detached[0, 0]}


def _exact_kls(w: Enumeration, weights: torch.Tensor) -> torch.Tensor:
    """Sum of the exact KLs of tokens with these weights [count, length]."""
    return (weights * token_kls(w.problem, w.problem.logits)).sum()


@cache
def _one_way_to_diverge() -> Problem:
    """Two binary tokens; the policy leaves the reference after one of the first tokens, which mu avoids."""
    half, far = (0.5, 0.5), (0.9, 0.1)
    behavior = torch.tensor([far, half, far], dtype=torch.float64).log()
    return tree_of([half, half, far], [half, half, half])._replace(behavior_logits=behavior)


def longer_elsewhere() -> list[Problem]:
    """Several tokens that another policy samples."""
    return [*(p for p in sampled_elsewhere() if p.rows.shape[1] > 1), _one_way_to_diverge()]


@claim("EMA-5.2-exactonpolicy", over=each(longer_elsewhere))
def exact_kl_needs_no_weight(w: Enumeration) -> Iterator[Found]:
    """At a given prefix it does not depend on who sampled; which prefixes count, does."""
    ratio = w.t.logp - w.problem.token_logp(w.problem.sampled_from)
    before = (ratio.cumsum(-1) - ratio).exp()  # of the tokens that lead to the prefix
    p, home = w.p[:, None], w.pi[:, None]
    yield same(_exact_kls(w, p), _exact_kls(w, home))
    yield same(_exact_kls(w, p * before), _exact_kls(w, home), "inside")
    yield same(w.partial(), w.partial(visits=home))
    yield same(w.partial(visits=p * before), w.partial(visits=home), "inside")
    visits = visit_probabilities(w.problem, w.problem.sampled_from)
    yield same(w.partial() / visits[:, None], softmax_pull(w.problem.logits, w.problem.ref_logits), "inside")


@words("EMA-5.2-exactonpolicy")
def exact_kls_along_either_sampler() -> dict[str, Any]:
    """Their mean sum under mu, and under the policy."""
    w = Enumeration(_one_way_to_diverge())
    return {"elsewhere": _exact_kls(w, w.p[:, None]), "home": w.kl}
