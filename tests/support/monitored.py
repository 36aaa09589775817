"""Small batches as a monitor gets them."""

from __future__ import annotations

from typing import Any

import torch


def small_batch(vocab: int = 3, seed: int = 0, spread: float = 1.0) -> dict[str, Any]:
    """Three answers of 1, 2 and 2 tokens in [3, 3], of which one holds a hole; logits of two policies."""
    draw = torch.Generator().manual_seed(seed)
    shape = (3, 3, vocab)
    ref_logits = torch.randn(shape, generator=draw, dtype=torch.float64)
    logits = ref_logits + spread * torch.randn(shape, generator=draw, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]])  # the hole is what a tool wrote
    tokens = torch.randint(0, vocab, (3, 3), generator=draw)
    return {"logits": logits, "ref_logits": ref_logits, "tokens": tokens, "mask": mask}


def inside(batch: dict[str, Any], name: str) -> torch.Tensor:
    """The rows of a tensor of the batch under its mask."""
    rows: torch.Tensor = batch[name][batch["mask"].bool()]
    return rows
