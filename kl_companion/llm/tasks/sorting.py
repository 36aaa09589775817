"""Sorting digits: the task whose expected reward, optimum and reward-KL frontier are exact.

Every prompt has one right completion of fixed length, so the expected reward is that string's probability,
read off by teacher forcing; and what is best for E[reward] - beta KL follows from it in closed form
(`kl_book.lab.frontier`).
"""

from __future__ import annotations

import torch

from kl_companion.llm.tasks.base import Example, Task, demonstrations, matches, uniform_digits, whole

FEW = 3


def sort(digits: int = 8) -> Task:
    """``31415926=`` -> ``11234569``.

    Out of domain: prompts of the same length that hold at most three different digits, so that a digit
    recurs far more often than in the independent draws of training.

    Args:
        digits: How many digits a prompt has, 1 to 64.

    Raises:
        ValueError: ``digits`` is out of range.
    """
    whole("digits", digits, 1, 64)

    def example(row: list[int], level: int) -> Example:
        text = "".join(map(str, row))
        return Example(f"{text}=", "".join(sorted(text)), level)

    def draw(n: int, generator: torch.Generator) -> list[Example]:
        return [example(row, 0) for row in uniform_digits((n, digits), 10, generator)]

    def draw_out(n: int, generator: torch.Generator) -> list[Example]:
        few = uniform_digits((n, FEW), 10, generator)
        which = uniform_digits((n, digits), FEW, generator)
        return [example([few[i][j] for j in row], 1) for i, row in enumerate(which)]

    return Task(
        name="sort",
        alphabet="0123456789=",
        max_new_tokens=digits,
        draw=draw,
        reward=matches,
        draw_out=draw_out,
        corpus=demonstrations(draw),
        unique=True,
    )
