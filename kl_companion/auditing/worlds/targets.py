"""Objectives that a caller can want: a divergence at one level or at either, a distance to the sampler."""

from __future__ import annotations

from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.checks import unknown_name
from kl_companion.divergences import DIVERGENCES, Divergence, get_divergence

_LEVELS = ("", "token_", "sequence_", "sampled_mean_")  # of distances to the sampler


def split_want(want: str) -> tuple[str, Divergence]:
    """Return ("token", "sequence" or "", divergence) of a wanted name; ValueError for an unknown one."""
    level = next((x for x in ("token", "sequence") if want.startswith(f"{x}_")), "")
    try:
        return level, get_divergence(want.removeprefix(f"{level}_"))
    except ValueError as error:
        names = [f"{x}{d}" for d in DIVERGENCES for x in ("", "token_", "sequence_")]
        names += [n for n in OBJECTIVES if is_to_sampler(n)]
        raise unknown_name("wanted objective", want, names) from error


def is_to_sampler(want: str) -> bool:
    """Return whether a wanted name is of a distance to the sampler, which acts on stale samples only."""
    return want.endswith("_to_sampler")


def divergence_wanted(want: str) -> Divergence:
    """Return the divergence of a wanted name; ValueError for an unknown one."""
    return split_want(want)[1]


def wanted_objectives(want: str) -> set[str]:
    """Return the objectives that satisfy ``want``: a divergence, or a distance to the sampler, at any level.

    Raises:
        ValueError: no objective has that name, with or without a level in front.
    """
    if is_to_sampler(want) and (names := {f"{x}{want}" for x in _LEVELS} & OBJECTIVES.keys()):
        return names
    level, divergence = split_want(want)
    prefixes = {"token": ("token", "policy_token"), "sequence": ("sequence",)}
    chosen = prefixes[level] if level else (*prefixes["token"], *prefixes["sequence"])
    return {f"{x}_{divergence.name}" for x in chosen}
