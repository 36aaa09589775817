"""What the explorer says about a setting: a sentence, and what it says of the numbers.

A sentence is written here and nowhere else: the page shows it, the notebook and the tests ask whether it
holds. It has to hold on a neighborhood, so that nobody reads a coincidence of the setting as a rule.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from kl_book.explorer.enumerated import Exact, State, trained

NEAR = 0.1
"""How far a logit, or a mean or standard deviation, is moved in a neighborhood."""
_CORNERS = 10
_LOST = 1e-6


class Sentence(NamedTuple):
    """A sentence about a preset, and what it says of the numbers.

    Attributes:
        text: What the page says.
        holds: Whether that is true of the numbers of a setting.
        change: What the reader is told to change in the preset; nothing by default.
    """

    text: str
    holds: Callable[[Exact], bool]
    change: Mapping[str, Any] = {}


class Preset(NamedTuple):
    """A setting to start from.

    Attributes:
        label: On its button.
        state: What the page's ``klExplore`` takes.
        sentences: What it shows, first as it is loaded, then after a change.
    """

    label: str
    state: dict[str, Any]
    sentences: tuple[Sentence, ...]


def neighborhood(state: State, by: float = NEAR) -> list[dict[str, Any]]:
    """A setting, each of its logits moved alone by +-``by``, and all of them at once in ten ways.

    Of Gaussians the means and standard deviations are moved; a sampler counts where it is used.
    """
    roles = [role if state["world"] == "arms" else f"g{role}" for role in ("pqm" if state["off"] else "pq")]
    found: list[dict[str, Any]] = [dict(state)]
    for role in roles:
        for j in range(len(state[role])):
            for step in (by, -by):
                found.append({**state, role: [x + step * (i == j) for i, x in enumerate(state[role])]})
    at = random.Random(0)
    for _ in range(_CORNERS):
        found.append({**state, **{r: [x + at.choice((by, -by)) for x in state[r]] for r in roles}})
    return found


def failures(preset: Preset, sentence: Sentence, by: float = NEAR) -> list[dict[str, Any]]:
    """The settings in the neighborhood of a sentence's setting at which it does not hold."""
    states = neighborhood({**preset.state, **sentence.change}, by)
    return [s for s, x in zip(states, trained(states), strict=True) if not sentence.holds(x)]


# -- what sentences are made of


def unbiased(x: Exact) -> bool:
    """Whether the estimate is unbiased for the divergence that it is named for, which is not zero."""
    return abs(x.bias) < 1e-6 < x.value


def same(a: torch.Tensor, b: torch.Tensor, within: float = 1e-9) -> bool:
    """Whether two vectors are there and differ nowhere by ``within``."""
    return a.shape == b.shape and bool((a - b).abs().max() < within)


def of_reverse(x: Exact) -> bool:
    """Whether the gradient is that of the reverse KL, and not that of the forward KL as well."""
    return same(x.gradient, x.reverse_gradient) and not same(x.gradient, x.forward_gradient, 1e-3)


def of_forward(x: Exact) -> bool:
    """Whether the gradient is that of the forward KL, and not that of the reverse KL as well."""
    return same(x.gradient, x.forward_gradient) and not same(x.gradient, x.reverse_gradient, 1e-3)


def ends_at(x: Exact, policy: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether training ends at a policy, and not at the other as well."""
    return same(x.end, policy, 1e-5) and not same(x.end, other, 0.01)


def degrees_to_reverse(x: Exact) -> float:
    """Between the gradient and that of the reverse KL."""
    cosine = torch.cosine_similarity(x.gradient, x.reverse_gradient, dim=0, eps=1e-300)
    return math.degrees(math.acos(float(cosine.clamp(-1, 1))))


def length(x: Exact) -> float:
    """Of the gradient, as a multiple of that of the reverse KL."""
    return float(x.gradient.norm() / x.reverse_gradient.norm())


def no_reward(x: Exact) -> bool:
    """Whether the rewards move nothing: then the reference is the optimum."""
    return same(x.reverse_optimum, x.reference)


def loses_two(x: Exact) -> bool:
    """Whether training ends with almost nothing on two arms."""
    return int((x.end < _LOST).sum()) == 2


def deviation(x: Exact) -> float:
    """Of one sample, as a multiple of its mean."""
    return float(x.variance**0.5 / x.value)


def favorite(x: Exact) -> int:
    """The arm with the highest reward, from 0."""
    return int((x.reverse_optimum / x.reference).argmax())
