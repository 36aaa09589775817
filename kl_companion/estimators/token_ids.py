"""Checks of token ids: the head of a top-k estimator, and the sampled tokens."""

from __future__ import annotations

import torch

from kl_companion.checks import check_shape


def checked_head(indices: torch.Tensor, lead: torch.Size, vocab: int) -> torch.Tensor:
    """Ids [..., k] for rows [...]; ValueError unless they are whole numbers of the vocabulary, each once."""
    rows = head_of_rows(indices, lead)
    check_head(indices, vocab)
    return rows


def head_of_rows(indices: torch.Tensor, lead: torch.Size) -> torch.Tensor:
    """Ids [..., k] for rows [...]; ValueError unless ``indices`` is an int64 tensor of such a shape."""
    if not isinstance(indices, torch.Tensor) or indices.dtype != torch.int64 or indices.ndim == 0:
        got = indices.dtype if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise ValueError(f"indices is {got}, expected an int64 tensor [..., k] or [k]")
    if indices.ndim > 1 and indices.shape[:-1] != lead:
        raise ValueError(
            f"indices has shape {list(indices.shape)}, expected [k] or {[*lead]} with a last axis [k] "
            "like logp_all [..., vocab]"
        )
    return indices.expand(*lead, -1)


def check_head(indices: torch.Tensor, vocab: int) -> None:
    """Raise ValueError unless ids [..., k] are those of a vocabulary, each at most once in a row."""
    if indices.numel() and (indices.min() < 0 or indices.max() >= vocab):
        bad = indices.min() if indices.min() < 0 else indices.max()
        raise ValueError(f"indices holds {bad.item()}, expected token ids from 0 to {vocab - 1}")
    ordered = indices.sort(-1).values
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise ValueError("indices holds a token twice in one row, expected a set: it would count twice")


def check_tokens(tokens: torch.Tensor, logp_all: torch.Tensor, *, validate: bool) -> None:
    """Raise ValueError unless ``tokens`` is one int64 id for every row of ``logp_all`` [..., vocab]."""
    if not isinstance(tokens, torch.Tensor) or tokens.dtype != torch.int64:
        got = tokens.dtype if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise ValueError(f"tokens is {got}, expected an int64 tensor [...], the sampled ids")
    check_shape("tokens", tokens, logp_all.shape[:-1], "logp_all [..., vocab] without its last axis")
    if validate and tokens.numel() and (tokens.min() < 0 or tokens.max() >= logp_all.shape[-1]):
        bad = tokens.min() if tokens.min() < 0 else tokens.max()
        raise ValueError(f"tokens holds the id {bad.item()}, expected 0 to {logp_all.shape[-1] - 1}")
