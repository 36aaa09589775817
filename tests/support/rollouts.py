"""Small batches of sampled sequences: one builder from log-probs, and two batches that many tests share."""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.rollout import Rollout

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])


def doubles(*rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def rollout(
    logp: torch.Tensor, ref_logp: torch.Tensor, mask: torch.Tensor | None = None, **fields: Any
) -> Rollout:
    """A batch of these log-probs, in which no test reads the tokens; the whole of it unless masked."""
    mask = torch.ones(logp.shape) if mask is None else mask
    made = {"tokens": torch.zeros(mask.shape, dtype=torch.long), "completion_mask": mask}
    return Rollout(**{**made, "logp": logp, "ref_logp": ref_logp, **fields})


def sampled(**changes: Any) -> Rollout:
    """Two sequences, of two and of four tokens; NaN wherever the mask is 0."""
    fields = {
        "logp": doubles([NAN, -1.0, -2.0, NAN], [-0.5, -0.25, -3.0, -1.5]),
        "ref_logp": doubles([NAN, -1.5, -1.0, NAN], [-0.5, -1.25, -2.0, -1.0]),
        "behavior_logp": doubles([NAN, -0.9, -2.3, NAN], [-0.7, -0.25, -2.5, -1.6]),
    }
    return rollout(mask=MASK, **{**fields, **changes})


def last_token(ratio: float = 0.0, to_ref: float = 0.0) -> Rollout:
    """Two sequences, the first of one token; the second's last token has these log-ratios."""
    logp = torch.tensor([[-1.0, -1.0], [-1.0, -1000.5 if to_ref else -0.5]])
    last = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    mask, given = torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([1.0, 2.0])
    ref_logp, sampler = logp - to_ref * last, logp - ratio * last
    return rollout(logp.requires_grad_(), ref_logp, mask, behavior_logp=sampler, rewards=given)


def drawn(
    mask: torch.Tensor, vocab: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Tensors of a random batch with this mask: logits of three policies, tokens, and their log-probs."""
    draw = torch.Generator().manual_seed(seed)
    names = ("logits", "ref_logits", "behavior_logits")
    scores = {
        x: torch.randn(*mask.shape, vocab, generator=draw, dtype=torch.float64).to(dtype) for x in names
    }
    tokens = torch.randint(vocab, mask.shape, generator=draw)
    sampled = {
        x.replace("logits", "logp"): y.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        for x, y in scores.items()
    }
    return {"tokens": tokens, "completion_mask": mask.clone(), **sampled, **scores}
