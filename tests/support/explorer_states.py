"""Settings that the explorer is tested at: every estimator, place, sampler and ratio, and edges."""

from __future__ import annotations

import random
from typing import Any

from kl_book.explorer.presets import PLAIN, PRESETS
from kl_companion.estimators import ESTIMATORS

State = dict[str, Any]
SAMPLED = [name for name, entry in ESTIMATORS.items() if entry.inputs == "sampled"]
HEADED = ("top_k_reverse_kl", "top_k_forward_kl", "truncated_kl")
INTEGRATED = (
    "k1", "k2", "k3", "k5", "k3_plus_plus", "exact_kl", "exact_forward_kl",
    "kf_plus_plus(jensen_shannon)", "kf_plus_plus(total_variation)",
)  # fmt: skip
FORMS = ("bregman", "generic", "published")


def drawn(seed: int, arms: int, size: float = 1.5) -> State:
    """Policies and rewards that look random and are the same everywhere."""
    at = random.Random(seed)
    return {name: [round(at.uniform(-size, size), 6) for _ in range(arms)] for name in "pqmr"}


def arms() -> dict[str, State]:
    """Every sampled estimator in every place, with every ratio; heads of every form; edges; presets."""
    found: dict[str, State] = {
        key: preset.state for key, preset in PRESETS.items() if preset.state["world"] == "arms"
    }
    seed = 0
    for est in (*SAMPLED, "exact_kl", "exact_forward_kl"):
        for place in ("loss", "reward"):
            for off in (False, True):
                for ratio in ("none", "detached", "attached"):
                    seed += 1
                    found[f"{est} {place} {off} {ratio}"] = PLAIN | drawn(seed, 2 + seed % 4) | {
                        "est": est, "place": place, "off": off, "ratio": ratio
                    }  # fmt: skip
    for est in HEADED:
        for form in FORMS:
            for k in range(5):
                seed += 1
                off, ratio = bool(seed % 2), ("none", "detached", "attached")[seed % 3]
                place = ("loss", "reward")[seed % 5 == 0]
                found[f"{est}({k}, {form}) {place} {off} {ratio}"] = PLAIN | drawn(seed, 4) | {
                    "est": est, "place": place, "off": off, "ratio": ratio, "k": k, "form": form
                }  # fmt: skip
    same = [0.3, -0.2, 1.0]
    rare = {"p": [0.0, 1.0, -30.0], "q": [0.0, 0.5, 1.0]}
    for est in ("k1", "k2", "k3", "k4", "k5", "k3_plus_plus", "exact_kl", "kf_plus_plus(total_variation)"):
        found[f"{est} at the reference"] = {**PLAIN, "est": est, "p": same, "q": same}
        found[f"{est} stale at the reference"] = {**PLAIN, "est": est, "p": same, "q": same, "off": True}
        found[f"{est} with an arm given up"] = {**PLAIN, **rare, "est": est}
        found[f"{est} in the reward with an arm given up"] = {**PLAIN, **rare, "est": est, "place": "reward"}
        found[f"{est} weighted, an arm the sampler hardly draws"] = {
            **PLAIN, "est": est, "off": True, "ratio": "detached", "m": [0.0, 0.0, -20.0]
        }  # fmt: skip
    return found


def gaussians() -> dict[str, State]:
    """Pairs of Gaussians, the sampler near enough for every moment that is compared to be finite."""
    found: dict[str, State] = {}
    pairs = (
        {"gp": [0.0, 1.0], "gq": [0.5, 1.3], "gm": [0.3, 1.2]},
        {"gp": [-0.4, 1.5], "gq": [0.6, 0.8], "gm": [-0.2, 1.6]},
        {"gp": [1.0, 1.0], "gq": [0.2, 1.0], "gm": [0.8, 1.1]},
        {"gp": [0.3, 0.9], "gq": [0.3, 0.9], "gm": [0.1, 1.0]},
    )
    for number, pair in enumerate(pairs):
        for est in INTEGRATED:
            for place, off, ratio in (
                ("loss", False, "none"), ("loss", False, "attached"), ("loss", True, "none"),
                ("loss", True, "detached"), ("loss", True, "attached"), ("reward", False, "none"),
                ("reward", True, "detached"),
            ):  # fmt: skip
                found[f"{est} {place} {off} {ratio}, pair {number}"] = {
                    **PLAIN, **pair, "world": "gauss", "est": est, "place": place, "off": off, "ratio": ratio
                }  # fmt: skip
    return found
