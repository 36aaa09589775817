"""Appendix A: how GRPO and CISPO differ from MiniRL (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.calibration import token_ratios
from kl_book.ledger.claims.ground.errors import (
    STRICT,
    apart,
    differs,
    less,
    relative,
    turned,
    violation,
    worst,
)
from kl_book.ledger.claims.ground.groups import centered, groups, standardized_or_zero
from kl_book.ledger.claims.ground.minirl import (
    HIGH,
    LOW,
    advantages,
    at_the_rollout,
    mask_of,
    minirl,
    one_engine,
)
from kl_book.ledger.claims.ground.off_policy import share_of_cases
from kl_book.ledger.claims.ground.sequences import token_weighted
from kl_book.ledger.claims.ground.sums import mean, terms
from kl_book.ledger.claims.ground.surrogates import (
    expected_reward,
    gradient_of,
    lengths,
    sampled_trees,
)
from kl_companion.tabular import Problem


def _group_update(problem: Problem, size: int, over: Literal["answer", "group", "nothing"]) -> torch.Tensor:
    """Expected update of centered groups, divided by an answer's tokens, its group's tokens, or nothing."""
    p, index = groups(problem, size)
    advantage, length = centered(problem.rewards[index], "mean"), lengths(problem)[index]
    tokens = {
        "answer": length * size,
        "group": length.sum(-1, keepdim=True),
        "nothing": torch.full_like(length, size),
    }
    weight = advantage / tokens[over]
    return torch.einsum("g,gi,girv->rv", p, weight, terms(problem).score[index])


@claim("QW-A-lennorm")
def both_normalizations_turn_the_gradient() -> Iterator[Found]:
    """Over the own length or over that of the group: neither is proportional where lengths differ."""
    proportional, inside, of_group, of_answer = [], [], {2: [], 3: []}, []  # type: ignore[var-annotated]
    for problem in (one_engine(p) for p in sampled_trees()):
        wanted = expected_reward(problem)[1]
        equal = len(lengths(problem).unique()) == 1
        for size in (2,) if equal else (2, 3):
            own = turned(_group_update(problem, size, "answer"), wanted)
            whole = turned(_group_update(problem, size, "group"), wanted)
            inside.append(apart(_group_update(problem, size, "nothing"), (1 - 1 / size) * wanted))
            if equal:
                proportional.append(own < 1e-9 and whole < 1e-9)
                continue
            inside += [violation(STRICT - own), violation(STRICT - whole)]
            of_answer.append(own)
            of_group[size].append(whole)
    short, long = of_group[2], of_group[3]
    inside += [less(b, a) for a, b in zip(short, long, strict=True)]
    yield from each_form(
        share_of_cases([*proportional, *[False] * len(of_answer)]),
        inside=worst(inside),
        number_of_proportional=len(proportional),
        number_of_short=len(short),
        min_of_answer=min(of_answer),
        max_of_answer=max(of_answer),
        max_short=max(short),
        max_long=max(long),
    )


def _slopes(problem: Problem, cispo: bool) -> torch.Tensor:
    """Derivative of GRPO's or CISPO's sum over tokens in every token's log-prob, [count, length]."""
    leaf = terms(problem).logp.clone().requires_grad_()
    ratio, a = (leaf - problem.token_logp(problem.ref_logits)).exp(), advantages(problem)[:, None]
    inside = ratio.clamp(1 - LOW, 1 + HIGH)
    total = (inside.detach() * a * leaf) if cispo else torch.minimum(ratio * a, inside * a)
    (found,) = torch.autograd.grad((total * problem.completion_mask).sum(), leaf)
    return found


def _cispo(problem: Problem, one_answer: bool) -> torch.Tensor:
    """Gradient of CISPO's objective in groups of two, by automatic differentiation, [rows, vocab].

    ``one_answer``: the log-probs are those of one more answer, as the printed indices have it.
    """
    p, index = groups(problem, 2)
    coefficient = standardized_or_zero(problem.rewards[index])[..., None] * problem.completion_mask[index]
    coefficient = coefficient / problem.completion_mask[index].sum((-1, -2))[:, None, None]
    theta = problem.logits.detach().clone().requires_grad_()
    logp = problem.token_logp(theta)
    scored = terms(problem).p @ logp if one_answer else logp[index]
    ratio = terms(problem).log_ratio.exp()[index].clamp(1 - LOW, 1 + HIGH)
    (gradient,) = torch.autograd.grad((p[:, None, None] * ratio * coefficient * scored).sum(), theta)
    return gradient


@claim("QW-A-cispo")
def cispo_scores_the_answers_of_its_group() -> Iterator[Found]:
    """With the printed indices the scored answer is not one of the group, and the update is 0 on-policy."""
    printed, corrected = [], []
    for problem in (one_engine(p) for p in sampled_trees() if len(lengths(p).unique()) == 1):
        p, index = groups(problem, 2)
        weight = standardized_or_zero(problem.rewards[index]) / lengths(problem)[index].sum(-1, keepdim=True)
        wanted = torch.einsum("g,gi,girv->rv", p, weight, terms(problem).score[index])
        printed.append(relative(_cispo(problem, one_answer=True), wanted))
        corrected.append(apart(_cispo(problem, one_answer=False), wanted))
    yield from each_form(
        worst(printed),
        worst(corrected),
        number_of_printed=len(printed),
        min_printed=min(printed),
        max_printed=max(printed),
    )


@claim("QW-A-clip")
def cispo_stops_no_gradient() -> Iterator[Found]:
    """At every token CISPO has a slope; GRPO has none where M_t is 0."""
    errors, stopped = [], 0.0
    for problem in sampled_trees():
        real, closed = problem.completion_mask > 0, mask_of(problem) == 0
        errors.append(violation(1e-6 - float(_slopes(problem, cispo=True)[real].abs().min())))
        grpo = _slopes(problem, cispo=False)
        errors.append(float(((grpo == 0) != closed)[real].double().mean()))
        stopped += float((closed & real).sum())
    errors.append(violation(1.0 - stopped))
    yield from each_form(worst(errors))


@claim("QW-A-is")
def neither_knows_of_the_other_engine() -> Iterator[Found]:
    """With the parameters of the rollout every token's slope is its advantage, whatever the sampler was."""
    errors = []
    for problem in sampled_trees():
        here = at_the_rollout(problem)
        plain = (advantages(here)[:, None] * here.completion_mask).expand_as(here.completion_mask)
        errors += [apart(_slopes(here, cispo), plain) for cispo in (True, False)]
        weighted = token_ratios(here) * plain
        errors.append(differs(weighted, plain))
        by_weight = mean(terms(here).p, token_weighted(here, weighted))
        errors.append(apart(gradient_of(minirl, here), by_weight))
    yield from each_form(worst(errors))
