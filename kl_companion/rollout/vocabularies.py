"""Padded vocabularies: models of one tokenizer that give different numbers of logits for a token.

Output layers are padded to a size that suits the hardware. Of Qwen2.5 the 7B model gives 152,064 logits, the
0.5B model 151,936, and their one tokenizer has 151,665 tokens. The columns after the last token are no
tokens: a sampler must not draw them, and a KL of two models leaves them out.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch

# reading a large vocabulary takes a tenth of a second: the length of the tokenizer, and its largest id plus 1
_COUNTS: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()


def token_count(tokenizer: Any) -> int | None:
    """Return the number of logits that belong to tokens: the largest id of the tokenizer plus 1.

    Args:
        tokenizer: With ``get_vocab()``, as those of transformers; None, or another one, gives None.
    """
    if not hasattr(tokenizer, "get_vocab"):
        return None
    length = len(tokenizer)  # changes when somebody adds tokens
    if tokenizer not in _COUNTS or _COUNTS[tokenizer][0] != length:
        _COUNTS[tokenizer] = length, max(tokenizer.get_vocab().values()) + 1
    return _COUNTS[tokenizer][1]


def token_columns(logits: torch.Tensor, count: int | None) -> torch.Tensor:
    """Return the logits [..., vocab] without the columns after the first ``count``; None returns all."""
    return logits if count is None or logits.shape[-1] <= count else logits[..., :count]


def common_columns(
    logits: torch.Tensor, ref_logits: torch.Tensor, tokenizer: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of two models over the same tokens; logits of one width are returned as they are.

    Args:
        logits: [..., vocab].
        ref_logits: [..., vocab], perhaps with another number of columns.
        tokenizer: Of both models. A model may lack tokens that were added to it, but none of its vocabulary.

    Raises:
        ValueError: two widths, and no tokenizer, or one of the widths is below its vocabulary: then the
            tokenizer is not that of both models.
    """
    width, ref_width = logits.shape[-1], ref_logits.shape[-1]
    if width == ref_width:
        return logits, ref_logits
    count, narrower = token_count(tokenizer), min(width, ref_width)
    base = getattr(tokenizer, "vocab_size", count) or 0
    if count is None or narrower < base:
        remedy = (
            "with a tokenizer, padding is left out" if count is None else f"their tokenizer has {base} tokens"
        )
        raise ValueError(
            f"ref_logits has shape {list(ref_logits.shape)}, expected {[*ref_logits.shape[:-1], width]}, the "
            f"columns of logits; {remedy}"
        )
    count = min(count, narrower)
    return token_columns(logits, count), token_columns(ref_logits, count)
