"""What is read of the logits of some answers: numbers of tokens, so that the logits can be given back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kl_companion.monitor.mismatch import Engine, Parts, fitted, parts
from kl_companion.monitor.moments import Asked, TokenNumbers, token_numbers


class LogitsRead(NamedTuple):
    """Numbers of the completion tokens of some answers, [tokens] each, on the processor.

    Attributes:
        numbers: Exact numbers of their next-token distributions.
        parts: Of the mismatch, at the tokens whose engine's log-prob is known; None without one.
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
    numbers = token_numbers(logits, ref_logits, tokens, inside, asked)
    if behavior_logp is None:
        return LogitsRead(_here(numbers))
    known = inside & ~behavior_logp.isnan()
    hot = {"temperature": asked.temperature}
    if engine is None:
        entropy = numbers.entropy[known[inside]]
        engine = fitted(logits, tokens, behavior_logp, known, entropy, declared=declared, **hot)
    split = parts(logits, tokens, behavior_logp, known, engine, **hot)
    return LogitsRead(_here(numbers), Parts(*(x.cpu() for x in split)), engine)


def _here(x: TokenNumbers) -> TokenNumbers:
    return TokenNumbers(*(part.cpu() for part in x))


def together(looks: Sequence[LogitsRead]) -> LogitsRead:
    """Several looks at answers of one step, one after the other; at least one."""
    numbers = TokenNumbers(*map(torch.cat, zip(*(x.numbers for x in looks), strict=True)))
    found = [x.parts for x in looks if x.parts is not None]
    split = Parts(*map(torch.cat, zip(*found, strict=True))) if found else None
    return LogitsRead(numbers, split, looks[-1].engine)
