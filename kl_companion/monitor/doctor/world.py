"""The small world that a trainer's own code is run on: answers, their token ids, and what may be changed.

A world is a `Rollout` with logits, and the ids by which its tokens go in a model's vocabulary. Every answer
has a prompt of its own, which spells its number in binary digits: a model that sees nothing but token ids
can tell which answer it reads, in whatever order, padding or packing a trainer hands it over.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import torch

from kl_companion.rollout import Rollout

# answers of the probing world: token 0 ends, the longest but one is cut off by the greatest length
_ANSWERS = torch.tensor([[1, 0, 0, 0], [3, 0, 0, 0], [2, 1, 0, 0], [3, 1, 2, 0], [1, 3, 3, 2], [2, 3, 0, 0]])
_LENGTHS = (2, 2, 3, 4, 4, 3)  # the halves differ in tokens, so that a denominator of one half shows
# none is 0 or their mean: every answer acts, with a baseline or without one
REWARDS = torch.tensor([0.1, 1.0, 0.2, 0.9, 0.6, 0.3], dtype=torch.float64)
LIVE = 4
_ENOUGH = 2.0


class Ids(NamedTuple):
    """Token ids of the world in the vocabulary of the model that it stands in for.

    Attributes:
        pad: Padding; `live[0]`, as in many tokenizers, or a token of its own.
        live: Of the world's tokens, the first of which ends an answer.
        digits: Of the two digits that prompts are written in, and of the sign that ends a prompt: no prompt
            begins another one.
    """

    pad: int = 1
    live: tuple[int, ...] = (1, 2, 3, 4)
    digits: tuple[int, int, int] = (5, 6, 7)

    @property
    def size(self) -> int:
        """The smallest vocabulary that holds them."""
        return max(self.pad, *self.live, *self.digits) + 1

    def with_live(self, count: int) -> Ids:
        """Return ids of a world with that many tokens, the further ones above all others."""
        more = range(self.size, self.size + count - len(self.live))
        return self._replace(live=(*self.live, *more))


class PaddedAnswers(NamedTuple):
    """Answers as a trainer holds them: prompts padded on the left, completions on the right.

    Attributes:
        prompt_ids, prompt_mask: [batch, prompt] int64.
        completion_ids, completion_mask: [batch, seq] int64.
    """

    prompt_ids: torch.Tensor
    prompt_mask: torch.Tensor
    completion_ids: torch.Tensor
    completion_mask: torch.Tensor

    @property
    def input_ids(self) -> torch.Tensor:
        """[batch, prompt + seq]."""
        return torch.cat([self.prompt_ids, self.completion_ids], 1)

    @property
    def attention_mask(self) -> torch.Tensor:
        """[batch, prompt + seq]."""
        return torch.cat([self.prompt_mask, self.completion_mask], 1)

    @property
    def labels(self) -> torch.Tensor:
        """[batch, prompt + seq]: the ids of the completions, -100 on prompts and padding."""
        answers = self.completion_ids.masked_fill(self.completion_mask == 0, -100)
        return torch.cat([torch.full_like(self.prompt_ids, -100), answers], 1)


@dataclass(frozen=True)
class SmallWorld:
    """Answers with the policies that scored them.

    Attributes:
        rollout: With logits of policy and reference, and rewards; ``behavior_logits`` where an older policy
            sampled.
        ids: The ids of its tokens.
        order: Which answers a batch holds, by their numbers; each once by default.
        padding: Columns of padding on the left of all prompts and on the right of all answers.
        outside: By which part the models' logits after the end of an answer are larger.
    """

    rollout: Rollout
    ids: Ids
    order: tuple[int, ...] = ()
    padding: tuple[int, int] = (0, 0)
    outside: float = 0.0

    @classmethod
    def of(cls, rollout: Rollout, ids: Ids) -> SmallWorld:
        """The world of a batch in which answers are repeated: equal ones share their row of logits.

        Args:
            rollout: Answers to one prompt, with logits that are the same wherever the prefix is.
            ids: The ids of its tokens.
        """
        mask = rollout.completion_mask.long()
        texts = [tuple(x) for x in torch.cat([rollout.tokens * mask, mask], 1).tolist()]
        first = {text: i for i, text in reversed(list(enumerate(texts)))}
        number = {text: k for k, text in enumerate(first)}
        rows = torch.tensor(list(first.values()))
        given = {f.name: x[rows] for f in fields(rollout) if (x := getattr(rollout, f.name)) is not None}
        return cls(rollout.unchecked(**given), ids, tuple(number[text] for text in texts))

    @property
    def batch(self) -> list[int]:
        """The numbers of the answers in a batch, in order."""
        return list(self.order or self.rows)

    def prompt(self, row: int) -> list[int]:
        """The ids of an answer's prompt: its number, counted from 1, in binary."""
        return [self.ids.digits[int(x)] for x in f"{row + 1:b}2"]

    def answer(self, row: int) -> list[int]:
        """The ids of an answer."""
        return self._answers[row]

    @cached_property
    def _answers(self) -> list[list[int]]:
        lengths = self.rollout.completion_mask.sum(-1).long().tolist()
        texts = self.rollout.tokens.tolist()
        return [[self.ids.live[x] for x in text[:n]] for text, n in zip(texts, lengths, strict=True)]

    @property
    def rows(self) -> range:
        """The numbers of its different answers."""
        return range(len(self.rollout.tokens))

    @property
    def sampler_logits(self) -> torch.Tensor:
        """Of the policy that sampled, [answers, seq, live]."""
        older, logits = self.rollout.behavior_logits, self.rollout.logits
        assert logits is not None
        return logits if older is None else older

    def scored(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        """Log-probs of the tokens of a batch under logits [answers, seq, live]; 0 outside, and on padding."""
        chosen = self.rollout.tokens.unsqueeze(-1)
        logp = (logits.detach().double() / temperature).log_softmax(-1).gather(-1, chosen).squeeze(-1)
        logp = logp.masked_fill(~self.rollout.completion_mask.bool(), 0.0)[self.batch]
        return torch.nn.functional.pad(logp, (0, self.padding[1]))

    def layout(self) -> PaddedAnswers:
        """Its answers in a rectangle."""
        prompts, answers = [self.prompt(i) for i in self.rows], [self.answer(i) for i in self.rows]
        longest = max(len(prompts[i]) for i in {*self.batch}) + self.padding[0]
        width = self.rollout.tokens.shape[1] + self.padding[1]
        left = [([self.ids.pad] * longest + x)[-longest:] for x in prompts]
        seen = [([0] * longest + [1] * len(x))[-longest:] for x in prompts]
        right = [x + [self.ids.pad] * (width - len(x)) for x in answers]
        inside = [[1] * len(x) + [0] * (width - len(x)) for x in answers]
        # of every different answer once: a large batch holds each many times
        return PaddedAnswers(*(torch.tensor(x)[self.batch] for x in (left, seen, right, inside)))


def _waves(shape: tuple[int, ...], speed: float, size: float) -> torch.Tensor:
    """Numbers without a pattern that a mistake could hide in, the same every time: [*shape] float64."""
    count = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return size * torch.sin(speed * (count + 1.0) ** 1.3).view(shape)


def world(
    ids: Ids = Ids(),  # noqa: B008 (a tuple)
    *,
    apart: float = 0.6,
    stale: float = 0.0,
    rewards: torch.Tensor | float = 0.0,
    bumped: tuple[int, int, float] | None = None,
    both: bool = False,
    sampled: tuple[int, int, float] | None = None,
    lowered: float = 0.0,
    order: tuple[int, ...] = (),
    padding: tuple[int, int] = (0, 0),
    outside: float = 0.0,
) -> SmallWorld:
    """The world of the probes: six answers of two to four tokens, one of them cut off.

    Args:
        ids: The ids of its tokens.
        apart: Size of the log-ratios of policy and reference.
        stale: Size of those of policy and sampler; 0 where the policy itself sampled.
        rewards: Of the answers, [6], or one for all.
        bumped: (row, position, by): the log-ratio of the token that is sampled there falls by about
            that much; the reference's logit is higher, or where that is not enough the policy's lower.
        both: Where the policy's is moved so, the reference's is moved with it: the log-ratio stays.
        sampled: (row, position, by): the sampler's logit of the token there is higher by that much.
        lowered: By how much both models' logits of the bumped token are lower.
        order: Which answers a batch holds, by their numbers.
        padding: Columns of padding on the left of all prompts and on the right of all answers.
        outside: By which part the models' logits after the end of an answer are larger.
    """
    shape = (*_ANSWERS.shape, len(ids.live))
    logits = _waves(shape, 1.1, 0.8)
    ref_logits = logits + _waves(shape, 0.7, apart)
    if bumped is not None:
        row, position, by = bumped
        at = (row, position, int(_ANSWERS[row, position]))
        further = max(by - _ENOUGH, 0.0)
        ref_logits[at] += -further if both else min(by, _ENOUGH)
        logits[at] -= further + lowered
        ref_logits[at] -= lowered
    behavior_logits = logits + _waves(shape, 1.7, stale) if stale or sampled is not None else None
    if sampled is not None and behavior_logits is not None:
        row, position, by = sampled
        behavior_logits[row, position, int(_ANSWERS[row, position])] += by
    mask = torch.tensor([[float(t < n) for t in range(shape[1])] for n in _LENGTHS], dtype=torch.float64)
    given = rewards if isinstance(rewards, torch.Tensor) else torch.full((len(_LENGTHS),), rewards)
    return SmallWorld(
        Rollout.from_logits(
            _ANSWERS,
            mask,
            logits,
            ref_logits,
            behavior_logits=behavior_logits,
            rewards=given.double(),
        ),
        ids,
        order,
        padding,
        outside,
    )
