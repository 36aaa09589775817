"""What a task is: where prompts come from, what a completion is worth, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from kl_companion.checks import check_whole


class Example(NamedTuple):
    """One problem.

    Attributes:
        prompt: What the policy reads. It may be empty.
        answer: The right completion of a task whose answer is unique, else the answer that a completion
            is checked against; empty for a language.
        level: Difficulty, where a task is graded.
        hidden: What the environment knows and the prompt does not show.
    """

    prompt: str
    answer: str
    level: int = 0
    hidden: str = ""


Draw = Callable[[int, torch.Generator], list[Example]]


@dataclass(frozen=True)
class Task:
    """A source of prompts with a reward, or a language without one.

    Attributes:
        name: As registered in `TASKS`.
        alphabet: Characters of the embedded tokenizer; None: natural language, any tokenizer.
        max_new_tokens: Tokens of a completion at most: observations and end-of-sequence count.
        draw: (number, generator) -> that many examples.
        reward: (completion text, example) -> reward. It may be given the text with or without
            observations. None: a language, for distillation.
        draw_out: Like ``draw``, from harder problems than the corpus and ``draw`` hold.
        corpus: (number, generator) -> pairs of prompt and completion to pretrain on, observations
            included, end-of-sequence not: where ``ends`` is set it follows every completion that is
            shorter than ``max_new_tokens``.
        ends: Whether completions end with end-of-sequence; if not they are all ``max_new_tokens`` long.
        unique: Whether ``answer`` (and end-of-sequence, where ``ends``) is the one completion that is
            rewarded, with 1: then the probability of the answer is the expected reward.
        observe: The environment: (completion so far with observations, example) -> text to insert now,
            or None. Asked after every token that the policy chose.
        observed: Completion of the corpus -> for each of its characters, whether the environment wrote it.
        chat: Whether prompts go through the tokenizer's chat template.
        shots: Questions and answers that stand before the prompt as earlier turns of the chat.
        law: The exact distribution of completions, where it is known; see `languages.language`.
    """

    name: str
    alphabet: str | None
    max_new_tokens: int
    draw: Draw
    reward: Callable[[str, Example], float] | None
    draw_out: Draw | None = None
    corpus: Callable[[int, torch.Generator], list[tuple[str, str]]] | None = None
    ends: bool = False
    unique: bool = False
    observe: Callable[[str, Example], str | None] | None = None
    observed: Callable[[str], list[bool]] | None = None
    chat: bool = False
    shots: tuple[tuple[str, str], ...] = ()
    law: Any = None


def matches(text: str, example: Example) -> float:
    """1.0 if the completion is the answer, character for character, else 0.0."""
    return float(text == example.answer)


def demonstrations(draw: Draw) -> Callable[[int, torch.Generator], list[tuple[str, str]]]:
    """The corpus of a task whose answer is the whole completion."""

    def corpus(n: int, generator: torch.Generator) -> list[tuple[str, str]]:
        return [(example.prompt, example.answer) for example in draw(n, generator)]

    return corpus


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """``value`` as an int.

    Raises:
        ValueError: it is not a whole number from ``low`` to ``high``.
    """
    return check_whole(name, value, low, high)


def uniform_digits(shape: tuple[int, ...], high: int, generator: torch.Generator) -> list[Any]:
    """Independent draws from 0 to ``high`` - 1 as nested lists."""
    return torch.randint(0, high, shape, generator=generator).tolist()


def choose(size: int, n: int, generator: torch.Generator) -> list[int]:
    """``n`` of ``size`` places in random order; none a second time before each had its turn."""
    places: list[int] = []
    while len(places) < n:
        places += torch.randperm(size, generator=generator).tolist()
    return places[:n]


def drawing(examples: list[Example]) -> Draw:
    """A source that draws from these examples."""

    def draw(n: int, generator: torch.Generator) -> list[Example]:
        return [examples[i] for i in choose(len(examples), n, generator)]

    return draw
