"""What is read of the logits of some answers: numbers of tokens, so that the logits can be given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kl_companion.monitor.given import StepAnswers
from kl_companion.monitor.mismatch import Engine, Parts, fitted, parts
from kl_companion.monitor.moments import Asked, TokenNumbers, places, token_numbers


class LogitsRead(NamedTuple):
    """Numbers of the completion tokens of some answers, [batch, seq] each, on the device of the logits.

    Attributes:
        numbers: Exact numbers of their next-token distributions; of no meaning outside the completions.
        parts: Of the mismatch, where the engine's log-prob is known; None without one.
        engine: That the parts belong to.
    """

    numbers: TokenNumbers
    parts: Parts | None = None
    engine: Engine | None = None


def look(
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    tokens: torch.Tensor,
    inside: torch.Tensor,
    behavior_logp: torch.Tensor | None,
    asked: Asked,
    *,
    declared: Engine | None = None,
    engine: Engine | None = None,
) -> LogitsRead:
    """Read the logits of some answers, in blocks.

    Args:
        logits: Of the policy, [batch, seq, vocab].
        ref_logits: Of the reference, the same shape.
        tokens: [batch, seq].
        inside: [batch, seq] bool: the completions.
        behavior_logp: What the engine said, [batch, seq], NaN where it said nothing; or None.
        asked: What is computed.
        declared: What the sampling engine is said to be.
        engine: That was fitted to other answers of the same step; None fits one to these.

    Raises:
        ValueError: as `kl_companion.monitor.moments.token_numbers`.
    """
    numbers = TokenNumbers(*_spread(token_numbers(logits, ref_logits, tokens, inside, asked), inside))
    if behavior_logp is None:
        return LogitsRead(numbers)
    known = inside & ~behavior_logp.isnan()
    tokens = tokens.where(known, 0).clamp(0, logits.shape[-1] - 1)  # those outside may be any
    hot = {"temperature": asked.temperature}
    if engine is None:
        entropy = numbers.entropy[places(known)[:2]]
        engine = fitted(logits, tokens, behavior_logp, known, entropy, declared=declared, **hot)
    split = parts(logits, tokens, behavior_logp, known, engine, **hot)
    return LogitsRead(numbers, Parts(*_spread(split, known)), engine)


def _spread(values: Sequence[torch.Tensor], inside: torch.Tensor) -> torch.Tensor:
    """Values at the `places` inside, [tokens] each, as one tensor [values, batch, seq]."""
    every = torch.stack(list(values))
    spread = every.new_zeros(len(every), *inside.shape)
    spread[:, *places(inside)[:2]] = every
    return spread


def at_tokens(looked: LogitsRead, given: StepAnswers) -> LogitsRead:
    """The numbers of the completion tokens, answer by answer, [tokens] each; everything is on the host."""
    numbers = TokenNumbers(*(x[given.inside] for x in looked.numbers))
    if looked.parts is None or given.behavior_logp is None:
        return looked._replace(numbers=numbers)
    known = given.inside & ~given.behavior_logp.isnan()
    return looked._replace(numbers=numbers, parts=Parts(*(x[known] for x in looked.parts)))


def together(looks: Sequence[LogitsRead]) -> LogitsRead:
    """Several looks at answers of one step, one after the other; at least one."""
    numbers = TokenNumbers(*map(torch.cat, zip(*(x.numbers for x in looks), strict=True)))
    found = [x.parts for x in looks if x.parts is not None]
    split = Parts(*map(torch.cat, zip(*found, strict=True))) if found else None
    return LogitsRead(numbers, split, looks[-1].engine)
