"""The claims of a machine-written summary of Tang and Munos' note (summary2025pitfalls)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, inside, numbers, printed, same
from kl_book.ledger.claims.ground import learning, sequences
from kl_book.ledger.claims.ground.errors import apart, hedged, relative
from kl_book.ledger.claims.ground.sums import exact, reverse_kl
from kl_book.ledger.claims.ground.world import SMALL, Enumeration, each
from kl_book.ledger.claims.ground.worlds import arms, hedge_trees, trees, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import learn


@claim("AI-first-misuse")
def first_misuse_differentiates_an_estimate() -> Iterator[Found]:
    """k1 and k3 differentiated are biased, and k2 token by token; k2 as a whole is not."""
    right = []
    for w in each(worlds)():
        yield differs(w.grad("k1"), w.d_kl, "inside")
        yield differs(w.grad("k3"), w.d_kl, "inside")
        right += [apart(w.grad(k), w.d_kl) <= TOLERANCE for k in ("k1", "k2", "k3")]
    for w in each(trees)():
        yield differs(w.grad("k2", per_token=True), w.d_kl, "inside")
    yield printed(sum(right) / len(right))
    yield numbers(mean=SMALL.grad("k2")[0, 0], gradient=SMALL.d_kl[0, 0])
    yield numbers(right=sum(right), worlds=len(worlds()))


def _last_token_only(w: Enumeration) -> torch.Tensor:
    """Expected gradient of the squared log-ratio of the last token of every sequence alone."""
    last = torch.nn.functional.one_hot(w.problem.completion_mask.sum(-1).long() - 1, w.t.logp.shape[1])
    return w.E(w.tokens(w.t.log_ratio * last))


@claim("AI-1")
def second_misuse_takes_the_final_token_only() -> Iterator[Found]:
    """The note's second misuse differentiates every token; what it drops is the effect on later tokens."""
    shares = []
    for w in reversed(list(each(trees)())):
        last, misuse = _last_token_only(w), w.grad("k2", per_token=True)
        shares.append(relative(last, misuse))
        yield printed(shares[-1])
        yield same(w.E(w.tokens(w.t.log_ratio)), misuse, "corrected")
        yield differs(misuse, w.d_kl, "corrected")
        yield numbers(every=misuse[0].norm(), last=last[0].norm())  # of the smallest tree, which comes last
    yield numbers(least=100 * min(shares), most=100 * max(shares))


@claim("AI-derivation", over=each(trees))
def unbiased_gradient_of_sequences(w: Enumeration) -> Iterator[Found]:
    """The note's eq (7), and the same without its terms of mean zero: both have the KL's gradient."""
    yield same(w.E(sequences.sequence_gradients(w.problem)), w.d_kl)
    yield same(w.E(w.cumulative()), w.d_kl)


def _objective(
    logp: torch.Tensor, ref_logp: torch.Tensor, rewards: torch.Tensor, beta: float
) -> torch.Tensor:
    return logp.exp() @ rewards - beta * reverse_kl(logp, ref_logp)


@claim("AI-paradigm", over=each(trees))
def right_gradient_in_the_usual_loop(w: Enumeration) -> Iterator[Found]:
    """As a loss, sg(log-ratios from here on) log pi, sample by sample; in the reward, on average."""
    leaf, beta = w.t.logp.clone().requires_grad_(), 0.3
    loss = sequences.sum_from_here(leaf - w.t.ref_logp).detach() * leaf * w.problem.completion_mask
    (c,) = torch.autograd.grad(loss.sum(), leaf)
    yield same(torch.einsum("it,itrv->irv", c, w.t.scores), w.cumulative())
    objective = partial(_objective, rewards=w.R, beta=beta)
    yield same(w.Es(w.R - beta * w.l), exact(objective, w.problem)[1])


@claim("AI-2+tabular")
def right_and_wrong_gradients_on_bandits() -> Iterator[Found]:
    """By samples: the differentiated k1 lets the KL drift up; the differentiated k3 lowers it, as k2 does."""
    problem = arms(30, 20)
    reference = problem.ref_logits.squeeze(-2).log_softmax(-1)
    paths = {k: learn(problem, k, n=4, steps=300, record=300).logp for k in ("k1", "k2", "k3")}
    start = reverse_kl(paths["k1"][0], reference)
    k1, k2, k3 = (reverse_kl(path[-1], reference) for path in paths.values())
    yield inside(learning.lower_mean(start, k1))
    yield inside(learning.lower_mean(k2, start))
    yield inside(learning.lower_mean(k3, start))
    better_k1, better_k3 = (int((end < start).sum()) for end in (k1, k3))
    yield printed((better_k1 + better_k3) / (2 * len(start)))
    yield numbers(bandits=len(start), start=start.mean(), end=k3.mean())
    yield numbers(better_k3=better_k3, better_k1=better_k1)


# what the summary says of language models, and the places of the note that report it
REPORTED = {
    "the KL is held better": ("section 5.2", "section 5.3"),
    "wrong gradients degrade": ("section 5.1: the differentiated vanilla estimate spends most KL",),
    "convergence is steadier": (),
    "the final task improves substantially": (),
}


@claim("AI-2")
def corrected_gradients_improve_the_final_task() -> Iterator[Found]:
    """The note itself reports one reward-KL curve for both estimates in its reward experiment."""
    nowhere = [finding for finding, places in REPORTED.items() if not places]
    yield printed(float(len(nowhere)))
    yield numbers(nowhere=len(nowhere), findings=len(REPORTED), names="; ".join(nowhere))


@claim("AI-abstract-incorrect")
def differentiated_estimates_are_wrong_as_a_rule() -> Iterator[Found]:
    """Generally: of k1, k2 and k3 on sequences, summed over tokens or whole, all but the whole k2."""
    wrong = []
    for w in each(hedge_trees)():
        for k, per_token in itertools.product(("k1", "k2", "k3"), (False, True)):
            wrong.append(apart(w.grad(k, per_token=per_token), w.d_kl) > TOLERANCE)
        yield same(w.grad("k2"), w.d_kl)
    yield printed(hedged(wrong))
    exceptions = [apart(w.grad("k2"), w.d_kl) <= TOLERANCE for w in each(hedge_trees)()]
    yield numbers(wrong=sum(wrong), cases=len(wrong), trees=len(exceptions), right=sum(exceptions))


@claim("AI-abstract-partial", over=each(trees))
def a_part_of_the_gradient_at_best(w: Enumeration) -> Iterator[Found]:
    """Per token, k2 has the part that holds the prefixes fixed, k1 nothing, k3 neither part nor whole."""
    yield same(w.grad("k2", per_token=True), w.partial())
    yield differs(w.partial(), w.d_kl)
    yield same(w.grad("k1", per_token=True), 0.0)
    yield differs(w.grad("k3", per_token=True), w.partial())
    yield differs(w.grad("k3", per_token=True), w.d_kl)
