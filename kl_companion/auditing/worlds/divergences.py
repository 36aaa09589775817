"""Objectives of divergences to the reference: of whole answers and of every next token."""

from __future__ import annotations

import re
import tomllib
from functools import cache, partial
from importlib.resources import files
from typing import Any

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

TEXTS: dict[str, Any] = tomllib.loads((files(__package__) / "divergences.toml").read_text("utf-8"))
EFFECTS: dict[str, str] = TEXTS["effects"]


def divergence_phrase(name: str) -> str:
    """Return the words for a divergence: reverse KL, KL(policy || reference)."""
    family, _, argument = name.partition("(")
    words = TEXTS["words"].get(family, family.replace("_", " ") + " divergence")
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
            scalar,
            words=f"the {phrase}, {TEXTS['levels'][level]['words']}",
            short=f"{phrase.partition(',')[0]}, {TEXTS['levels'][level]['short']}",
            effect=EFFECTS.get(d.name, EFFECTS["any"]),
            source=d.source,
            off_policy_only=level == "policy_token",
        )
        for level, scalar in scalars.items()
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
