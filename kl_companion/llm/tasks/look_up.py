"""A look-up task in several turns: the environment answers questions in the midst of a completion.

What it inserts was not chosen by the policy. It has no log-prob under the sampler, earns no reward, and
stays outside ``completion_mask``.
"""

from __future__ import annotations

import re

import torch

from kl_companion.llm.tasks.base import Draw, Example, Task, uniform_digits, whole

LETTERS = "abcdefghijklmnopqrstuvwxyz"
ASKED = re.compile(r"\?([a-z])\Z")
ANSWERED = re.compile(r"\?[a-z](=[0-9];)")


def look_up(entries: int = 6, turns: int = 2) -> Task:
    """Prompt ``bd:``, completion ``?b=7;?d=4;!1``: ask for each letter's digit, answer with their sum.

    The table from letters to digits is another one in every example and only the environment knows it: it
    inserts ``=7;`` after the question ``?b``, as often as the prompt has letters. What follows the last ``!``
    is the answer, the sum modulo 10. Out of domain: one letter more.

    Args:
        entries: Letters of the table, 1 to 26.
        turns: Letters of a prompt, 1 to ``entries``.

    Raises:
        ValueError: an argument is out of range.
    """
    whole("entries", entries, 1, len(LETTERS))
    whole("turns", turns, 1, entries)
    most = min(turns + 1, entries)
    draw = _draw(entries, turns)

    def corpus(n: int, generator: torch.Generator) -> list[tuple[str, str]]:
        return [(example.prompt, demonstration(example)) for example in draw(n, generator)]

    return Task(
        name="look_up",
        alphabet=LETTERS[:entries] + "0123456789?=;!:",
        max_new_tokens=5 * most + 3,
        draw=draw,
        reward=reward,
        draw_out=_draw(entries, most) if most > turns else None,
        corpus=corpus,
        ends=True,
        observe=observe,
        observed=observed,
    )


def _draw(entries: int, turns: int) -> Draw:
    def draw(n: int, generator: torch.Generator) -> list[Example]:
        tables = uniform_digits((n, entries), 10, generator)
        order = torch.rand(n, entries, dtype=torch.float64, generator=generator).argsort(-1)
        out = []
        for table, row in zip(tables, order[:, :turns].tolist(), strict=True):
            asked = "".join(LETTERS[i] for i in row)
            total = sum(table[i] for i in row) % 10
            out.append(Example(f"{asked}:", str(total), turns, "".join(map(str, table))))
        return out

    return draw


def observe(text: str, example: Example) -> str | None:
    """What the environment inserts after ``text``: the digit that its last two characters ask for, or None.

    Letters outside the table, and questions beyond the number of letters in the prompt, stay unanswered.
    """
    asked = ASKED.search(text)
    if asked is None or len(ANSWERED.findall(text)) >= len(example.prompt) - 1:
        return None
    place = LETTERS.index(asked[1])
    return f"={example.hidden[place]};" if place < len(example.hidden) else None


def observed(text: str) -> list[bool]:
    """For each character of a demonstration, whether the environment wrote it."""
    spans = [match.span(1) for match in ANSWERED.finditer(text)]
    return [any(start <= place < end for start, end in spans) for place in range(len(text))]


def reward(text: str, example: Example) -> float:
    """1.0 if the answer follows the last ``!`` and nothing follows the answer."""
    _, mark, answer = text.rpartition("!")
    return float(bool(mark) and answer == example.answer)


def demonstration(example: Example) -> str:
    """The completion that asks for every letter in turn and then answers."""
    text = ""
    for letter in example.prompt[:-1]:
        text += f"?{letter}"
        text += observe(text, example) or ""
    return f"{text}!{example.answer}"
