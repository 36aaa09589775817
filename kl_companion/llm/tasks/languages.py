"""Languages for distillation: no reward, and the exact law of every completion.

A Markov language is a random table; a two-style language answers a prompt in one of two ways. Both hold
their next-token distributions, so that a teacher trained on samples can be compared with the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from kl_companion.llm.tasks.base import Example, Task, uniform_digits, whole

LETTERS = "abcdefghijklmnopqrstuvwxyz"
STYLES = "AB"


@runtime_checkable
class Law(Protocol):
    """The exact distribution of the completions of a language, in nats and float64.

    Attributes:
        symbols: The characters that a column of `next_logp` stands for, in order; where sequences end
            early, one more column, the last, stands for end-of-sequence.
    """

    symbols: str

    def next_logp(self, prefix: str, prompt: str = "") -> torch.Tensor:
        """Log-probs of what follows, [symbols] or [symbols + 1].

        Raises:
            ValueError: nothing follows the prefix, or it holds other characters.
        """

    def logp(self, text: str, prompt: str = "") -> float:
        """Log-prob of a whole completion; -inf where it is impossible."""

    def entropy(self) -> float:
        """Entropy of a completion given its prompt, whole sequence."""


def language(task: Task) -> Law:
    """The exact law of a language's completions.

    Raises:
        ValueError: the task is not a language.
    """
    if task.law is None:
        raise ValueError(f"task {task.name!r} has no exact law: markov and two_styles have one")
    return task.law


def _entropy(p: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(p).sum(-1)


@dataclass(frozen=True)
class Markov:
    """Letters whose distribution depends on the last ``order`` letters, and may end at any step.

    Attributes:
        symbols: The letters.
        order: How many letters a context holds.
        length: Tokens of a completion at most; exactly, where ``hazard`` is 0.
        hazard: Probability that the sequence ends instead of going on, at each step; the first included.
        table: Probabilities of the next letter, [letters + 1] * order + [letters] float64. The last entry
            of a context's axis stands for a place before the first letter.
    """

    symbols: str
    order: int
    length: int
    hazard: float
    table: torch.Tensor

    def next_logp(self, prefix: str, prompt: str = "") -> torch.Tensor:
        """See `Law`; with a hazard the last column is end-of-sequence."""
        _no_prompt(prompt)
        if len(prefix) >= self.length:
            raise ValueError(f"the prefix has {len(prefix)} letters, expected fewer than {self.length}")
        places = [_place(letter, self.symbols) for letter in prefix]
        context = ([len(self.symbols)] * self.order + places)[len(places) :]
        p = self.table[tuple(context)]
        if not self.hazard:
            return p.log()
        return torch.cat([p * (1 - self.hazard), p.new_tensor([self.hazard])]).log()

    def logp(self, text: str, prompt: str = "") -> float:
        """See `Law`; a text of full length was cut and holds no end-of-sequence."""
        _no_prompt(prompt)
        if len(text) > self.length or (not self.hazard and len(text) < self.length):
            return -math.inf
        if any(letter not in self.symbols for letter in text):
            return -math.inf
        steps = [self.next_logp(text[:t])[self.symbols.index(text[t])] for t in range(len(text))]
        if len(text) < self.length:
            steps.append(self.next_logp(text)[-1])
        return float(torch.stack(steps).sum())

    def entropy(self) -> float:
        """See `Law`: entropies of the steps, weighted by the chance to get there."""
        state = torch.zeros((len(self.symbols) + 1,) * self.order, dtype=torch.float64)
        state[(-1,) * self.order] = 1.0
        end = torch.tensor([self.hazard, 1 - self.hazard], dtype=torch.float64)
        alive, total = 1.0, 0.0
        for _ in range(self.length):
            letters = float((state * _entropy(self.table)).sum())
            total += alive * (float(_entropy(end)) + (1 - self.hazard) * letters)
            alive *= 1 - self.hazard
            if self.order:  # the oldest letter drops out, the new one enters
                state = torch.nn.functional.pad((state.unsqueeze(-1) * self.table).sum(0), (0, 1))
        return total

    def tokens(self) -> float:
        """Expected number of tokens, end-of-sequence included."""
        return math.fsum((1 - self.hazard) ** t for t in range(self.length))

    def sample(self, n: int, generator: torch.Generator) -> list[str]:
        """``n`` independent texts."""
        # a last entry of exactly one: a uniform below one never falls on a letter of probability zero
        cumulative = self.table.cumsum(-1)
        cumulative = cumulative / cumulative[..., -1:]
        context = torch.full((n, self.order), len(self.symbols))
        columns = []
        for _ in range(self.length):
            rows = cumulative[tuple(context.unbind(-1))].expand(n, len(self.symbols))
            uniform = torch.rand(n, 1, dtype=torch.float64, generator=generator)
            letter = (rows <= uniform).sum(-1)
            columns.append(letter)
            context = torch.cat([context, letter.unsqueeze(-1)], dim=-1)[:, 1:]
        texts = ["".join(self.symbols[i] for i in row) for row in torch.stack(columns, dim=-1).tolist()]
        if not self.hazard:
            return texts
        ends = torch.rand(n, self.length, dtype=torch.float64, generator=generator) < self.hazard
        lengths = torch.where(ends.any(-1), ends.int().argmax(-1), self.length).tolist()
        return [text[:length] for text, length in zip(texts, lengths, strict=True)]


def markov(
    letters: int = 12,
    order: int = 2,
    concentration: float = 0.3,
    length: int = 16,
    seed: int = 0,
    hazard: float | None = None,
) -> Task:
    """A Markov language with a random table; the prompt is empty.

    Args:
        letters: Size of the alphabet, 2 to 26.
        order: How many letters the next one depends on, 0 to 3.
        concentration: Parameter of the Dirichlet law that each row of the table is drawn from; small
            values make the next letter nearly certain.
        length: Tokens of a completion at most.
        seed: Of the table: another seed is another language.
        hazard: Chance of end-of-sequence at each step; None: every completion has ``length`` letters.

    Raises:
        ValueError: an argument is out of range.
    """
    import numpy as np  # torch draws no Dirichlet law from a generator

    whole("letters", letters, 2, len(LETTERS))
    whole("order", order, 0, 3)
    whole("length", length, 1)
    whole("seed", seed, 0)
    if not 0 < concentration < math.inf:
        raise ValueError(f"concentration is {concentration}, expected a positive number")
    if hazard is not None and not 0 < hazard < 1:
        raise ValueError(f"hazard is {hazard}, expected a probability between 0 and 1, or None")
    rows = (letters + 1) ** order
    drawn = np.random.default_rng(seed).dirichlet([concentration] * letters, size=rows)
    table = torch.from_numpy(drawn).reshape(*[letters + 1] * order, letters)
    law = Markov(LETTERS[:letters], order, length, hazard or 0.0, table / table.sum(-1, keepdim=True))

    def draw(n: int, generator: torch.Generator) -> list[Example]:
        return [Example("", "")] * n

    def corpus(n: int, generator: torch.Generator) -> list[tuple[str, str]]:
        return [("", text) for text in law.sample(n, generator)]

    return Task("markov", law.symbols, length, draw, None, corpus=corpus, ends=hazard is not None, law=law)


@dataclass(frozen=True)
class TwoStyles:
    """A style character, then every letter of the prompt copied (A) or rewritten by a secret table (B).

    Attributes:
        symbols: The two styles, then the letters.
        length: Letters of a prompt; a completion has one character more.
        noise: Probability that a letter is wrong: one of the other letters.
        table: What style B writes for a letter and the next one (the last letter's next is the first),
            [letters, letters] int64.
    """

    symbols: str
    length: int
    noise: float
    table: torch.Tensor

    def right(self, prompt: str, style: str) -> str:
        """The noiseless letters of a style.

        Raises:
            ValueError: unknown style, or a prompt that is not ``length`` letters.
        """
        if style not in STYLES:
            raise ValueError(f"style is {style!r}, expected A or B")
        if len(prompt) != self.length:
            raise ValueError(f"the prompt {prompt!r} has {len(prompt)} letters, expected {self.length}")
        letters = self.symbols[len(STYLES) :]
        places = [_place(letter, letters) for letter in prompt]
        if style == "A":
            return prompt
        pairs = zip(places, places[1:] + places[:1], strict=True)
        return "".join(letters[int(self.table[a, b])] for a, b in pairs)

    def next_logp(self, prefix: str, prompt: str = "") -> torch.Tensor:
        """See `Law`."""
        if len(prefix) > self.length:
            raise ValueError(f"the prefix has {len(prefix)} characters, expected at most {self.length}")
        p = torch.zeros(len(self.symbols), dtype=torch.float64)
        if not prefix:
            p[: len(STYLES)] = 1 / len(STYLES)
            return p.log()
        p[len(STYLES) :] = self.noise / (len(self.symbols) - len(STYLES) - 1)
        right = self.right(prompt, prefix[0])[len(prefix) - 1]
        p[self.symbols.index(right)] = 1 - self.noise
        return p.log()

    def logp(self, text: str, prompt: str = "") -> float:
        """See `Law`."""
        if len(text) != self.length + 1 or text[0] not in STYLES:
            return -math.inf
        if any(letter not in self.symbols for letter in text):
            return -math.inf
        steps = [self.next_logp(text[:t], prompt)[self.symbols.index(text[t])] for t in range(len(text))]
        return float(torch.stack(steps).sum())

    def entropy(self) -> float:
        """See `Law`; the same for every prompt."""
        others = len(self.symbols) - len(STYLES) - 1
        p = torch.tensor([1 - self.noise] + [self.noise / others] * others, dtype=torch.float64)
        return math.log(len(STYLES)) + self.length * float(_entropy(p))

    def sample(self, prompts: list[str], generator: torch.Generator) -> list[str]:
        """One completion for each prompt."""
        letters = self.symbols[len(STYLES) :]
        styles = uniform_digits((len(prompts),), len(STYLES), generator)
        shape = (len(prompts), self.length)
        wrong = (torch.rand(shape, dtype=torch.float64, generator=generator) < self.noise).tolist()
        shifts = uniform_digits(shape, len(letters) - 1, generator)
        texts = []
        for row, prompt in enumerate(prompts):
            out = STYLES[styles[row]]
            for t, letter in enumerate(self.right(prompt, out)):
                shift = 1 + shifts[row][t] if wrong[row][t] else 0
                out += letters[(letters.index(letter) + shift) % len(letters)]
            texts.append(out)
        return texts


def two_styles(length: int = 8, noise: float = 0.1, seed: int = 0, letters: int = 12) -> Task:
    """Copy the prompt or rewrite it by a secret table: half and half, said by the first character.

    A small student learns to copy and not the table, which makes a gap in capacity with two modes.

    Args:
        length: Letters of a prompt.
        noise: Chance that a letter of a completion is a wrong one.
        seed: Of the secret table.
        letters: Size of the alphabet, 2 to 26; the table has ``letters`` squared entries.

    Raises:
        ValueError: an argument is out of range.
    """
    whole("length", length, 1)
    whole("letters", letters, 2, len(LETTERS))
    whole("seed", seed, 0)
    if not 0 <= noise < 1:
        raise ValueError(f"noise is {noise}, expected a probability from 0 to below 1")
    table = torch.randint(0, letters, (letters, letters), generator=torch.Generator().manual_seed(seed))
    law = TwoStyles(STYLES + LETTERS[:letters], length, noise, table)

    def draw(n: int, generator: torch.Generator) -> list[Example]:
        rows = uniform_digits((n, length), letters, generator)
        return [Example("".join(LETTERS[i] for i in row), "") for row in rows]

    def corpus(n: int, generator: torch.Generator) -> list[tuple[str, str]]:
        prompts = [example.prompt for example in draw(n, generator)]
        return list(zip(prompts, law.sample(prompts, generator), strict=True))

    return Task("two_styles", law.symbols, length + 1, draw, None, corpus=corpus, law=law)


def _no_prompt(prompt: str) -> None:
    if prompt:
        raise ValueError(f"the prompt is {prompt!r}: a Markov language has none")


def _place(letter: str, letters: str) -> int:
    if letter not in letters:
        raise ValueError(f"{letter!r} is not one of the letters {letters}")
    return letters.index(letter)
