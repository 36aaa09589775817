"""Objectives of divergences: of whole answers, and of every next token."""

from __future__ import annotations

import torch

from kl_companion.auditing.worlds.objective import policy_visits, register_objective, total, visits
from kl_companion.divergences import Divergence
from kl_companion.estimators.vocabulary import sum_of_entries
from kl_companion.rollout import Rollout

_SAID = {
    "reverse_kl": "reverse KL, KL(policy || reference)",
    "forward_kl": "forward KL, KL(reference || policy)",
    "jensen_shannon": "Jensen-Shannon divergence",
    "squared_hellinger": "squared Hellinger distance",
    "pearson": "Pearson chi-squared divergence",
    "neyman": "Neyman chi-squared divergence",
    "total_variation": "total variation distance",
    "amari_alpha": "Amari alpha divergence",
    "power_divergence": "power divergence",
    "generalized_jensen_shannon": "generalized Jensen-Shannon divergence",
    "skewed_forward_kl": "skewed forward KL",
    "skewed_reverse_kl": "skewed reverse KL",
}
_EFFECTS = {
    "reverse_kl": "Tokens that the policy over-weights lose probability; those to which it gives almost "
    "none hardly regain any.",
    "forward_kl": "Tokens to which the policy gives almost no probability regain it; those that it "
    "over-weights lose it only slowly.",
}
PULLED = "The policy is pulled to the reference, with this divergence's own weights."
ADDED: dict[str, Divergence] = {}


def divergence_phrase(name: str) -> str:
    """Return the words for a divergence: reverse KL, KL(policy || reference)."""
    family, _, argument = name.partition("(")
    words = _SAID.get(family, family.replace("_", " ") + " divergence")
    return f"{words} ({argument}" if argument else words


def add_divergence(d: Divergence) -> None:
    """Register the objectives of a divergence: of whole sequences, and of every next token.

    Raises:
        ValueError: the name is registered for another f.
    """
    if d.name in ADDED:
        if d is not ADDED[d.name] and d.f != ADDED[d.name].f:
            raise ValueError(
                f"the divergence {d.name!r} has f = {d.f}, and was audited before with f = "
                f"{ADDED[d.name].f}: expected another name"
            )
        return
    ADDED[d.name] = d

    def sequence(rollout: Rollout) -> torch.Tensor:
        logp, ref_logp = total(rollout.logp, rollout), total(rollout.ref_logp, rollout)
        return sum_of_entries(d, logp, ref_logp)

    def token(rollout: Rollout) -> torch.Tensor:
        each = sum_of_entries(d, rollout.logp_all, rollout.ref_logp_all)
        return (visits(rollout) * total(each, rollout)).sum()

    def policy_token(rollout: Rollout) -> torch.Tensor:
        each = sum_of_entries(d, rollout.logp_all, rollout.ref_logp_all)
        return (policy_visits(rollout) * total(each, rollout)).sum()

    said = divergence_phrase(d.name)
    short = said.partition(",")[0]
    effect = _EFFECTS.get(d.name, PULLED)
    register_objective(
        f"sequence_{d.name}",
        words=f"the {said}, of whole answers: an early token also answers for what follows it",
        short=f"{short}, whole answer",
        effect=effect,
        source=d.source,
    )(sequence)
    register_objective(
        f"token_{d.name}",
        words=f"the {said}, of the next token in every state that is visited, the visits held fixed",
        short=f"{short}, next token",
        effect=effect,
        source=d.source,
        overwrite=True,  # a loss at a temperature may have been found to be this one, see `Distilled`
    )(token)
    register_objective(
        f"policy_token_{d.name}",
        words=f"the {said}, of the next token in every state that the policy itself would visit, the visits "
        "held fixed",
        short=f"{short}, next token of the policy's own answers",
        effect=effect,
        source=d.source,
        off_policy_only=True,
    )(policy_token)
