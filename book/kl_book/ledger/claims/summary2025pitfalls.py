"""The claims of a machine-written summary of Tang and Munos' note (summary2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, hedged, relative, worst
from kl_book.ledger.claims.ground.learning import lower_mean
from kl_book.ledger.claims.ground.off_policy import mean_gradient
from kl_book.ledger.claims.ground.sequences import (
    cumulative_gradients,
    partial_gradient,
    sequence_gradients,
    sum_from_here,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.worlds import arms, hedge_trees, trees, two_policies, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.tabular import Problem, learn


def _per_token(name: str, problem: Problem) -> torch.Tensor:
    """Expected gradient of the sum of the estimates of all tokens: eq (6) of the note."""
    return mean(terms(problem).p, differentiated(name, problem, per_token=True))


@claim("AI-first-misuse")
def first_misuse_differentiates_an_estimate() -> Iterator[Found]:
    """k1 and k3 differentiated are biased, and k2 token by token; k2 as a whole is not."""
    inside = [differs(mean_gradient(name, p), kl_gradient(p)) for name in ("k1", "k3") for p in worlds()]
    inside += [differs(_per_token("k2", p), kl_gradient(p)) for p in trees()]
    tried = [apart(mean_gradient(name, p), kl_gradient(p)) for name in ("k1", "k2", "k3") for p in worlds()]
    right = sum(e <= TOLERANCE for e in tried)
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    found, wanted = (float(x[0, 0]) for x in (mean_gradient("k2", small), kl_gradient(small)))
    yield from each_form(
        right / len(tried),
        inside=worst(inside),
        found=found,
        wanted=wanted,
        right=right,
        number=len(worlds()),
    )


def _last_token_only(problem: Problem) -> torch.Tensor:
    """Expected gradient of the squared log-ratio of the last token of every sequence alone."""
    t = terms(problem)
    last = torch.nn.functional.one_hot(problem.completion_mask.sum(-1).long() - 1, t.logp.shape[1])
    return mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio * last, t.scores))


@claim("AI-1")
def second_misuse_takes_the_final_token_only() -> Iterator[Found]:
    """The note's second misuse differentiates every token; what it drops is the effect on later tokens."""
    printed, corrected = [], []
    for problem in trees():
        t = terms(problem)
        misuse = _per_token("k2", problem)
        every = mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio, t.scores))
        printed.append(relative(_last_token_only(problem), misuse))
        corrected += [apart(every, misuse), differs(misuse, exact(reverse_kl, problem)[1])]
    small = trees()[0]
    share = _last_token_only(small)[0].norm()
    first = _per_token("k2", small)[0].norm()
    yield from each_form(
        worst(printed),
        worst(corrected),
        first=float(first),
        share=float(share),
        number=100 * min(printed),
        number_2=100 * max(printed),
    )


@claim("AI-derivation")
def unbiased_gradient_of_sequences() -> Iterator[Found]:
    """The note's eq (7), and the same without its terms of mean zero: both have the KL's gradient."""
    errors = []
    for problem in trees():
        for gradient in (sequence_gradients(problem), cumulative_gradients(problem)):
            errors.append(apart(mean(terms(problem).p, gradient), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("AI-paradigm")
def right_gradient_in_the_usual_loop() -> Iterator[Found]:
    """As a loss, sg(log-ratios from here on) log pi, sample by sample; in the reward, on average."""
    errors, beta = [], 0.3
    for problem in trees():
        t = terms(problem)
        leaf = t.logp.clone().requires_grad_()
        loss = sum_from_here(leaf - t.ref_logp).detach() * leaf * problem.completion_mask
        (c,) = torch.autograd.grad(loss.sum(), leaf)
        errors.append(apart(torch.einsum("it,itrv->irv", c, t.scores), cumulative_gradients(problem)))

        def objective(
            p: torch.Tensor, q: torch.Tensor, rewards: torch.Tensor = problem.rewards
        ) -> torch.Tensor:
            return p.exp() @ rewards - beta * reverse_kl(p, q)

        shaped = problem.rewards - beta * log_ratio(problem)
        errors.append(apart(field(shaped, problem), exact(objective, problem)[1]))
    yield from each_form(worst(errors))


@claim("AI-2+tabular")
def right_and_wrong_gradients_on_bandits() -> Iterator[Found]:
    """By samples: the differentiated k1 lets the KL drift up; the differentiated k3 lowers it, as k2 does."""
    problem = arms(30, 20)
    reference = problem.ref_logits.squeeze(-2).log_softmax(-1)
    last = {}
    for name in ("k1", "k2", "k3"):
        path = learn(problem, name, n=4, steps=300, record=300).logp
        start, last[name] = reverse_kl(path, reference)
    inside = [
        lower_mean(start, last["k1"]),
        lower_mean(last["k2"], start),
        lower_mean(last["k3"], start),
    ]
    better = {name: int((last[name] < start).sum()) for name in ("k1", "k3")}
    yield from each_form(
        sum(better.values()) / (2 * len(start)),
        inside=worst(inside),
        number_of_start=len(start),
        float=float(start.mean()),
        float_2=float(last["k3"].mean()),
        better_k3=better["k3"],
        better_k1=better["k1"],
    )


# what the summary says of language models, and the places of the note that report it
SAID = {
    "the KL is held better": ("section 5.2", "section 5.3"),
    "wrong gradients degrade": ("section 5.1: the differentiated vanilla estimate spends most KL",),
    "convergence is steadier": (),
    "the final task improves substantially": (),
}


@claim("AI-2")
def corrected_gradients_improve_the_final_task() -> Iterator[Found]:
    """The note itself reports one reward-KL curve for both estimates in its reward experiment."""
    nowhere = [said for said, places in SAID.items() if not places]
    yield from each_form(
        float(len(nowhere)),
        number=len(nowhere),
        named=len(SAID),
        findings="; ".join(nowhere),
    )


@claim("AI-abstract-incorrect")
def differentiated_estimates_are_wrong_as_a_rule() -> Iterator[Found]:
    """Generally: of k1, k2 and k3 on sequences, summed over tokens or whole, all but the whole k2."""
    found: dict[str, list[bool]] = {}
    for problem in hedge_trees():
        kl = kl_gradient(problem)
        for name in ("k1", "k2", "k3"):
            for form, gradient in (
                ("whole", mean_gradient(name, problem)),
                ("per token", _per_token(name, problem)),
            ):
                found.setdefault(f"{name} {form}", []).append(apart(gradient, kl) > TOLERANCE)
    wrong = [case for cases in found.values() for case in cases]
    exception = worst(apart(mean_gradient("k2", p), kl_gradient(p)) for p in hedge_trees())
    yield from each_form(
        max(hedged(wrong), exception),
        sum_of_wrong=sum(wrong),
        number_of_wrong=len(wrong),
        number=len(hedge_trees()),
        number_2=len(found["k2 whole"]) - sum(found["k2 whole"]),
    )


@claim("AI-abstract-partial")
def a_part_of_the_gradient_at_best() -> Iterator[Found]:
    """Per token, k2 has the part that holds the prefixes fixed, k1 nothing, k3 neither part nor whole."""
    errors = []
    for problem in trees():
        part, all_of_it = partial_gradient(problem), kl_gradient(problem)
        errors += [apart(_per_token("k2", problem), part), differs(part, all_of_it)]
        errors.append(apart(_per_token("k1", problem), 0.0))
        errors += [differs(_per_token("k3", problem), x) for x in (part, all_of_it)]
    yield from each_form(worst(errors))
