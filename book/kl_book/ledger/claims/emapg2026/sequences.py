"""Section 5.1 and appendix D: the KL of sequences, the KL of tokens (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, at_most, differs, less, numbers, same
from kl_book.ledger.claims.ground import errors, sequences
from kl_book.ledger.claims.ground.estimates import SAMPLED
from kl_book.ledger.claims.ground.sequences import longer_trees, softmax_pull, sum_from_here, token_kls
from kl_book.ledger.claims.ground.world import Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import bandits, tree_of, trees
from kl_companion.tabular import Problem

ASYMMETRY = 1e-3  # of a Jacobian by central differences: far above their error


def opposed() -> Problem:
    """Two binary tokens where the likelier first token leads to no KL, and the other to much."""
    half, far = (0.5, 0.5), (0.95, 0.05)
    return tree_of([(0.6, 0.4), half, far], [half, half, half])


@words("EMA-eq13-14", "EMA-eq13-14+GRPO")
def opposed_gradients() -> dict[str, Any]:
    """The first logit's entry of eq (14), of the sequence KL's gradient, and from K3."""
    w = Enumeration(opposed())
    vectors = {"token": w.partial(), "sequence": w.d_kl, "k3": w.grad(SAMPLED["K3"], per_token=True)}
    return {name: x[0, 0] for name, x in vectors.items()}


@claim("EMA-eq10", over=each(longer_trees, bandits))
def sign_of_the_sequence_estimate(w: Enumeration) -> Iterator[Found]:
    """The mean of -log(pi/pi_ref) is minus the KL; equation (11) carries a second minus sign."""
    yield same(-w.E(w.l), w.kl)
    yield same(w.E(w.l), w.kl, "corrected")


@words("EMA-eq10")
def mean_of_one_token() -> dict[str, Any]:
    """With the printed sign, and the KL."""
    w = two((0.75, 0.25), (0.5, 0.5))
    return {"mean": -w.E(w.l), "kl": w.kl}


@claim("EMA-eq11-12", over=each(longer_trees, bandits))
def sequence_gradient_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """E[-sg(KL_seq) s] with eq (10)'s sign, two minus signs in all, is the gradient of the KL."""
    estimate = -w.l  # eq (10)
    yield same(w.Es(-estimate), w.d_kl)


@claim("EMA-eq11-12+reward", over=each(longer_trees))
def difference_of_log_probs_in_the_reward(w: Enumeration) -> Iterator[Found]:
    """E[(R - beta log-ratio) s] is the gradient of objective (1)."""
    for beta in (0.05, 1.0, 3.0):
        yield same(w.Es(w.R - beta * w.l), w.d_reward - beta * w.d_kl)


def _token_level(w: Enumeration) -> torch.Tensor:
    """sum over prefixes of their probability times the gradient of their KL, [rows, vocab]."""
    policy, reference = w.problem.logits, w.problem.ref_logits
    return sequences.visit_probabilities(w.problem, policy)[:, None] * softmax_pull(policy, reference)


@claim("EMA-eq13-14")
def token_level_gradient() -> Iterator[Found]:
    """E[sum of grad KL_n], the visits held fixed: a well-defined vector, and the gradient of no function."""
    for w in each(longer_trees)():
        yield same(w.partial(), _token_level(w))
        yield differs(w.partial(), w.d_kl)
    asymmetry = [sequences.curl(problem, "k2") for problem in trees()[:3]]
    yield at_most(ASYMMETRY, min(asymmetry))
    yield numbers(asymmetry=max(asymmetry))


@claim("EMA-eq13-14+GRPO", over=each(longer_trees))
def what_grpo_differentiates(w: Enumeration) -> Iterator[Found]:
    """Differentiated per token, K2, K3++ and K4 have eq (14) as their mean; K3 has the forward KL's."""
    for name in ("K2", "K3++", "K4"):
        yield same(w.grad(SAMPLED[name], per_token=True), w.partial(), "inside")
    k3 = w.grad(SAMPLED["K3"], per_token=True)
    yield same(k3, w.partial(forward=True), "inside")
    yield same(k3, w.partial(), by=errors.relative)


@claim("EMA-eq15", over=each(longer_trees))
def sequence_level_coefficients(w: Enumeration) -> Iterator[Found]:
    """Each score times the log-ratios from its token on has the gradient of the sequence KL as its mean."""
    yield same(w.E(w.cumulative()), w.d_kl)


def _future_kl(w: Enumeration) -> torch.Tensor:
    """KL of everything after each token, given the sequence up to it, [count, length]; 0 at the end."""
    to_go = sum_from_here(token_kls(w.problem, w.problem.logits))
    ahead = sequences.values_of_prefixes(w.problem, to_go)[w.problem.rows] * w.problem.completion_mask
    return torch.nn.functional.pad(ahead[:, 1:], (0, 1))


@claim("EMA-eq16+punish", over=each(longer_trees))
def future_tokens_are_charged_to_the_present_one(w: Enumeration) -> Iterator[Found]:
    """What the sequence level adds is each score times the KL still to come, which is never negative."""
    future, logits = _future_kl(w), w.problem.logits
    yield same(w.E(w.cumulative() - w.tokens(w.t.log_ratio)), w.E(w.tokens(future)))
    yield at_most(0.0, future)
    later = w.replace(logits=torch.cat([logits[:1], logits[1:].flip(-1)]))  # the root is row 0
    yield same(later.E(later.tokens(later.t.log_ratio))[0], w.E(w.tokens(w.t.log_ratio))[0])
    yield differs(later.E(later.cumulative())[0], w.E(w.cumulative())[0])


@claim("EMA-eq16+objective")
def only_the_sequence_level_belongs_to_the_objective() -> Iterator[Found]:
    """Of the two gradients the sequence level's is that of the KL in objective (1); they may be opposed."""
    for w in each(longer_trees)():
        yield same(w.E(sequences.sequence_gradients(w.problem)), w.d_kl)
        yield differs(w.E(w.tokens(w.t.log_ratio)), w.d_kl)
    yield less(float(opposed_gradients()["token"] * opposed_gradients()["sequence"]), 0.0)


@claim("X-token-vs-seq")
def close_to_the_anchor_the_levels_agree() -> Iterator[Found]:
    """A tenth of the distance leaves a tenth of both gradients, and a hundredth of their difference."""
    shares = []
    for w in each(longer_trees)():
        shift = w.problem.logits - w.problem.ref_logits
        sizes = []
        for d in (1e-2, 1e-3):
            closer = w.replace(logits=w.problem.ref_logits + d * shift / shift.norm())
            token, sequence = closer.partial(), closer.d_kl
            sizes.append(torch.stack([x.norm() for x in (token, sequence, token - sequence)]))
        shares.append(sizes[0][2] / sizes[0][1])
        left = torch.tensor([0.1, 0.1, 0.01], dtype=torch.float64)
        yield at_most((sizes[1] / sizes[0] - left).abs(), 0.1 * left)
    yield numbers(share=max(shares))


# appendix D


def _along(w: Enumeration, x: torch.Tensor, place: int) -> torch.Tensor:
    """sum over sequences with a common prefix of probability times x_place, [rows, ...]."""
    rows = torch.nn.functional.one_hot(w.problem.rows[:, place], len(w.problem.logits)).to(w.p)
    return torch.einsum("i,ih,i...->h...", w.p * w.problem.completion_mask[:, place], rows, x)


@claim("EMA-D1-integrals", over=each(longer_trees, bandits))
def two_integrals_of_the_product_rule(w: Enumeration) -> Iterator[Found]:
    """The first, over the derivative of pi, is the whole gradient; the second is E[score] = 0."""
    theta = w.problem.logits.detach().clone().requires_grad_()
    logp = w.problem.token_logp(theta).sum(-1)
    x = logp - w.problem.token_logp(w.problem.ref_logits).sum(-1)
    (first,) = torch.autograd.grad(logp.exp() @ x.detach(), theta, retain_graph=True)
    (second,) = torch.autograd.grad(logp.exp().detach() @ x, theta)
    yield same(first, w.d_kl)
    yield same(first + second, w.d_kl)
    yield same(second, w.E(w.s))
    yield same(second, 0.0)


@claim("EMA-eq68-72", over=each(longer_trees))
def past_terms_vanish(w: Enumeration) -> Iterator[Found]:
    """(68) to (72): the score-function form, its double sum, and its past terms prefix by prefix."""
    past, future = w.t.log_ratio.cumsum(-1) - w.t.log_ratio, sum_from_here(w.t.log_ratio)
    yield same(w.E(w.s), 0.0)  # the second integral of D.1
    yield same(w.Es(w.l), w.d_kl)  # (68)
    double = torch.einsum("i,im,inrv->rv", w.p, w.t.log_ratio, w.t.scores)  # (69)
    yield same(double, w.d_kl)
    yield same(w.E(w.tokens(past) + w.tokens(future)), double)
    yield same(w.E(w.tokens(past)), 0.0)  # (72)
    for n in range(w.problem.rows.shape[1]):
        yield same(_along(w, w.t.scores[:, n], n), 0.0)  # step 1
        yield same(_along(w, past[:, n, None, None] * w.t.scores[:, n], n), 0.0)  # step 2


@claim("EMA-eq16", "EMA-eq73-74", over=each(longer_trees))
def token_level_form(w: Enumeration) -> Iterator[Found]:
    """(73) prefix by prefix: E_n[log-ratio times score] is that KL's gradient; (74) is their sum."""
    local = torch.zeros_like(w.problem.logits)
    for n in range(w.problem.rows.shape[1]):
        by_prefix = _along(w, w.t.log_ratio[:, n, None, None] * w.t.scores[:, n], n)
        own = torch.diagonal(by_prefix, dim1=0, dim2=1).T  # each touches its own row of logits
        yield same(by_prefix.sum(0), own)
        local += own
    yield same(local, _token_level(w))
    yield same(w.E(w.tokens(w.t.log_ratio)), _token_level(w))
    yield same(w.E(w.tokens(w.t.log_ratio)), w.partial())
    yield same(w.E(token_kls(w.problem, w.problem.logits).sum(-1)), w.kl)
