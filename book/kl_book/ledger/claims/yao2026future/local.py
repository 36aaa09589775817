"""Sections 3.3 and 4.3: the KL as a loss of tokens, on-policy and with older samples (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, relative, violation, worst
from kl_book.ledger.claims.ground.estimates import k3
from kl_book.ledger.claims.ground.off_policy import rho
from kl_book.ledger.claims.ground.positions import exact_gradient, moments, positions
from kl_book.ledger.claims.ground.sequences import partial_gradient, sum_from_here
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    values,
)
from kl_book.ledger.claims.ground.updates import (
    GENERATORS,
    local_slopes,
    penalties,
    penalty_gradient,
    token_field,
    utility_gradient,
)
from kl_book.ledger.claims.ground.worlds import (
    bandits,
    sampled_elsewhere,
    three_policies,
    tree_of,
    trees,
    two_policies,
)
from kl_companion.tabular import Problem


@claim("FRPO-P3.3")
def k3_has_an_unbiased_value() -> Iterator[Found]:
    """Its mean over the next token is the KL there."""
    errors = [apart(moments(k3, p)[0], exact(reverse_kl, p)[0]) for p in positions()]
    yield from each_form(worst(errors))


@claim("FRPO-3.3-nonimplication")
def an_unbiased_value_has_not_the_gradient() -> Iterator[Found]:
    """At one token k3 has the value of the reverse KL and the gradient of the forward KL."""
    errors = []
    for problem in positions():
        value, gradient = moments(k3, problem)
        errors += [apart(value, exact(reverse_kl, problem)[0]), differs(gradient, kl_gradient(problem))]
        errors.append(apart(gradient, exact_gradient(problem, "forward")))
    yield from each_form(worst(errors))


@claim("FRPO-abs-local")
def the_loss_lacks_the_signal_of_the_penalties() -> Iterator[Found]:
    """Differentiated token by token, k3 lacks E sum_i (sum over j >= i of k3_j) score_i."""
    errors = []
    for problem in trees():
        local, whole = (
            mean(terms(problem).p, differentiated("k3", problem, per_token=True)),
            kl_gradient(problem),
        )
        errors.append(apart(whole - local, token_field(problem, sum_from_here(penalties("k3", problem)))))
        errors += [differs(whole, local), differs(whole, partial_gradient(problem))]
        errors.append(apart(local, partial_gradient(problem, forward=True)))
    yield from each_form(worst(errors))


@claim("FRPO-4.3-localgrad")
def derivative_of_k3() -> Iterator[Found]:
    """(1 - u) times the score of the token, for every token of every sequence."""
    errors = []
    for problem in (*bandits(), *trees()):
        t = terms(problem)
        wanted = torch.einsum("it,itrv->irv", (1 - (-t.log_ratio).exp()) * problem.completion_mask, t.scores)
        errors.append(apart(differentiated("k3", problem, per_token=True), wanted))
    yield from each_form(worst(errors))


@claim("FRPO-P4.3-direct")
def what_a_differentiated_penalty_has_and_lacks() -> Iterator[Found]:
    """-f'(u) u times the score, and not the penalties from the token on."""
    errors = []
    for problem in trees():
        u = (-terms(problem).log_ratio).exp()
        for f, generator in GENERATORS.items():
            leaf = u.clone().requires_grad_()
            (by_u,) = torch.autograd.grad(generator(leaf).sum(), leaf)
            local = local_slopes(f, problem)
            errors.append(apart(local, -by_u * u * problem.completion_mask))
            lacks = penalty_gradient(f, problem) - token_field(problem, local)
            errors.append(apart(token_field(problem, sum_from_here(penalties(f, problem))), lacks))
    yield from each_form(worst(errors))


def _same_penalty(u: float) -> float:
    """The other ratio, above 1, at which u - log u - 1 has the same value; by bisection."""
    low, high = 1.0, 60.0
    wanted = float(GENERATORS["k3"](torch.tensor(u, dtype=torch.float64)))
    for _ in range(200):
        middle = (low + high) / 2
        below = float(GENERATORS["k3"](torch.tensor(middle, dtype=torch.float64))) < wanted
        low, high = (middle, high) if below else (low, middle)
    return low


def _pair(u: float) -> tuple[list[float], list[float]]:
    """Policy and reference over two tokens with the ratios u and another one of the same penalty."""
    other = _same_penalty(u)
    p = (other - 1) / (other - u)
    return [p, 1 - p], [p * u, (1 - p) * other]


@cache
def penalties_without_choice() -> tuple[Problem, ...]:
    """A bandit and a tree, far from the reference, in which k3 is the same whatever is chosen."""
    p, q = _pair(0.5)
    rows = [_pair(u) for u in (0.4, 0.7, 0.7)]
    return two_policies(p, q), tree_of([r[0] for r in rows], [r[1] for r in rows])


@claim("FRPO-P4.3-except")
def where_a_local_loss_is_the_gradient() -> Iterator[Found]:
    """If the penalties from the token on, its own among them, do not depend on it; later ones alone: no."""
    printed, inside = [], []
    for problem in bandits():  # no later tokens, so that no later penalty depends on anything
        printed.append(relative(token_field(problem, local_slopes("k3", problem)), kl_gradient(problem)))
    for problem in penalties_without_choice():
        inside.append(apart(token_field(problem, local_slopes("k3", problem)), kl_gradient(problem)))
        inside.append(differs(problem.logits.softmax(-1), problem.ref_logits.softmax(-1)))
    for problem in trees():
        inside.append(differs(token_field(problem, local_slopes("k3", problem)), kl_gradient(problem)))
    yield from each_form(
        worst([*printed, *inside]),
        inside=worst(inside),
        max_printed=max(printed),
        number_of_printed=len(printed),
    )


def _elsewhere(length: bool) -> tuple[Problem, ...]:
    """Worlds that another policy samples: trees, or bandits."""
    return tuple(p for p in sampled_elsewhere() if (p.rows.shape[1] > 1) == length)


def _own_samples(problem: Problem) -> Problem:
    return problem._replace(behavior_logits=None)


@claim("FRPO-4.3-value-off")
def fresh_log_probs_do_not_mend_the_value() -> Iterator[Found]:
    """Under old samples k3 of the current policy has another mean; with importance weights it is the KL."""
    printed, corrected, inside = [], [], []
    for problem in _elsewhere(length=False):
        kl, p, x = exact(reverse_kl, problem)[0], terms(problem).p, values("k3", problem)
        printed.append(abs(float(p @ x) / kl - 1))
        corrected.append(apart(p @ (rho(problem) * x), kl))
        inside.append(violation(1e-6 - abs(float(p @ x) - kl)))
    small = three_policies((0.75, 0.25), (0.5, 0.5), (0.5, 0.5))
    fresh, right = float(terms(small).p @ values("k3", small)), exact(reverse_kl, small)[0]
    yield from each_form(
        worst([*printed, *inside]),
        worst(corrected),
        fresh=fresh,
        right=right,
        number_of_printed=len(printed),
        max_printed=max(printed),
    )


def _weighted(problem: Problem, attached: bool) -> torch.Tensor:
    """Mean gradient of the ratio of the whole answer times its k3 penalties, [rows, vocab]."""
    t = terms(problem)
    leaf = t.logp.clone().requires_grad_()
    ratio = (leaf.sum(-1) - t.p.log()).exp()
    cost = (GENERATORS["k3"]((t.ref_logp - leaf).exp()) * problem.completion_mask).sum(-1)
    (c,) = torch.autograd.grad((t.p * (ratio if attached else ratio.detach()) * cost).sum(), leaf)
    return torch.einsum("it,itrv->rv", c * problem.completion_mask, t.scores)


@claim("FRPO-4.3-iw")
def attached_weights_create_the_later_term() -> Iterator[Found]:
    """A differentiated ratio of the whole answer gives the gradient of the KL, later terms included."""
    printed, corrected = [], []
    for problem in _elsewhere(length=True):
        own = _own_samples(problem)
        local = token_field(own, local_slopes("k3", own))
        printed.append(relative(_weighted(problem, attached=True), local))
        corrected.append(apart(_weighted(problem, attached=False), local))
    whole = [apart(_weighted(p, attached=True), kl_gradient(p)) for p in _elsewhere(length=True)]
    yield from each_form(worst([*printed, *whole]), worst(corrected), min_printed=min(printed))


@claim("FRPO-4.3-rho")
def fixed_log_ratios_are_not_corrected() -> Iterator[Found]:
    """rho times log-ratios of the rollout is off by the KL from the sampler; recomputed ones are exact."""
    printed, corrected = [], []
    for problem in _elsewhere(length=False):
        t, ratio = terms(problem), rho(problem)
        fixed = t.p.log() - t.ref_logp.sum(-1)
        printed.append(relative(field(ratio * fixed, problem), kl_gradient(problem)))
        corrected.append(apart(field(ratio * log_ratio(problem), problem), kl_gradient(problem)))
        corrected.append(apart(field(ratio * problem.rewards, problem), utility_gradient(problem)))
        drift = kl_gradient(problem._replace(ref_logits=problem.sampled_from))
        corrected.append(apart(kl_gradient(problem) - field(ratio * fixed, problem), drift))
    yield from each_form(
        worst(printed),
        worst(corrected),
        number_of_printed=len(printed),
        min_printed=min(printed),
        max_printed=max(printed),
    )


@claim("FRPO-4.3-additive")
def an_added_penalty_is_averaged_under_the_sampler() -> Iterator[Found]:
    """Its mean is the sum over the sampler's probabilities, and not that under the policy."""
    errors = []
    for problem in sampled_elsewhere():
        own, x = _own_samples(problem), penalties("k3", problem).sum(-1)
        stale = problem.token_logp(problem.sampled_from).sum(-1).exp() @ x
        errors.append(apart(mean(terms(problem).p, x), stale))
        errors.append(differs(mean(terms(problem).p, x), mean(terms(own).p, x)))
        slopes = local_slopes("k3", problem)
        errors.append(differs(token_field(problem, slopes), token_field(own, slopes)))
    yield from each_form(worst(errors))
