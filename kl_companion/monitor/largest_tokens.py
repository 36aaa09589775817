"""The tokens on which policy and reference differ most, in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

MOST = 8  # tokens of an observation
BEFORE = 12  # tokens of the text before one


class LargeToken(NamedTuple):
    """A sampled token whose log-ratio stands out, as in `kl_monitor_tokens.jsonl`.

    Attributes:
        answer, position: Where it stands: which of the answers that were read, and which of its tokens.
        token, before: The token and what stands before it in the completion, in words or ids as text.
        log_ratio, logp, ref_logp: ``logp - ref_logp``, and the log-probs under policy and reference.
    """

    answer: int
    position: int
    token: str
    before: str
    log_ratio: float
    logp: float
    ref_logp: float


def largest(
    logp: torch.Tensor,
    ref_logp: torch.Tensor,
    tokens: torch.Tensor,
    inside: torch.Tensor,
    tokenizer: Any = None,
) -> tuple[LargeToken, ...]:
    """The tokens with the largest absolute log-ratio, the largest first.

    Args:
        logp: Of the tokens inside under the policy, [tokens], answer by answer.
        ref_logp: The same under the reference.
        tokens: [batch, seq].
        inside: [batch, seq] bool.
        tokenizer: With `decode`; without one, ids are written as they are.

    Returns:
        At most eight, each with at most the last twelve tokens of the completion before it.
    """
    ratio = logp - ref_logp
    order = ratio.abs().sort(descending=True, stable=True).indices[:MOST].tolist()
    rows, columns = (x.tolist() for x in inside.nonzero(as_tuple=True))

    def seen(k: int) -> LargeToken:
        i, t = rows[k], columns[k]
        before = tokens[i, :t][inside[i, :t]][-BEFORE:].tolist()
        token, text = _text([int(tokens[i, t])], tokenizer), _text(before, tokenizer)
        return LargeToken(i, t, token, text, ratio[k].item(), logp[k].item(), ref_logp[k].item())

    return tuple(map(seen, order))


def _text(ids: list[int], tokenizer: Any) -> str:
    if tokenizer is None:
        return " ".join(map(str, ids))
    return str(tokenizer.decode(ids, skip_special_tokens=False))
