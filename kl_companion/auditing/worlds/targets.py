"""Objectives that a caller can want, by a divergence's name at one level or at either."""

from __future__ import annotations

from kl_companion.checks import unknown_name
from kl_companion.divergences import DIVERGENCES, Divergence, get_divergence


def split_want(want: str) -> tuple[str, Divergence]:
    """Return ("token", "sequence" or "", divergence) of a wanted name; ValueError for an unknown one."""
    level = next((x for x in ("token", "sequence") if want.startswith(f"{x}_")), "")
    try:
        return level, get_divergence(want.removeprefix(f"{level}_"))
    except ValueError as error:
        names = [f"{x}{d}" for d in DIVERGENCES for x in ("", "token_", "sequence_")]
        raise unknown_name("wanted objective", want, names) from error


def divergence_wanted(want: str) -> Divergence:
    """Return the divergence of a wanted name; ValueError for an unknown one."""
    return split_want(want)[1]


def wanted_objectives(want: str) -> set[str]:
    """Return the objectives that satisfy ``want``: a divergence at either level, or one level of it."""
    level, divergence = split_want(want)
    prefixes = {"token": ("token", "policy_token"), "sequence": ("sequence",)}
    chosen = prefixes[level] if level else (*prefixes["token"], *prefixes["sequence"])
    return {f"{x}_{divergence.name}" for x in chosen}
