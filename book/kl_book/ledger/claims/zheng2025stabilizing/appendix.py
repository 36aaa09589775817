"""Appendix A: how GRPO and CISPO differ from MiniRL (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, same
from kl_book.ledger.claims.ground import errors, off_policy
from kl_book.ledger.claims.ground.groups import centered, groups, standardized_or_zero
from kl_book.ledger.claims.ground.surrogates import HIGH, LOW, Engines, minirl, sampled_trees


def _group_update(w: Engines, size: int, over: Literal["answer", "group", "nothing"]) -> torch.Tensor:
    """Expected update of centered groups, divided by an answer's tokens, its group's tokens, or nothing."""
    p, index = groups(w.problem, size)
    advantage, length = centered(w.R[index], "mean"), w.lengths[index]
    tokens = {
        "answer": length * size,
        "group": length.sum(-1, keepdim=True),
        "nothing": torch.full_like(length, size),
    }
    weight = advantage / tokens[over]
    return torch.einsum("g,gi,girv->rv", p, weight, w.s[index])


@claim("QW-A-lennorm")
def both_normalizations_turn_the_gradient() -> Iterator[Found]:
    """Over the own length or over that of the group: neither is proportional where lengths differ."""
    proportional, by_answer = [], []
    by_group: dict[int, list[float]] = {2: [], 3: []}
    for w in (w.one_engine() for w in sampled_trees()):
        target, alike = w.d_reward, w.even
        for size in (2,) if alike else (2, 3):
            yield same(_group_update(w, size, "nothing"), (1 - 1 / size) * target, "inside")
            own, whole = (errors.turned(_group_update(w, size, x), target) for x in ("answer", "group"))
            proportional.append(alike and own < 1e-9 and whole < 1e-9)
            if not alike:
                by_answer.append(own)
                by_group[size].append(whole)
    for away in (*by_answer, *by_group[2], *by_group[3]):
        yield less(0.0, away, "inside")
    for two, three in zip(*by_group.values(), strict=True):
        yield less(three, two, "inside")
    yield printed(off_policy.share_of_cases(proportional))
    yield numbers(alike=len(proportional) - len(by_answer), trees=len(by_group[2]))
    yield numbers(least=min(by_answer), most=max(by_answer))
    yield numbers(of_two=max(by_group[2]), of_three=max(by_group[3]))


def _slopes(w: Engines, cispo: bool) -> torch.Tensor:
    """Derivative of GRPO's or CISPO's sum over tokens in every token's log-prob, [count, length]."""
    leaf = w.t.logp.clone().requires_grad_()
    ratio, a = (leaf - w.problem.token_logp(w.problem.ref_logits)).exp(), w.advantage[:, None]
    clipped = ratio.clamp(1 - LOW, 1 + HIGH)
    total = (clipped.detach() * a * leaf) if cispo else torch.minimum(ratio * a, clipped * a)
    (slopes,) = torch.autograd.grad((total * w.mask).sum(), leaf)
    return slopes


def _cispo(w: Engines, one_answer: bool) -> torch.Tensor:
    """Gradient of CISPO's objective in groups of two, by automatic differentiation, [rows, vocab].

    ``one_answer``: the log-probs are those of one more answer, as the printed indices have it.
    """
    p, index = groups(w.problem, 2)
    coefficient = standardized_or_zero(w.R[index])[..., None] * w.mask[index]
    coefficient = coefficient / w.mask[index].sum((-1, -2))[:, None, None]
    theta = w.problem.logits.detach().clone().requires_grad_()
    logp = w.problem.token_logp(theta)
    scored = w.E(logp) if one_answer else logp[index]
    ratio = w.t.log_ratio.exp()[index].clamp(1 - LOW, 1 + HIGH)
    (gradient,) = torch.autograd.grad((p[:, None, None] * ratio * coefficient * scored).sum(), theta)
    return gradient


@claim("QW-A-cispo")
def cispo_scores_the_answers_of_its_group() -> Iterator[Found]:
    """With the printed indices the scored answer is not one of the group, and the update is 0 on-policy."""
    shares = []
    for w in (w.one_engine() for w in sampled_trees() if w.even):
        p, index = groups(w.problem, 2)
        weight = standardized_or_zero(w.R[index]) / w.lengths[index].sum(-1, keepdim=True)
        target = torch.einsum("g,gi,girv->rv", p, weight, w.s[index])
        shares.append(errors.relative(_cispo(w, one_answer=True), target))
        yield printed(shares[-1])
        yield same(_cispo(w, one_answer=False), target, "corrected")
    yield numbers(trees=len(shares), least=min(shares), most=max(shares))


@claim("QW-A-clip")
def cispo_stops_no_gradient() -> Iterator[Found]:
    """At every token CISPO has a slope; GRPO has none where M_t is 0."""
    stopped = 0.0
    for w in sampled_trees():
        real, closed = w.mask > 0, w.open == 0
        yield less(0.0, float(_slopes(w, cispo=True)[real].abs().min()))
        flat = _slopes(w, cispo=False) == 0
        yield printed(float((flat != closed)[real].double().mean()))
        stopped += float((closed & real).sum())
    yield less(0.0, stopped, by=1.0)


@claim("QW-A-is", over=sampled_trees)
def neither_knows_of_the_other_engine(w: Engines) -> Iterator[Found]:
    """With the parameters of the rollout every token's slope is its advantage, whatever the sampler was."""
    here = w.at_the_rollout()
    plain = here.advantage[:, None] * here.mask
    for cispo in (True, False):
        yield same(_slopes(here, cispo), plain)
    yield differs(here.ratio * plain, plain)
    yield same(here.gradient(minirl), here.E(here.tokens(here.ratio * plain)))
