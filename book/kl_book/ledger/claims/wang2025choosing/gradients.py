"""Sections 5 to 6.3 and the tables of section 9: KL as a loss (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim, claim_rows
from kl_book.ledger.claims.comparisons import Found, corrected, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground.errors import apart, relative
from kl_book.ledger.claims.ground.loss_rows import LossRow
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import all_worlds, sampled_elsewhere, trees, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.losses import kl_terms
from kl_companion.tabular import exact_field


@claim("WZ-5-two-ways", over=each(worlds))
def a_differentiated_and_a_detached_penalty(w: Enumeration) -> Iterator[Found]:
    """The loss adds beta grad k to -A s; the shaped reward multiplies s by R - beta k: not one algorithm."""
    beta = 0.3
    for name in ("k1", "k2", "k3"):
        leaf = w.t.logp.sum(-1).clone().requires_grad_()
        k = _value(name, leaf, w)
        (loss,) = torch.autograd.grad((-w.R * leaf + beta * k).sum(), leaf, retain_graph=True)
        (shaped,) = torch.autograd.grad((-(w.R - beta * k.detach()) * leaf).sum(), leaf)
        yield same(loss[:, None, None] * w.s, -w.R[:, None, None] * w.s + beta * w.slope(name))
        yield differs(w.Es(loss), w.Es(shaped))


def _value(name: str, logp: torch.Tensor, w: Enumeration) -> torch.Tensor:
    log_ratio = logp - w.t.ref_logp.sum(-1)
    return {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": (-log_ratio).exp() - 1 + log_ratio}[name]


def _off(w: Enumeration, estimate: torch.Tensor) -> float:
    """How far the update with an estimate in the reward is from the gradient of the KL, relative to it."""
    return relative(w.E(w.times_score(estimate)), w.d_kl)


@claim("WZ-5-requires")
def shaped_rewards_need_accurate_values() -> Iterator[Found]:
    """A value that is wrong by a constant gives the right update; the accurate k3 gives a wrong one."""
    unharmed, failing, off, length = [], [], [], []
    for w in each(all_worlds)():
        # k1 + 5 as the estimate: its value is wrong by 5, its update is the one of k1
        unharmed.append(_off(w, w.l + 5.0) <= TOLERANCE)
        off.append(_off(w, w.value("k3")))
        gap = w.E(w.times_score(w.value("k3") - w.l))
        wrong = apart(w.E(w.in_reward("k3")) - w.d_kl, gap), apart(w.E(w.rho * w.value("k3")), w.kl)
        failing.append(max(*wrong, differs(gap, 0.0).error) > TOLERANCE)
        tokens = w.problem.completion_mask.sum(-1)
        if w.problem.behavior_logits is None and len(set(tokens.tolist())) > 1:
            length.append(_off(w, w.l + 0.1 * tokens))  # a tenth of a nat per token
            yield less(0.1, length[-1], "inside", by=0.0)
    yield printed(share_of_cases(unharmed))
    yield corrected(share_of_cases(failing))
    yield numbers(worlds=len(unharmed), least_off=min(off), most_off=max(off))
    yield numbers(least_shift=min(length), most_shift=max(length))


@claim("WZ-6.1-basic", over=each(worlds))
def gradients_of_single_estimates(w: Enumeration) -> Iterator[Found]:
    """grad k1 = s, grad k2 = k1 s, grad k3 = (1 - p/q) s, for every sample."""
    x = w.l[:, None, None]
    yield same(w.slope("k1"), w.s)
    yield same(w.slope("k2"), x * w.s)
    yield same(w.slope("k3"), (1 - (-x).exp()) * w.s)


def _reduced(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """E[k3] as a sum over all sequences."""
    return (logp.exp() * ((ref_logp - logp).exp() - 1 - (ref_logp - logp))).sum()


@claim("WZ-6.1-pitfall", over=each(worlds))
def expectation_and_derivative_do_not_commute(w: Enumeration) -> Iterator[Found]:
    """grad E[k1] = grad E[k3] = grad KL, by differentiated sums; E[grad k1] and E[grad k3] are others."""
    yield same(exact(_reduced, w.problem)[1], w.d_kl)
    yield differs(w.grad("k1"), w.d_kl)
    yield differs(w.grad("k3"), w.d_kl)


def _wave(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * logp) + ref_logp


def _product(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    return logp * ref_logp


@claim("WZ-6.2-exchange", over=each(all_worlds))
def a_fixed_sampler_lets_them_commute(w: Enumeration) -> Iterator[Found]:
    """With mu held fixed, the derivative of E_mu[rho f] is E_mu of the derivative; under q it is not."""
    theta = w.problem.logits.detach().clone().requires_grad_()
    for f in ("k1", "k2", "k3", _wave, _product):
        logp = w.problem.token_logp(theta).sum(-1)
        k = _value(f, logp, w) if isinstance(f, str) else f(logp, w.t.ref_logp.sum(-1))
        (outside,) = torch.autograd.grad((w.p * (logp.exp() / w.p) * k).sum(), theta)
        yield same(outside, w.E(w.in_loss(f)))
        if w.problem.behavior_logits is None and f != "k2":
            yield differs(outside, w.grad(f))


def gradient_of_a_loss(row: LossRow) -> Iterator[Found]:
    """The gradient of every sample and its mean are as the table has them."""
    yield from row.gradient()


TABLE = {
    "WZ-sample-rho-k1": [LossRow("k1", "k1 + 1")],
    "WZ-sample-rho-k2": [LossRow("k2", "k2 + k1")],
    "WZ-sample-sgrho-k2": [LossRow("k2", ratio="detached")],
    "WZ-sample-rho-k3": [LossRow("k3")],
    "WZ-9.2-rho-k2": [LossRow("k2", "k2 + k1", off=True)],
}
claim_rows(gradient_of_a_loss, TABLE)


@claim("X-sgrho-k1k3", over=each(all_worlds))
def detached_k1_and_k3(w: Enumeration) -> Iterator[Found]:
    """The two forms that the table leaves out: no gradient at all, and that of the forward KL."""
    yield same(w.E(w.in_loss("k1", "detached")), 0.0)
    yield same(w.E(w.in_loss("k3", "detached")), w.d_forward)
    yield differs(w.d_forward, w.d_kl)


@claim("WZ-equivalence", over=each(all_worlds))
def detached_k2_and_attached_k3_are_one_vector(w: Enumeration) -> Iterator[Found]:
    """For every sample, on- and off-policy, the two gradients are the same."""
    yield same(w.in_loss("k2", "detached"), w.in_loss("k3"))


@claim("WZ-9.1-onpolicy", over=each(worlds))
def naive_k2_and_attached_k3_on_policy(w: Enumeration) -> Iterator[Found]:
    """On-policy, k2 without a ratio and k3 with the ratio in the graph have one gradient per sample."""
    yield same(w.slope("k2"), w.in_loss("k3"))


@claim("WZ-naive-k1", over=each(worlds))
def naive_k1(w: Enumeration) -> Iterator[Found]:
    """E[grad k1] = 0."""
    yield same(w.grad("k1"), 0.0)


@claim("WZ-naive-k2", over=each(worlds))
def naive_k2(w: Enumeration) -> Iterator[Found]:
    """E[grad k2] = grad KL(q||p), and of k1, k2, k3 it is the only one."""
    yield same(w.grad("k2"), w.d_kl)
    yield differs(w.grad("k1"), w.d_kl)
    yield differs(w.grad("k3"), w.d_kl)


@claim("WZ-naive-k3", over=each(worlds))
def naive_k3(w: Enumeration) -> Iterator[Found]:
    """E[grad k3] = grad KL(p||q)."""
    yield same(w.grad("k3"), w.d_forward)


@claim("WZ-9.4-rho1", over=each(worlds))
def a_literal_one_loses_the_score(w: Enumeration) -> Iterator[Found]:
    """With rho detached on-policy, rho k1 and rho k3 have the naive gradients, sample by sample."""
    for k in ("k1", "k3"):
        yield same(w.in_loss(k, "detached"), w.slope(k))
        yield differs(w.E(w.in_loss(k, "detached")), w.d_kl)
        yield same(w.E(w.in_loss(k)), w.d_kl)


@claim("WZ-6.3-special", over=each(all_worlds))
def k2_without_a_ratio_is_right_on_policy_only(w: Enumeration) -> Iterator[Found]:
    """On-policy E[grad k2] is grad KL; under another sampler E_mu[grad k2] is not."""
    compared = same if w.problem.behavior_logits is None else differs
    yield compared(w.grad("k2"), w.d_kl)


@claim("WZ-deepseek", over=each(all_worlds))
def attached_k3_is_right_in_value_and_gradient(w: Enumeration) -> Iterator[Found]:
    """E_mu[rho k3] = KL and E_mu[grad(rho k3)] = grad KL: of whole samples; per token, states stay fixed."""
    yield same(w.E(w.rho * w.value("k3")), w.kl)
    yield same(w.E(w.in_loss("k3")), w.d_kl)
    if w.problem.rows.shape[1] > 1:
        yield differs(_per_token(w), w.d_kl)


def _per_token(w: Enumeration) -> torch.Tensor:
    """Expected gradient of the sum over tokens of rho k3, with a ratio per token, [rows, vocab]."""
    return exact_field(lambda r: kl_terms(r, "k3", importance="token", ratio="attached"), w.problem)


@claim("WZ-scope-token")
def conclusions_for_single_tokens() -> Iterator[Found]:
    """Per token, naive k2 and rho k3 have the gradient of the KL of next tokens, visited states held fixed.

    Of whole samples they have that of the KL of sequences, to which the two per token do not add up.
    """
    several = [w for w in each(trees, sampled_elsewhere)() if w.problem.rows.shape[1] > 1]
    for w in several:
        on_policy = w.problem.behavior_logits is None
        tokens = w.grad("k2", per_token=True) if on_policy else _per_token(w)
        yield same(tokens, w.partial())
        yield differs(tokens, w.d_kl)
        yield same(w.E(w.in_loss("k3")), w.d_kl)
        if on_policy:
            yield same(w.grad("k2"), w.d_kl)
    small = several[0]
    yield numbers(tokens=small.grad("k2", per_token=True)[0].norm(), sequences=small.d_kl[0].norm())
