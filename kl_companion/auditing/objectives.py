"""Named objectives: scalars of an enumerated world whose exact gradients a loss is compared with.

``sequence_*`` objectives are functions of the whole policy. ``token_*`` ones sum a divergence over the
states that the *sampling* policy visits and hold those visits fixed: what a per-token loss descends,
and in general not the gradient of anything (the field has curl). ``behavior_*`` ones hold the samples
themselves fixed; they are distinct only off-policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.divergences import DIVERGENCES, Divergence
from kl_companion.estimators.vocabulary import f_divergence
from kl_companion.rollout import Rollout
from kl_companion.tabular import Problem

Scalar = Callable[[Rollout], torch.Tensor]


class Objective(NamedTuple):
    """A named objective.

    Attributes:
        name: The registered name.
        scalar: Its exact value from the rollout that lists *every* sequence once; differentiable.
        words: How the audit says it in a sentence.
        source: Bib key and place.
        regularizer: Whether it measures a distance to the reference (rewards and entropies do not).
        off_policy_only: On-policy it coincides with another objective, so it is tried off-policy only.
    """

    name: str
    scalar: Scalar
    words: str
    source: str
    regularizer: bool = True
    off_policy_only: bool = False


OBJECTIVES: dict[str, Objective] = {}
_SAID = {
    "reverse_kl": "reverse KL, KL(policy || reference),",
    "forward_kl": "forward KL, KL(reference || policy),",
}


def register_objective(
    name: str, *, words: str, source: str, regularizer: bool = True, off_policy_only: bool = False
) -> Callable[[Scalar], Scalar]:
    """Register a scalar of an enumerated rollout as the objective ``name`` and return it untouched.

    Raises:
        ValueError: the name is taken.
    """

    def decorate(fn: Scalar) -> Scalar:
        if name in OBJECTIVES and OBJECTIVES[name].words != words:
            raise ValueError(f"objective {name!r} is registered already")
        OBJECTIVES[name] = Objective(name, fn, words, source, regularizer, off_policy_only)
        return fn

    return decorate


def objectives(*, off_policy: bool) -> dict[str, Objective]:
    """The objectives to try; divergences that were registered later are included."""
    for d in list(DIVERGENCES.values()):
        add_divergence(d)
    return {n: o for n, o in OBJECTIVES.items() if off_policy or not o.off_policy_only}


def field(objective: Objective, problem: Problem, logits: torch.Tensor | None = None) -> torch.Tensor:
    """Exact gradient of the objective with respect to the policy's logits, [rows, vocab]."""
    theta = (problem.logits if logits is None else logits).detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective.scalar(problem.rollout(theta)), theta)
    return gradient


def value(objective: Objective, problem: Problem) -> float:
    """Exact value of the objective."""
    with torch.no_grad():
        return objective.scalar(problem.rollout(problem.logits)).item()


def _total(x: torch.Tensor, rollout: Rollout) -> torch.Tensor:
    return (x * rollout.completion_mask).sum(-1)


def _visits(rollout: Rollout) -> torch.Tensor:
    """Probability that each listed sequence is sampled, [count], held fixed."""
    return _total(rollout.sampled_from, rollout).exp().detach()


def add_divergence(d: Divergence) -> None:
    """Register the objectives of a divergence: of whole sequences, and of every next token."""
    if f"sequence_{d.name}" in OBJECTIVES:
        return

    def sequence(rollout: Rollout) -> torch.Tensor:
        logp, ref_logp = _total(rollout.logp, rollout), _total(rollout.ref_logp, rollout)
        return f_divergence(d, logp, ref_logp)

    def token(rollout: Rollout) -> torch.Tensor:
        each = f_divergence(d, rollout.logp_all, rollout.ref_logp_all)
        return (_visits(rollout) * _total(each, rollout)).sum()

    said = _SAID.get(d.name, d.name.replace("_", " ") + " divergence")
    register_objective(f"sequence_{d.name}", words=f"the {said} of whole sequences", source=d.source)(
        sequence
    )
    register_objective(
        f"token_{d.name}",
        words=f"the {said} of every next token, with the states that are visited held fixed",
        source=d.source,
    )(token)


for _divergence in DIVERGENCES.values():
    add_divergence(_divergence)


@register_objective(
    "expected_reward", words="the expected reward", source="emapg2026, eq (1)", regularizer=False
)
def _expected_reward(rollout: Rollout) -> torch.Tensor:
    if rollout.rewards is None:
        raise ValueError("expected_reward needs rewards; this Rollout holds none")
    return (_total(rollout.logp, rollout).exp() * rollout.rewards).sum()


@register_objective(
    "token_entropy",
    words="the entropy of every next token, with the states that are visited held fixed",
    source="this book",
    regularizer=False,
)
def _token_entropy(rollout: Rollout) -> torch.Tensor:
    each = -(rollout.logp_all.exp() * rollout.logp_all).sum(-1)
    return (_visits(rollout) * _total(each, rollout)).sum()


@register_objective(
    "sequence_entropy", words="the entropy of whole sequences", source="this book", regularizer=False
)
def _sequence_entropy(rollout: Rollout) -> torch.Tensor:
    logp = _total(rollout.logp, rollout)
    return -(logp.exp() * logp).sum()


@register_objective(
    "sequence_squared_log_ratio",
    words="half the squared log-ratio of whole sequences, expected under the policy (not a KL)",
    source="wang2025choosing, section 6.2",
)
def _sequence_squared(rollout: Rollout) -> torch.Tensor:
    logp, ref_logp = _total(rollout.logp, rollout), _total(rollout.ref_logp, rollout)
    return (logp.exp() * (logp - ref_logp) ** 2 / 2).sum()


@register_objective(
    "token_squared_log_ratio",
    words="half the squared log-ratio of every next token, expected under the policy (not a KL), "
    "with the states that are visited held fixed",
    source="wang2025choosing, section 6.2",
)
def _token_squared(rollout: Rollout) -> torch.Tensor:
    each = (rollout.logp_all.exp() * (rollout.logp_all - rollout.ref_logp_all) ** 2 / 2).sum(-1)
    return (_visits(rollout) * _total(each, rollout)).sum()


@register_objective(
    "behavior_squared_log_ratio",
    words="half the squared log-ratio of the tokens that were sampled, the samples held fixed",
    source="tang2025pitfalls, section 6",
    off_policy_only=True,
)
def _behavior_squared(rollout: Rollout) -> torch.Tensor:
    return (_visits(rollout) * _total((rollout.logp - rollout.ref_logp) ** 2 / 2, rollout)).sum()


@register_objective(
    "behavior_sequence_squared_log_ratio",
    words="half the squared log-ratio of the sequences that were sampled, the samples held fixed",
    source="tang2025pitfalls, section 6",
    off_policy_only=True,
)
def _behavior_sequence_squared(rollout: Rollout) -> torch.Tensor:
    difference = _total(rollout.logp - rollout.ref_logp, rollout)
    return (_visits(rollout) * difference**2 / 2).sum()


@register_objective(
    "behavior_log_likelihood",
    words="the log-likelihood of the samples, held fixed (no word of the reference)",
    source="this book",
    regularizer=False,
    off_policy_only=True,
)
def _behavior_log_likelihood(rollout: Rollout) -> torch.Tensor:
    return (_visits(rollout) * _total(rollout.logp, rollout)).sum()


@register_objective(
    "behavior_reference_ratio",
    words="the mean of pi_ref/pi over the tokens that were sampled, the samples held fixed",
    source="this book",
    off_policy_only=True,
)
def _behavior_ratio(rollout: Rollout) -> torch.Tensor:
    return (_visits(rollout) * _total((rollout.ref_logp - rollout.logp).exp(), rollout)).sum()


@register_objective(
    "behavior_sequence_reference_ratio",
    words="the mean of pi_ref/pi over the sequences that were sampled, the samples held fixed",
    source="this book",
    off_policy_only=True,
)
def _behavior_sequence_ratio(rollout: Rollout) -> torch.Tensor:
    return (_visits(rollout) * _total(rollout.ref_logp - rollout.logp, rollout).exp()).sum()
