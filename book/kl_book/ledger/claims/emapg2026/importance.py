"""Section 5.2 off-policy: importance weights on sampled tokens, and what they leave out (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Literal

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, worst
from kl_book.ledger.claims.ground.estimates import SAMPLED, Estimate, k3, k3_plus_plus, k4, top_k_estimate
from kl_book.ledger.claims.ground.off_policy import in_loss, rho
from kl_book.ledger.claims.ground.positions import OBJECTIVES, SMALLEST_BIAS, importance_weighted, moments
from kl_book.ledger.claims.ground.sequences import token_kls
from kl_book.ledger.claims.ground.sums import exact, reverse_kl, terms, values
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, three_policies, tree_of
from kl_companion.tabular import Problem, bandit, truncate

DIRECTION = {"K5": "forward"}  # of the gradient that belongs to the value; reverse for the others
UNBIASED = ("K3++", "K4", "K5")


@cache
def elsewhere() -> tuple[Problem, ...]:
    """One token that another policy samples, every token with some probability."""
    flat = tuple(p for p in sampled_elsewhere() if p.rows.shape[1] == 1)
    return (*flat, bandit(12, seed=4, scale=2.0, off_policy=True))


def bias(estimate: Estimate, problem: Problem, target: str) -> tuple[float, float]:
    """Errors of the expected value and of the expected gradient."""
    value, gradient = exact(OBJECTIVES[target], problem)
    found = moments(estimate, problem)
    return apart(found[0], value), apart(found[1], gradient)


@claim("EMA-5.2-offpolicy")
def the_weight_keeps_what_was_unbiased() -> Iterator[Found]:
    """E_mu[s x] = E_pi[x], of values and gradients; without s it is not."""
    errors: list[float] = []
    for problem in elsewhere():
        at_home = problem._replace(behavior_logits=None)
        for estimate in SAMPLED.values():
            here, there = moments(importance_weighted(estimate, problem), problem), moments(estimate, at_home)
            errors += [apart(here[0], there[0]), apart(here[1], there[1])]
        for name in UNBIASED:
            target = DIRECTION.get(name, "reverse")
            errors += bias(importance_weighted(SAMPLED[name], problem), problem, target)
            errors += [max(0.0, SMALLEST_BIAS - e) for e in bias(SAMPLED[name], problem, target)]
    cut = truncate(bandit(4, seed=1), top_k=2)
    found, kl = moments(importance_weighted(k4, cut), cut)[0], exact(reverse_kl, cut)[0]
    kept = float(cut.logits[0].softmax(-1).topk(2).values.sum())
    yield from each_form(worst(errors), kept=kept, found=found, kl=kl)


def _clipped(problem: Problem, clip: tuple[float, float]) -> list[float]:
    """Errors with clipped weights: values of both algorithms for every k, gradients of K4 and of K5."""
    errors = []
    logp = problem.logits[0].log_softmax(-1)
    for target in ("reverse", "forward"):
        value, gradient = exact(OBJECTIVES[target], problem)
        for k in range(len(logp) + 1):
            form = partial(top_k_estimate, k=k, forward=target == "forward")
            head = partial(_head_only, k=k, forward=target == "forward")

            def estimate(a: torch.Tensor, b: torch.Tensor, form=form, head=head) -> torch.Tensor:  # type: ignore[no-untyped-def]
                first = head(a, b)
                return first + importance_weighted(lambda x, y: form(x, y) - first, problem, clip)(a, b)

            found = moments(estimate, problem)
            errors.append(apart(found[0], value))
            errors += [apart(found[1], gradient)] if k == 0 else []
    return errors


def _head_only(logp: torch.Tensor, ref_logp: torch.Tensor, *, k: int, forward: bool) -> torch.Tensor:
    """The exact sum over the head of algorithm 1 or 2."""
    chosen = (ref_logp if forward else logp).detach().topk(k).indices
    p, q, x = logp[chosen].exp(), ref_logp[chosen].exp(), (logp - ref_logp)[chosen]
    return (-q * x if forward else p * x).sum()


@claim("EMA-5.2-clip")
def clipped_weights() -> Iterator[Found]:
    """Values stay unbiased while no weight reaches the range's ends; one clipped weight biases them."""
    wide = [e for p in elsewhere() for e in _clipped(p, (0.0, float(rho(p).max()) + 1))]
    tight = [e for p in elsewhere() for e in _clipped(p, (0.5, 2.0))]
    small = three_policies((0.5, 0.5), (0.25, 0.75), (0.9, 0.1))
    found = moments(importance_weighted(k4, small, (0.0, 2.5)), small)[0]
    yield from each_form(
        max(worst(wide), worst(tight)), inside=worst(wide), found=found, number=exact(reverse_kl, small)[0]
    )


@claim("EMA-eq22+resembles")
def k3_plus_plus_and_the_modified_k3() -> Iterator[Found]:
    """K3 with the attached ratio pi/pi_old, and sg(pi/pi_old) K3++: one value and one gradient per sample."""
    errors = []
    for problem in elsewhere():
        errors.append(apart(in_loss(k3, problem), in_loss(k3_plus_plus, problem, "detached")))
        errors.append(apart(values(k3, problem), values(k3_plus_plus, problem)))
        first, second = (in_loss(k3, problem, how) for how in ("attached", "detached"))
        errors.append(differs(first, second))
        errors.append(bias(importance_weighted(k3_plus_plus, problem), problem, "reverse")[1])
    yield from each_form(worst(errors))


def _weighted_gradient(name: str, how: Literal["attached", "detached"], problem: Problem) -> torch.Tensor:
    return torch.tensordot(terms(problem).p, in_loss(SAMPLED[name], problem, how), dims=1)


@claim("EMA-eq22+sg")
def the_weight_should_carry_no_gradient() -> Iterator[Found]:
    """Detached it keeps the on-policy value and gradient of every estimator; attached it does not."""
    errors = []
    for problem in elsewhere():
        at_home = problem._replace(behavior_logits=None)
        for name, estimate in SAMPLED.items():
            value, gradient = moments(estimate, at_home)
            errors.append(apart(moments(importance_weighted(estimate, problem), problem)[0], value))
            errors.append(apart(_weighted_gradient(name, "detached", problem), gradient))
            errors.append(differs(_weighted_gradient(name, "attached", problem), gradient))
    small = three_policies((0.75, 0.25), (0.5, 0.5), (0.5, 0.5))
    g = {h: float(_weighted_gradient("K3", h, small)[0, 0]) for h in ("attached", "detached")}
    errors.append(apart(g["attached"], exact(reverse_kl, small)[1][0, 0]))
    yield from each_form(worst(errors), g_attached=g["attached"], g_detached=g["detached"])


def _visits(problem: Problem, sampler: torch.Tensor) -> torch.Tensor:
    """Probability that a policy visits each prefix, [rows], from its own tokens."""
    p = problem.token_logp(sampler).sum(-1).exp()
    visited = (
        torch.nn.functional.one_hot(problem.rows, len(sampler)).to(p) * problem.completion_mask[..., None]
    )
    return p @ visited.amax(1)


def _token_level(problem: Problem, sampled: torch.Tensor) -> tuple[float, torch.Tensor]:
    """E[sum KL_n] and E[sum grad KL_n], exact KL per token, sequences with these weights [count, length]."""
    theta = problem.logits.detach().clone().requires_grad_()
    total = (sampled * token_kls(problem, theta)).sum()
    (gradient,) = torch.autograd.grad(total, theta)
    return float(total.detach()), gradient


@cache
def _one_way_to_diverge() -> Problem:
    """Two binary tokens; the policy leaves the reference after one of the first tokens, which mu avoids."""
    half, far = (0.5, 0.5), (0.9, 0.1)
    behavior = torch.tensor([far, half, far], dtype=torch.float64).log()
    return tree_of([half, half, far], [half, half, half])._replace(behavior_logits=behavior)


@claim("EMA-5.2-exactonpolicy")
def exact_kl_needs_no_weight() -> Iterator[Found]:
    """At a given prefix it does not depend on who sampled; which prefixes count, does."""
    printed, inside = [], []
    several = [p for p in sampled_elsewhere() if p.rows.shape[1] > 1]
    small = _one_way_to_diverge()
    several.append(small)
    for problem in several:
        assert problem.behavior_logits is not None
        p = terms(problem).p[:, None].expand_as(problem.completion_mask)
        home = terms(problem).logp.sum(-1).exp()[:, None].expand_as(p)
        here, wanted = _token_level(problem, p), _token_level(problem, home)
        printed += [apart(here[0], wanted[0]), apart(here[1], wanted[1])]
        theta = problem.logits.detach().clone().requires_grad_()
        kl = reverse_kl(theta.log_softmax(-1), problem.ref_logits.log_softmax(-1))
        (per_prefix,) = torch.autograd.grad(kl.sum(), theta)
        inside.append(apart(here[1] / _visits(problem, problem.behavior_logits)[:, None], per_prefix))
        ratio = problem.token_logp(problem.logits) - problem.token_logp(problem.behavior_logits)
        before = (ratio.cumsum(-1) - ratio).exp()  # of the tokens that lead to the prefix
        weighed = _token_level(problem, p * before)
        inside += [apart(weighed[0], wanted[0]), apart(weighed[1], wanted[1])]
    found = _token_level(small, terms(small).p[:, None].expand_as(small.completion_mask))[0]
    yield from each_form(
        max(worst(printed), worst(inside)),
        inside=worst(inside),
        found=found,
        number=exact(reverse_kl, small)[0],
    )
