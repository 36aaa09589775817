"""What beta means in a framework's recipe, in words that are made of the numbers of `worth` alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from kl_companion.frameworks.recipes import default_recipes
from kl_companion.frameworks.registry import framework, setting
from kl_companion.frameworks.worth import FEW, GROUP, SMALL, SUCCESS, Worth, world, worth

CASES = "prompts solved 1 in 100, 1 in 10, 1 in 2 times"


def no_effect(found: Worth) -> str:
    """Where beta has no effect, in words; "" for nowhere."""
    if found.nothing:
        return "anywhere"
    if not found.silent:
        return ""
    if found.silent == (0, FEW):
        return f"where all rewards of a {found.recipe.algorithm.over or 'group'} are equal"
    return f"where {' or '.join(map(str, found.silent))} of {FEW} answers are right"


def what_to_set(found: Worth) -> str:
    """A sentence: the framework's option with which beta is a coefficient in every group; "" where it is."""
    chosen, algorithm = found.recipe
    if found.nothing:
        sequence, token, _ = chosen.framework.remedy
        name = token if chosen.placement == "loss" else sequence
        return f"Instead of this term: {setting(name).option}." if name else ""
    if not found.silent:
        return ""
    if algorithm.instead:
        return f"To divide nothing: set {algorithm.instead}."
    return "To divide nothing: no option turns it off."


def _near(x: dict[float, float], y: dict[float, float], within: float = 0.01) -> bool:
    return all(abs(x[p] - y[p]) <= within * abs(y[p]) for p in SUCCESS)


def _listed(values: dict[float, float], unit: str = "") -> str:
    first = values[SUCCESS[0]]
    if _near(values, dict.fromkeys(SUCCESS, first)):
        return f"{first:.3g}{unit}"
    return ", ".join(f"{values[p]:.2g}{unit}" for p in SUCCESS)


def what_beta_means(found: Worth) -> str:
    """One phrase in plain words, made of the numbers alone."""
    if found.nothing:
        return "nothing: the term has no expected gradient, whatever β is"
    over = found.recipe.algorithm.over or "group"
    large = {p: x for (p, n), x in found.weak.items() if n is None}
    said = [_in_large(large, over)] if large else []
    for n in dict.fromkeys(n for _, n in found.weak if n is not None):
        of = f"in {'groups' if over == 'group' else 'batches'} of {n}"
        weak, strong = ({p: x[p, n] for p in SUCCESS} for x in (found.weak, found.strong))
        if not _near(strong, weak):
            acts = {p: SMALL * x for p, x in weak.items()}
            said.append(f"{of} it is no coefficient: β = {SMALL} acts like {_listed(acts)}")
            said[0] += f" in large {'groups' if over == 'group' else 'batches'}" if large else ""
        elif not _near(weak, large, 0.05):
            said.append(f"{of} {_listed(weak, ' β')}")
    if silence := no_effect(found):
        said.append(f"no effect {silence}")
    each = f" ({CASES})" if any(", " in part for part in said) else ""  # numbers, one for each prompt
    return "; ".join(said) + each


def _in_large(factors: dict[float, float], over: str) -> str:
    """What becomes of beta in large groups or batches, by name where it is a known number."""
    spread, by_tokens, length = {}, {}, {}
    for p in SUCCESS:
        at = world(p)
        tokens, rewards = at.problem.completion_mask.sum(-1)[at.which], at.problem.rewards[at.which]
        right = ((tokens * rewards).sum() / tokens.sum()).item()  # share of the tokens with a reward of 1
        spread[p], by_tokens[p] = at.rewards_deviation, math.sqrt(right * (1 - right))
        length[p] = at.tokens_per_answer
    of = f"the spread of the {over}'s rewards"
    by = f"{of} counted by tokens"
    known = {
        "β as written": dict.fromkeys(SUCCESS, 1.0),
        f"β × {of}": spread,
        f"β × {by}": by_tokens,
        "β × the mean answer length": length,
        f"β × the mean answer length × {of}": {p: length[p] * spread[p] for p in SUCCESS},
        f"β × the mean answer length × {by}": {p: length[p] * by_tokens[p] for p in SUCCESS},
    }
    for words, numbers in known.items():
        if _near(factors, numbers):
            return words if "×" not in words else f"{words}: {_listed(factors, ' β')}"
    return _listed(factors, " β")


def recipe_rows(framework_name: str) -> Iterator[dict[str, Any]]:
    """A row for every default recipe of a framework; one that says why, for a framework without.

    The columns ``large_...`` and ``eight_...`` are effective beta / beta at beta = 0.001, in large batches
    and in groups of eight, on prompts solved once in 100, 10 and 2 times; ``strong_...`` the latter at 0.1.
    """
    known = framework(framework_name)
    named = {"framework": known.name, "title": known.title, "version": known.version}
    found = [worth(recipe) for recipe in default_recipes(framework_name)]
    if not found:
        nothing = ("algorithm", "setting", "placement", "option", "where", "divided", "no_effect", "instead")
        yield {**named, **dict.fromkeys(nothing, "none"), "meaning": f"no recipe: {known.without}"}
    for each in found:
        chosen, algorithm = each.recipe
        yield {
            **named,
            "version": chosen.version,
            "algorithm": algorithm.name,
            "setting": chosen.name,
            "placement": chosen.placement,
            "option": each.recipe.option,
            "where": each.recipe.where,
            "beta": chosen.beta,
            "divided": f"{chosen.divides(algorithm)}, by the {algorithm.over}"
            if algorithm.over
            else "nothing",
            "meaning": what_beta_means(each),
            "no_effect": no_effect(each) or "none",
            "instead": what_to_set(each) or "none",
            "equal_ratio": each.equal,
            "rest": each.rest,
            **{f"large_{round(1 / p)}": each.weak[p, None] for p in SUCCESS},
            **{f"eight_{round(1 / p)}": each.weak[p, GROUP] for p in SUCCESS},
            **{f"strong_{round(1 / p)}": each.strong[p, GROUP] for p in SUCCESS},
        }
