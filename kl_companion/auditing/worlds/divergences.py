"""Objectives of divergences: to the reference, of whole answers and of every next token; to the sampler."""

from __future__ import annotations

import re
from functools import cache, partial

from kl_companion.auditing.worlds.objective import (
    OBJECTIVES,
    Objective,
    Product,
    Scalar,
    make_objective,
    total,
)
from kl_companion.divergences import DIVERGENCES, Divergence, get_divergence
from kl_companion.estimators.vocabulary import sum_of_entries

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
# level: where it is taken, and the same in few words
_LEVELS = {
    "sequence": ("of whole answers: an early token also answers for what follows it", "whole answer"),
    "token": ("of the next token in every state that is visited, the visits held fixed", "next token"),
    "policy_token": (
        "of the next token in every state that the policy itself would visit, the visits held fixed",
        "next token of the policy's own answers",
    ),
}


def divergence_phrase(name: str) -> str:
    """Return the words for a divergence: reverse KL, KL(policy || reference)."""
    family, _, argument = name.partition("(")
    words = _SAID.get(family, family.replace("_", " ") + " divergence")
    return f"{words} ({argument}" if argument else words


@cache
def divergence_objectives(d: Divergence) -> dict[str, Objective]:
    """Objectives of a divergence to the reference: of whole sequences, and of every next token."""
    entries = partial(sum_of_entries, d)
    scalars: dict[str, Scalar] = {
        "sequence": lambda rollout: entries(total(rollout.logp, rollout), total(rollout.ref_logp, rollout)),
        "token": Product("sampler", "next", entries).scalar,
        "policy_token": Product("policy", "next", entries).scalar,
    }
    phrase = divergence_phrase(d.name)
    found = [
        make_objective(
            f"{level}_{d.name}",
            scalars[level],
            words=f"the {phrase}, {words}",
            short=f"{phrase.partition(',')[0]}, {short}",
            effect=_EFFECTS.get(d.name, PULLED),
            source=d.source,
            off_policy_only=level == "policy_token",
        )
        for level, (words, short) in _LEVELS.items()
    ]
    return {o.name: o for o in found}


def _named(name: str) -> Objective | None:
    """Return the objective of a divergence that is not registered, such as a member of a family."""
    parts = re.fullmatch(r"(?:sequence|token|policy_token)_(.+)", name)
    try:
        return divergence_objectives(get_divergence(parts[1])).get(name) if parts else None
    except ValueError:
        return None


OBJECTIVES.makers.append(_named)
for _d in DIVERGENCES.values():
    OBJECTIVES.update(divergence_objectives(_d))
