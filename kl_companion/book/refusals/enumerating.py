"""Bad input to worlds that are enumerated, and to the audit of a loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kl_companion.book.names import kl
from kl_companion.book.refusals.case import Case, bad
from kl_companion.book.refusals.samples import ALL, DISJOINT, LOGITS, LOGP, REF_ALL, REF_LOGITS, tree, world

_VALUE: Any = 3.0


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


def unread(logp: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """A loss with a parameter that does not say which quantity it is."""
    return logp - reference


def twice(logp: torch.Tensor, log_probs: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    """A loss with two parameters of one meaning."""
    return logp + log_probs - ref_logp


class Unmade:
    """A class that wants what has no default."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def loss(self, logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
        """A loss that is never reached."""
        return logp - ref_logp


def _loss(rollout: Any) -> torch.Tensor:
    return kl.kl_loss(rollout)


def _expecting(name: str, **options: Any) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), **options)
    return (
        Case(name, "a loss that is no scalar", lambda: fn(lambda r: r.logp, tree())),
        Case(name, "a loss that returns None", lambda: fn(lambda r: None, tree())),
        Case(name, "no sequences in a group", lambda: fn(_loss, tree(), group_size=0)),
        Case(name, "too much to enumerate", lambda: fn(_loss, tree(), group_size=99)),
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
        bad("two vocabularies", fn, "k3", first, second[..., :4]),
        bad("a misspelled estimator", fn, "k33", first, second),
        bad("a clip with low > high", fn, "k3", first, second, clip=(2.0, 1.0)),
        bad("a list instead of a tensor", fn, "k3", first.tolist(), second),
        bad("disjoint supports", fn, "k3", *DISJOINT),
    )


CASES = (
    bad("a vocabulary of one", kl.bandit, 1),
    bad("a negative scale", kl.bandit, 3, scale=-1.0),
    bad("a vocabulary of 2.5 tokens", kl.bandit, 2.5),
    bad("no tokens", kl.prefix_tree, 3, 0),
    bad("too many sequences", kl.prefix_tree, 50, 5),
    bad("no world", kl.stack, []),
    bad("worlds of two shapes", kl.stack, [world(), tree()]),
    bad("k beyond the vocabulary", kl.truncate, world(), top_k=9),
    bad("top_k and top_p", kl.truncate, world(), top_k=2, top_p=0.9),
    bad("a top_p in percent", kl.truncate, world(), top_p=90),
    *_expecting("expected_value"),
    *_expecting("expected_gradient"),
    bad("a loss that detaches everything", kl.expected_gradient, constant, tree()),
    *_expecting("descend", steps=1, lr=0.1),
    bad("no steps", kl.descend, _loss, tree(), steps=0, lr=0.1),
    bad("a negative step size", kl.descend, _loss, tree(), steps=1, lr=-0.1),
    *_moments("exact_moments"),
    bad("a baseline in the loss", kl.exact_moments, "k1", world(), 2, baseline="mean"),
    bad("no draws", kl.exact_moments, "k1", world(), 0),
    bad("terms per token", kl.exact_moments, lambda r: r.logp, tree()),
    *_moments("exact_field"),
    *_moments("draw_statistics"),
    *_moments("simulate", 4, repeats=2, seed=0),
    bad("no repeats", kl.simulate, "k3", world(), 4, repeats=0, seed=0),
    bad("more than one decision", kl.learn, tree(), steps=1),
    bad("another sampler", kl.learn, world(off_policy=True), steps=1),
    bad("no steps", kl.learn, world(), steps=0),
    bad("a beta per token", kl.learn, world(), beta=torch.ones(3), steps=1),
    bad("leaving one out of one", kl.learn, world(), n=1, rewards=True, steps=1),
    bad("a decay of 1", kl.follow_anchor, tree(), decay=1.0, lr=0.1, beta=0.1, iterations=1),
    bad("no iterations", kl.follow_anchor, tree(), decay=0.9, lr=0.1, beta=0.1, iterations=0),
    bad(
        "a misspelled optimizer",
        kl.follow_anchor,
        tree(),
        decay=0.9,
        lr=0.1,
        beta=0.1,
        iterations=1,
        optimizer="adamw",
    ),
    bad("logits of another world", kl.fisher_matrix, tree(), torch.zeros(1, 3)),
    bad("a stack of worlds", kl.fisher_matrix, kl.stack([tree()] * 2)),
    *_by_row("token_moments", ALL, REF_ALL),
    bad("logits instead of log-probs", kl.token_moments, "k3", LOGITS, REF_ALL),
    *_by_row("token_statistics", ALL, REF_ALL),
    *_by_row("logit_moments", LOGITS, REF_LOGITS),
    bad("a temperature of 0", kl.logit_moments, "k3", LOGITS, REF_LOGITS, temperature=0),
    bad("log-probs of sampled tokens", kl.logit_moments, "k3", LOGP[0, 0], LOGP[0, 0]),
    Case("audit", "a misspelled estimator", lambda: _audit("k33")),
    Case("audit", "a misspelled wish", lambda: _audit("k3", want="revers_kl")),
    Case("audit", "a misspelled placement", lambda: _audit("k3", placement="rewards")),
    Case("audit", "a loss that is no scalar", lambda: _audit(no_scalar)),
    Case("audit", "a loss that is no tensor", lambda: _audit(no_tensor)),
    Case("audit", "a loss that detaches everything", lambda: _audit(detached)),
    Case("audit", "a loss that ignores the rollout", lambda: _audit(constant)),
    Case("audit", "a loss that is NaN", lambda: _audit(not_a_number)),
    Case("audit", "a parameter whose name says no quantity", lambda: _audit(unread)),
    Case("audit", "two parameters of one meaning", lambda: _audit(twice)),
    Case("audit", "a parameter mapped to no role", lambda: _audit(unread, map={"reference": "teacher_logp"})),
    Case(
        "audit", "a map of a parameter that it has not", lambda: _audit(unread, map={"refernce": "ref_logp"})
    ),
    Case("audit", "a map for an estimator", lambda: _audit("k3", map={"logp": "ref_logp"})),
    Case("audit", "an option that it has not", lambda: _audit(no_scalar, set={"beta": 0.1})),
    Case("audit", "a class that cannot be made", lambda: _audit(Unmade.loss)),
    Case("audit", "a loss of nothing", lambda: _audit(lambda: torch.zeros(()))),
    Case("audit", "a value instead of a function", lambda: _audit(torch.zeros(()))),
    Case("audit", "a level for a loss of a rollout", lambda: _audit(constant, level="token")),
    bad("a negative scale", kl.audit, "k3", scale=-1.0),
    Case("audit", "a sum of no terms", lambda: _audit("k3", max_terms=0)),
    Case("audit", "no problems", lambda: _audit("k3", problems=[])),
    Case("audit", "no sequences in a group", lambda: _audit("k3", group_size=0)),
    bad("a misspelled setting", kl.audit_setting, "verl.loss_k33"),
    bad("an unknown framework", kl.audit_setting, "vrel.loss_k3"),
    bad("a framework without a setting", kl.audit_setting, "verl"),
    bad("a misspelled advantage", kl.Recipe, "group_sdt"),
    bad("the name of an estimator for a term", kl.Recipe, kl="k3"),
    bad("a critic beside other answers", kl.Recipe, "group_std", critic=_loss),
    bad("a loss without rewards", kl.audit_update, kl.k2),
    bad("groups of one answer", kl.audit_update, kl.Recipe(), groups=(1, 2)),
    bad("a divergence for what is maximized", kl.audit_update, kl.Recipe(), want="reverse_kl"),
    Case(
        "register_objective",
        "a name that is taken",
        lambda: kl.register_objective("expected_reward", words="mine", source="a page")(_loss),
    ),
    Case(
        "register_objective",
        "a value instead of a function",
        lambda: kl.register_objective("mine", words="mine", source="a page")(_VALUE),
    ),
)
