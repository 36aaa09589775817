"""Arithmetic of graded difficulty: one right answer each, harder levels kept for out of domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kl_companion.llm.tasks.base import Draw, Example, Task, demonstrations, matches, uniform_digits, whole

# level -> (digits of every number, numbers)
LEVELS = {1: (1, 2), 2: (2, 2), 3: (3, 2), 4: (2, 3)}
LONGEST_ANSWER = 4  # -998 to 1998; three numbers of two digits stay within -188 to 297
SIGNS, WORDS = "+-", ("plus", "minus")
SHOWN = ((4, 5, 0), (17, 3, 1), (12, 6, 0), (11, 8, 1))  # worked examples: two numbers and a sign


def arithmetic(
    levels: Sequence[int] = (1, 2), out_levels: Sequence[int] = (3, 4), *, shots: int | None = None
) -> Task:
    """``12+7=`` -> ``19`` and end-of-sequence: sums and differences.

    With ``shots`` they are asked in words, for an instruct model: "What is 12 plus 7?" -> "12 + 7 = 19". A
    model that has seen how to answer is right from the start some of the time. Its right answer is unique as
    far as it is written in the tokenizer's own tokens.

    Level 1 has two numbers of one digit, level 2 two of up to two digits, level 3 two of up to three, level 4
    three of up to two digits, from left to right. Above level 1 at least one number has all its digits, so
    that no level holds a problem of an easier one.

    Args:
        levels: Of training, drawn with equal chances.
        out_levels: Out of domain; empty: none.
        shots: None: characters. A number from 0 to 4: in words, after so many worked examples in a chat.

    Raises:
        ValueError: no level, an unknown one, one that is named twice, or one in both; other ``shots``.
    """
    inside, outside = _checked("levels", levels), _checked("out_levels", out_levels)
    if not inside:
        raise ValueError("levels is empty, expected at least one level to train on")
    both = sorted(set(inside) & set(outside))
    if both:
        raise ValueError(
            f"level {both[0]} is in levels and in out_levels: out of domain is what is not trained"
        )
    if shots is None:
        written, longest = _in_signs, LONGEST_ANSWER + 1
    else:
        whole("shots", shots, 0, len(SHOWN))
        written, longest = _as_question, _longest_equation(inside + outside)
    shown = (written([a, b], [sign], 0) for a, b, sign in SHOWN[: shots or 0])
    draw = _draw(inside, written)
    return Task(
        name="arithmetic",
        alphabet="0123456789+-=" if shots is None else None,
        max_new_tokens=longest,
        draw=draw,
        reward=matches,
        draw_out=_draw(outside, written) if outside else None,
        corpus=demonstrations(draw),
        ends=True,
        unique=True,
        chat=shots is not None,
        shots=tuple((example.prompt, example.answer) for example in shown),
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


def _longest_equation(levels: tuple[int, ...]) -> int:
    """Characters, each at most a token: numbers, signs and "=" with their spaces, answer, end-of-sequence."""
    return max((d + 3) * n + d + 1 + (n > 2) + 1 for d, n in map(LEVELS.__getitem__, levels))


Written = Callable[[list[int], list[int], int], Example]


def _draw(levels: tuple[int, ...], written: Written) -> Draw:
    def draw(n: int, generator: torch.Generator) -> list[Example]:
        which = uniform_digits((n,), len(levels), generator)
        return [written(*_problem(levels[i], generator), levels[i]) for i in which]

    return draw


def _problem(level: int, generator: torch.Generator) -> tuple[list[int], list[int]]:
    """Numbers, and the sign before each but the first."""
    digits, count = LEVELS[level]
    numbers = uniform_digits((count,), 10**digits, generator)
    while digits > 1 and max(numbers) < 10 ** (digits - 1):  # would be a problem of fewer digits
        numbers = uniform_digits((count,), 10**digits, generator)
    return numbers, uniform_digits((count - 1,), 2, generator)


def _in_signs(numbers: list[int], signs: list[int], level: int) -> Example:
    asked = _joined(numbers, [SIGNS[sign] for sign in signs])
    return Example(f"{asked}=", str(_total(numbers, signs)), level)


def _as_question(numbers: list[int], signs: list[int], level: int) -> Example:
    asked = _joined(numbers, [f" {WORDS[sign]} " for sign in signs])
    told = _joined(numbers, [f" {SIGNS[sign]} " for sign in signs])
    return Example(f"What is {asked}?", f"{told} = {_total(numbers, signs)}", level)


def _joined(numbers: list[int], between: list[str]) -> str:
    return str(numbers[0]) + "".join(f"{b}{n}" for b, n in zip(between, numbers[1:], strict=True))


def _total(numbers: list[int], signs: list[int]) -> int:
    return numbers[0] + sum((1, -1)[sign] * n for sign, n in zip(signs, numbers[1:], strict=True))
