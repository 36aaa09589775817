"""Sections 3.3 and 4.3: the KL as a loss of tokens, on-policy and with older samples (yao2026future)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, numbers, printed, same
from kl_book.ledger.claims.ground import errors, estimates, sequences, sums, worlds
from kl_book.ledger.claims.ground import updates as u
from kl_book.ledger.claims.ground.positions import moments, positions
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_companion.tabular import Problem


def _local(w: Enumeration, f: str = "k3") -> torch.Tensor:
    """Mean of the penalties of tokens, differentiated one by one, [rows, vocab]."""
    return u.token_field(w.problem, u.local_slopes(f, w.problem))


def _from_here(w: Enumeration, f: str = "k3") -> torch.Tensor:
    """Mean of the scores of tokens, each times the penalties from it on, [rows, vocab]."""
    return u.token_field(w.problem, sequences.sum_from_here(u.penalties(f, w.problem)))


@claim("FRPO-P3.3", over=each(positions))
def k3_has_an_unbiased_value(w: Enumeration) -> Iterator[Found]:
    """Its mean over the next token is the KL there."""
    yield same(moments(estimates.k3, w.problem)[0], w.kl)


@claim("FRPO-3.3-nonimplication", over=each(positions))
def an_unbiased_value_has_not_the_gradient(w: Enumeration) -> Iterator[Found]:
    """At one token k3 has the value of the reverse KL and the gradient of the forward KL."""
    value, gradient = moments(estimates.k3, w.problem)
    yield same(value, w.kl)
    yield differs(gradient, w.d_kl)
    yield same(gradient, w.d_forward)


@claim("FRPO-abs-local", over=each(worlds.trees))
def the_loss_lacks_the_signal_of_the_penalties(w: Enumeration) -> Iterator[Found]:
    """Differentiated token by token, k3 lacks E sum_i (sum over j >= i of k3_j) score_i."""
    local = w.grad("k3", per_token=True)
    yield same(w.d_kl - local, _from_here(w))
    yield differs(w.d_kl, local)
    yield differs(w.d_kl, w.partial())
    yield same(local, w.partial(forward=True))


@claim("FRPO-4.3-localgrad", over=each(worlds.worlds))
def derivative_of_k3(w: Enumeration) -> Iterator[Found]:
    """(1 - u) times the score of the token, for every token of every sequence."""
    yield same(w.slope("k3", per_token=True), w.tokens(1 - (-w.t.log_ratio).exp()))


@claim("FRPO-P4.3-direct", over=each(worlds.trees))
def what_a_differentiated_penalty_has_and_lacks(w: Enumeration) -> Iterator[Found]:
    """-f'(u) u times the score, and not the penalties from the token on."""
    ratio = (-w.t.log_ratio).exp()
    for f, generator in u.GENERATORS.items():
        by_u = sums.slopes(generator, ratio)
        yield same(u.local_slopes(f, w.problem), -by_u * ratio * w.problem.completion_mask)
        yield same(_from_here(w, f), u.penalty_gradient(f, w.problem) - _local(w, f))


def _k3_of_ratio(ratio: float) -> float:
    return float(u.GENERATORS["k3"](torch.tensor(ratio, dtype=torch.float64)))


def _same_penalty(ratio: float) -> float:
    """The other ratio, above 1, at which u - log u - 1 has the same value; by bisection."""
    low, high = 1.0, 60.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _k3_of_ratio(middle) < _k3_of_ratio(ratio) else (low, middle)
    return low


def _pair(ratio: float) -> tuple[list[float], list[float]]:
    """Policy and reference over two tokens with this ratio and another one of the same penalty."""
    other = _same_penalty(ratio)
    p = (other - 1) / (other - ratio)
    return [p, 1 - p], [p * ratio, (1 - p) * other]


@cache
def penalties_without_choice() -> tuple[Problem, ...]:
    """A bandit and a tree, far from the reference, in which k3 is the same whatever is chosen."""
    policies, references = zip(*(_pair(ratio) for ratio in (0.4, 0.7, 0.7)), strict=True)
    return worlds.two_policies(*_pair(0.5)), worlds.tree_of(policies, references)


@claim("FRPO-P4.3-except")
def where_a_local_loss_is_the_gradient() -> Iterator[Found]:
    """If the penalties from the token on, its own among them, do not depend on it; later ones alone: no."""
    # bandits have no later tokens, and so no later penalties
    shares = [errors.relative(_local(w), w.d_kl) for w in each(worlds.bandits)()]
    yield printed(max(shares))
    for w in each(penalties_without_choice)():
        yield same(_local(w), w.d_kl, "inside")
        yield differs(w.problem.logits.softmax(-1), w.problem.ref_logits.softmax(-1), "inside")
    for w in each(worlds.trees)():
        yield differs(_local(w), w.d_kl, "inside")
    yield numbers(most=max(shares), bandits=len(shares))


def _elsewhere(*, several: bool) -> Iterator[Enumeration]:
    """Worlds that another policy samples, of one token or of several."""
    return each(*(p for p in worlds.sampled_elsewhere() if (p.rows.shape[1] > 1) == several))()


@claim("FRPO-4.3-value-off")
def fresh_log_probs_do_not_mend_the_value() -> Iterator[Found]:
    """Under old samples k3 of the current policy has another mean; with importance weights it is the KL."""
    shares = []
    for w in _elsewhere(several=False):
        x = w.value("k3")
        shares.append(abs(float(w.E(x)) / w.kl - 1))
        yield same(w.E(w.rho * x), w.kl, "corrected")
        yield differs(w.E(x), w.kl)
    yield printed(max(shares))
    small = Enumeration(worlds.three_policies((0.75, 0.25), (0.5, 0.5), (0.5, 0.5)))
    fresh = float(small.E(small.value("k3")))
    yield numbers(fresh=fresh, kl=small.kl, bandits=len(shares), most=max(shares))


def _weighted(w: Enumeration, attached: bool) -> torch.Tensor:
    """Mean gradient of the ratio of the whole answer times its k3 penalties, [rows, vocab]."""
    leaf = w.t.logp.clone().requires_grad_()
    ratio = (leaf.sum(-1) - w.p.log()).exp()
    cost = (u.GENERATORS["k3"]((w.t.ref_logp - leaf).exp()) * w.problem.completion_mask).sum(-1)
    (c,) = torch.autograd.grad((w.p * (ratio if attached else ratio.detach()) * cost).sum(), leaf)
    return w.tokens(c).sum(0)


@claim("FRPO-4.3-iw")
def attached_weights_create_the_later_term() -> Iterator[Found]:
    """A differentiated ratio of the whole answer gives the gradient of the KL, later terms included."""
    shares = []
    for w in _elsewhere(several=True):
        local = _local(w.replace(behavior_logits=None))
        shares.append(errors.relative(_weighted(w, attached=True), local))
        yield same(_weighted(w, attached=False), local, "corrected")
        yield same(_weighted(w, attached=True), w.d_kl)
    yield printed(max(shares))
    yield numbers(least=min(shares))


@claim("FRPO-4.3-rho")
def fixed_log_ratios_are_not_corrected() -> Iterator[Found]:
    """rho times log-ratios of the rollout is off by the KL from the sampler; recomputed ones are exact."""
    shares = []
    for w in _elsewhere(several=False):
        fixed = w.Es(w.rho * (w.p / w.ref).log())
        shares.append(errors.relative(fixed, w.d_kl))
        yield same(w.Es(w.rho * w.l), w.d_kl, "corrected")
        yield same(w.Es(w.rho * w.R), u.utility_gradient(w.problem), "corrected")
        yield same(w.d_kl - fixed, w.replace(ref_logits=w.problem.sampled_from).d_kl, "corrected")
    yield printed(max(shares))
    yield numbers(bandits=len(shares), least=min(shares), most=max(shares))


@claim("FRPO-4.3-additive", over=each(worlds.sampled_elsewhere))
def an_added_penalty_is_averaged_under_the_sampler(w: Enumeration) -> Iterator[Found]:
    """Its mean is the sum over the sampler's probabilities, and not that under the policy."""
    own, x = w.replace(behavior_logits=None), u.penalties("k3", w.problem).sum(-1)
    yield same(w.E(x), w.problem.token_logp(w.problem.sampled_from).sum(-1).exp() @ x)
    yield differs(w.E(x), own.E(x))
    slopes = u.local_slopes("k3", w.problem)
    yield differs(u.token_field(w.problem, slopes), u.token_field(own.problem, slopes))
