"""Bad input to worlds that are enumerated, and to the audit of a loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import kl_companion as kl
from kl_companion.refusals.case import Case
from kl_companion.refusals.samples import ALL, DISJOINT, LOGITS, LOGP, REF_ALL, REF_LOGITS, tree, world

_ANY: Any = kl  # arguments of wrong types are what is tried here


def _audit(loss: Any, **options: Any) -> object:
    return kl.audit(loss, off_policy=False, scale=1.0, **options)


def no_scalar(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss of the wrong shape."""
    return (logp - ref_logp).sum(0)


def no_tensor(logp: torch.Tensor, ref_logp: torch.Tensor) -> float:
    """A loss that left the graph."""
    return (logp - ref_logp).sum().item()


def detached(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss that detaches everything."""
    return (logp - ref_logp).detach()


def constant(rollout: Any) -> torch.Tensor:
    """A loss that ignores its argument."""
    return torch.zeros(())


def not_a_number(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss that is NaN."""
    return (logp - ref_logp).abs().neg().sqrt()


def unknown_field(logp: torch.Tensor, reference_logp: torch.Tensor) -> torch.Tensor:
    """A loss that asks for what no rollout has."""
    return logp - reference_logp


def _loss(rollout: Any) -> torch.Tensor:
    return kl.kl_loss(rollout)


def _expecting(name: str, **options: Any) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), **options)
    return (
        Case(name, "a loss that is no scalar", lambda: fn(lambda r: r.logp, tree())),
        Case(name, "a loss that returns None", lambda: fn(lambda r: None, tree())),
        Case(name, "no sequences in a group", lambda: fn(_loss, tree(), group_size=0)),
        Case(name, "too much to enumerate", lambda: fn(_loss, tree(), group_size=9)),
        Case(name, "a stack of worlds", lambda: fn(_loss, kl.stack([tree()] * 2))),
    )


def _moments(name: str, *more: Any, **options: Any) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), **options)
    return (
        Case(name, "a misspelled estimator", lambda: fn("k_3", world(), *more)),
        Case(name, "an exact KL", lambda: fn("exact_kl", world(), *more)),
        Case(name, "a misspelled placement", lambda: fn("k3", world(), *more, placement="rewards")),
    )


def _by_row(name: str, first: torch.Tensor, second: torch.Tensor) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        Case(name, "two vocabularies", partial(fn, "k3", first, second[..., :4])),
        Case(name, "a misspelled estimator", partial(fn, "k33", first, second)),
        Case(name, "a clip with low > high", partial(fn, "k3", first, second, clip=(2.0, 1.0))),
        Case(name, "a list instead of a tensor", partial(fn, "k3", first.tolist(), second)),
        Case(name, "disjoint supports", partial(fn, "k3", *DISJOINT)),
    )


CASES = (
    Case("bandit", "a vocabulary of one", lambda: kl.bandit(1)),
    Case("bandit", "a negative scale", lambda: kl.bandit(3, scale=-1.0)),
    Case("bandit", "a vocabulary of 2.5 tokens", lambda: _ANY.bandit(2.5)),
    Case("prefix_tree", "no tokens", lambda: kl.prefix_tree(3, 0)),
    Case("prefix_tree", "too many sequences", lambda: kl.prefix_tree(50, 5)),
    Case("stack", "no world", lambda: kl.stack([])),
    Case("stack", "worlds of two shapes", lambda: kl.stack([world(), tree()])),
    Case("truncate", "k beyond the vocabulary", lambda: kl.truncate(world(), top_k=9)),
    Case("truncate", "top_k and top_p", lambda: kl.truncate(world(), top_k=2, top_p=0.9)),
    Case("truncate", "a top_p in percent", lambda: kl.truncate(world(), top_p=90)),
    *_expecting("expected_value"),
    *_expecting("expected_gradient"),
    Case(
        "expected_gradient", "a loss that detaches everything", lambda: kl.expected_gradient(constant, tree())
    ),
    *_expecting("descend", steps=1, lr=0.1),
    Case("descend", "no steps", lambda: kl.descend(_loss, tree(), steps=0, lr=0.1)),
    Case("descend", "a negative step size", lambda: kl.descend(_loss, tree(), steps=1, lr=-0.1)),
    *_moments("exact_moments"),
    Case(
        "exact_moments", "a baseline in the loss", lambda: kl.exact_moments("k1", world(), 2, baseline="mean")
    ),
    Case("exact_moments", "no draws", lambda: kl.exact_moments("k1", world(), 0)),
    Case("exact_moments", "terms per token", lambda: kl.exact_moments(lambda r: r.logp, tree())),
    *_moments("exact_field"),
    *_moments("draw_statistics"),
    *_moments("simulate", 4, repeats=2, seed=0),
    Case("simulate", "no repeats", lambda: kl.simulate("k3", world(), 4, repeats=0, seed=0)),
    Case("learn", "more than one decision", lambda: kl.learn(tree(), steps=1)),
    Case("learn", "another sampler", lambda: kl.learn(world(off_policy=True), steps=1)),
    Case("learn", "no steps", lambda: kl.learn(world(), steps=0)),
    Case("learn", "a beta per token", lambda: kl.learn(world(), beta=torch.ones(3), steps=1)),
    Case("learn", "leaving one out of one", lambda: kl.learn(world(), n=1, rewards=True, steps=1)),
    Case(
        "follow_anchor",
        "a decay of 1",
        lambda: kl.follow_anchor(tree(), decay=1.0, lr=0.1, beta=0.1, iterations=1),
    ),
    Case(
        "follow_anchor",
        "no iterations",
        lambda: kl.follow_anchor(tree(), decay=0.9, lr=0.1, beta=0.1, iterations=0),
    ),
    Case(
        "follow_anchor",
        "a misspelled optimizer",
        lambda: _ANY.follow_anchor(tree(), decay=0.9, lr=0.1, beta=0.1, iterations=1, optimizer="adamw"),
    ),
    Case("fisher_matrix", "logits of another world", lambda: kl.fisher_matrix(tree(), torch.zeros(1, 3))),
    Case("fisher_matrix", "a stack of worlds", lambda: kl.fisher_matrix(kl.stack([tree()] * 2))),
    *_by_row("token_moments", ALL, REF_ALL),
    Case("token_moments", "logits instead of log-probs", lambda: kl.token_moments("k3", LOGITS, REF_ALL)),
    *_by_row("token_statistics", ALL, REF_ALL),
    *_by_row("logit_moments", LOGITS, REF_LOGITS),
    Case(
        "logit_moments",
        "a temperature of 0",
        lambda: kl.logit_moments("k3", LOGITS, REF_LOGITS, temperature=0),
    ),
    Case(
        "logit_moments", "log-probs of sampled tokens", lambda: kl.logit_moments("k3", LOGP[0, 0], LOGP[0, 0])
    ),
    Case("audit", "a misspelled estimator", lambda: _audit("k33")),
    Case("audit", "a misspelled wish", lambda: _audit("k3", want="revers_kl")),
    Case("audit", "a misspelled placement", lambda: _audit("k3", placement="rewards")),
    Case("audit", "a loss that is no scalar", lambda: _audit(no_scalar)),
    Case("audit", "a loss that is no tensor", lambda: _audit(no_tensor)),
    Case("audit", "a loss that detaches everything", lambda: _audit(detached)),
    Case("audit", "a loss that ignores the rollout", lambda: _audit(constant)),
    Case("audit", "a loss that is NaN", lambda: _audit(not_a_number)),
    Case("audit", "a loss that asks for an unknown field", lambda: _audit(unknown_field)),
    Case("audit", "a loss of nothing", lambda: _audit(lambda: torch.zeros(()))),
    Case("audit", "a value instead of a function", lambda: _audit(torch.zeros(()))),
    Case("audit", "a level for a loss of a rollout", lambda: _audit(constant, level="token")),
    Case("audit", "a negative scale", lambda: kl.audit("k3", scale=-1.0)),
    Case("audit", "a sum of no terms", lambda: _audit("k3", max_terms=0)),
    Case("audit", "no problems", lambda: _audit("k3", problems=[])),
    Case("audit", "no sequences in a group", lambda: _audit("k3", group_size=0)),
    Case("audit_setting", "a misspelled setting", lambda: kl.audit_setting("verl.loss_k33")),
    Case("audit_setting", "an unknown framework", lambda: kl.audit_setting("vrel.loss_k3")),
    Case("audit_setting", "a framework without a setting", lambda: kl.audit_setting("verl")),
    Case(
        "register_objective",
        "a name that is taken",
        lambda: kl.register_objective("expected_reward", words="mine", source="a page")(_loss),
    ),
    Case(
        "register_objective",
        "a value instead of a function",
        lambda: _ANY.register_objective("mine", words="mine", source="a page")(3.0),
    ),
)
