"""The tokens on which policy and reference differ most, in words."""

from __future__ import annotations

from typing import Any

import torch

MOST = 8  # tokens of an observation
BEFORE = 12  # tokens of the text before one


def largest(
    logp: torch.Tensor,
    ref_logp: torch.Tensor,
    tokens: torch.Tensor,
    inside: torch.Tensor,
    tokenizer: Any = None,
) -> list[dict[str, Any]]:
    """The tokens with the largest absolute log-ratio, the largest first.

    Args:
        logp: Of the tokens inside under the policy, [tokens], answer by answer.
        ref_logp: The same under the reference.
        tokens: [batch, seq].
        inside: [batch, seq] bool.
        tokenizer: With `decode`; without one, ids are written as they are.

    Returns:
        Records as in `kl_monitor_tokens.jsonl`, where ``before`` is the completion before the token, the last
        twelve tokens of it.
    """
    ratio = logp - ref_logp
    order = ratio.abs().sort(descending=True, stable=True).indices[:MOST].tolist()
    rows, columns = (x.tolist() for x in inside.nonzero(as_tuple=True))
    found = []
    for k in order:
        i, t = rows[k], columns[k]
        before = tokens[i, :t][inside[i, :t]][-BEFORE:].tolist()
        found.append(
            {
                "answer": i,
                "position": t,
                "token": _text([int(tokens[i, t])], tokenizer),
                "before": _text(before, tokenizer),
                "log_ratio": ratio[k].item(),
                "logp": logp[k].item(),
                "ref_logp": ref_logp[k].item(),
            }
        )
    return found


def _text(ids: list[int], tokenizer: Any) -> str:
    if tokenizer is None:
        return " ".join(map(str, ids))
    return str(tokenizer.decode(ids, skip_special_tokens=False))
