"""Arithmetic of graded difficulty: one right answer each, harder levels kept for out of domain."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kl_companion.llm.tasks.base import Draw, Example, Task, demonstrations, matches, uniform_digits

# level -> (digits of every number, numbers)
LEVELS = {1: (1, 2), 2: (2, 2), 3: (3, 2), 4: (2, 3)}
LONGEST_ANSWER = 4  # -998 to 1998; three numbers of two digits stay within -188 to 297


def arithmetic(levels: Sequence[int] = (1, 2), out_levels: Sequence[int] = (3, 4)) -> Task:
    """``12+7=`` -> ``19`` and end-of-sequence: sums and differences.

    Level 1 has two numbers of one digit, level 2 two of up to two digits, level 3 two of up to three, level 4
    three of up to two digits, from left to right. Above level 1 at least one number has all its digits, so
    that no level holds a problem of an easier one.

    Args:
        levels: Of training, drawn with equal chances.
        out_levels: Out of domain; empty: none.

    Raises:
        ValueError: no level, an unknown one, one that is named twice, or one in both.
    """
    inside, outside = _checked("levels", levels), _checked("out_levels", out_levels)
    if not inside:
        raise ValueError("levels is empty, expected at least one level to train on")
    both = sorted(set(inside) & set(outside))
    if both:
        raise ValueError(
            f"level {both[0]} is in levels and in out_levels: out of domain is what is not trained"
        )
    draw = _draw(inside)
    return Task(
        name="arithmetic",
        alphabet="0123456789+-=",
        max_new_tokens=LONGEST_ANSWER + 1,
        draw=draw,
        reward=matches,
        draw_out=_draw(outside) if outside else None,
        corpus=demonstrations(draw),
        ends=True,
        unique=True,
    )


def _checked(name: str, levels: Sequence[int]) -> tuple[int, ...]:
    if isinstance(levels, (str, int)):
        raise ValueError(f"{name} is {levels!r}, expected a sequence of levels such as (1, 2)")
    for level in levels:
        if isinstance(level, bool) or level not in LEVELS:
            raise ValueError(f"{name} holds {level!r}, expected levels from {min(LEVELS)} to {max(LEVELS)}")
    if len(set(levels)) < len(levels):
        raise ValueError(f"{name} is {list(levels)}, expected each level once")
    return tuple(levels)


def _draw(levels: tuple[int, ...]) -> Draw:
    def draw(n: int, generator: torch.Generator) -> list[Example]:
        which = uniform_digits((n,), len(levels), generator)
        return [_problem(levels[i], generator) for i in which]

    return draw


def _problem(level: int, generator: torch.Generator) -> Example:
    digits, count = LEVELS[level]
    numbers = uniform_digits((count,), 10**digits, generator)
    while digits > 1 and max(numbers) < 10 ** (digits - 1):  # would be a problem of fewer digits
        numbers = uniform_digits((count,), 10**digits, generator)
    signs = uniform_digits((count - 1,), 2, generator)
    prompt, total = str(numbers[0]), numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        prompt += "+-"[sign] + str(number)
        total += (1, -1)[sign] * number
    return Example(f"{prompt}=", str(total), level)
