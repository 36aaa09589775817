"""Top-k divergences from the policy's log-probs of a head: what a teacher ships, checked and put together."""

from __future__ import annotations

import torch

from kl_companion.checks import check_floating, check_shape, slack
from kl_companion.estimators.top_k import TopK
from kl_companion.kernels.arguments import Doubt, RowSelection, check_plain, refuse


def check_head(
    indices: torch.Tensor,
    tokens: torch.Tensor,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    tail_weight: torch.Tensor | None,
    logits: torch.Size,
    rows: RowSelection,
    *,
    validate: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Check what a teacher ships for logits of a shape [..., vocab]; rows that do not count become neutral.

    Returns:
        Head and sampled token side by side [..., k + 1], ref_logp_head [..., k], ref_logp [...], tail_weight.

    Raises:
        ValueError: another dtype or shape, and with ``validate`` ids twice in a row or outside the
            vocabulary, log-probs that are NaN or above 0 or whose head has a mass above 1, and a tail_weight
            that is negative or NaN.
    """
    lead, vocab = logits[:-1], logits[-1]
    if not isinstance(indices, torch.Tensor) or indices.dtype != torch.int64 or indices.ndim == 0:
        got = indices.dtype if isinstance(indices, torch.Tensor) else type(indices).__name__
        raise ValueError(f"indices is {got}, expected an int64 tensor [..., k] or [k]")
    if indices.ndim > 1 and indices.shape[:-1] != lead:
        raise ValueError(
            f"indices has shape {list(indices.shape)}, expected [k] or {[*lead]} with a last axis [k] "
            "like logits [..., vocab]"
        )
    if not isinstance(tokens, torch.Tensor) or tokens.shape != lead:
        shape = list(tokens.shape) if isinstance(tokens, torch.Tensor) else type(tokens).__name__
        raise ValueError(f"tokens has shape {shape}, expected {list(lead)} like logits [..., vocab]")
    head = indices.expand(*lead, -1)
    check_plain("ref_logp_head", ref_logp_head)
    check_plain("ref_logp", ref_logp)
    check_shape("ref_logp_head", ref_logp_head, head.shape, "indices [..., k]")
    check_shape("ref_logp", ref_logp, tokens.shape, "tokens [...]")
    check_floating("ref_logp_head", ref_logp_head)
    check_floating("ref_logp", ref_logp)
    if tail_weight is not None:
        check_shape("tail_weight", tail_weight, lead, "tokens [...]")
    if rows.inside is not None:
        inside = rows.inside.view(lead)
        tokens, ref_logp = tokens.where(inside, 0), ref_logp.where(inside, 0.0)
        ref_logp_head = ref_logp_head.where(inside.unsqueeze(-1), 0.0)
        head = head.where(inside.unsqueeze(-1), torch.arange(head.shape[-1], device=head.device) % vocab)
        tail_weight = None if tail_weight is None else tail_weight.where(inside, 0)
    if validate:
        shipped = (
            ref_logp_head if rows.inside is None else ref_logp_head.where(inside.unsqueeze(-1), -torch.inf)
        )
        refuse(*_doubts_of_head(head, vocab, shipped, ref_logp, tail_weight))
    both = torch.cat([head, tokens.unsqueeze(-1)], -1)
    weight = None if tail_weight is None else recordable(tail_weight)
    return both, recordable(ref_logp_head), recordable(ref_logp), weight


def _doubts_of_head(
    head: torch.Tensor,
    vocab: int,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    tail_weight: torch.Tensor | None,
) -> list[Doubt | None]:
    ordered = head.sort(-1).values
    doubts: list[Doubt | None] = [
        Doubt(
            (head < 0) | (head >= vocab),
            lambda at: f"indices holds {head[tuple(at)].item()}, expected token ids from 0 to {vocab - 1}",
        ),
        Doubt(
            ordered[..., 1:] == ordered[..., :-1],
            lambda at: "indices holds a token twice in one row, expected a set: it would count twice",
        ),
    ]
    for name, x in (("ref_logp_head", ref_logp_head), ("ref_logp", ref_logp)):
        doubts.append(
            Doubt(
                ~(x <= slack(x)),
                lambda at, name=name, x=x: (  # type: ignore[misc]
                    f"{name} is {x[tuple(at)].item():.4g} at {at}, expected at most 0: "
                    "log-probabilities are wanted, not logits or probabilities"
                ),
            )
        )
    if head.shape[-1]:
        mass = ref_logp_head.float().logsumexp(-1).exp()
        doubts.append(
            Doubt(
                mass > 1 + 0.05 * (torch.finfo(ref_logp_head.dtype).eps > 1e-4) + 1e-3,
                lambda at: (
                    f"ref_logp_head has a mass of {mass[tuple(at)].item():.6g} at {at}, expected at most 1: "
                    "log-probabilities that are normalized over the vocabulary"
                ),
            )
        )
    if tail_weight is not None:
        doubts.append(
            Doubt(
                ~(tail_weight >= 0),
                lambda at: (
                    f"tail_weight is negative or NaN somewhere ({tail_weight[tuple(at)].item():g}), "
                    "expected pi/mu, clipped or not"
                ),
            )
        )
    return doubts


def recordable(x: torch.Tensor) -> torch.Tensor:
    """A small tensor as autograd can save it: a copy of one that was made in inference mode."""
    if torch.compiler.is_compiling():  # a graph cannot ask, and its operators save nothing of this tensor
        return x
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def estimate_from(
    choices: TopK,
    logp: torch.Tensor,
    both: torch.Tensor,
    ref_logp_head: torch.Tensor,
    ref_logp: torch.Tensor,
    tail_weight: torch.Tensor | None,
    rows: RowSelection,
    *,
    validate: bool,
) -> torch.Tensor:
    """Head plus tail, [...], from the policy's log-probs [..., k + 1] of what `check_head` returned."""
    outside = (both[..., :-1] != both[..., -1:]).all(-1)
    head = choices.head_of(logp[..., :-1], ref_logp_head.to(logp.dtype), validate=validate)
    ref_logp = ref_logp.to(logp.dtype)
    value = choices.estimate(head, logp[..., -1], ref_logp, outside, tail_weight, validate=validate)
    return value if rows.inside is None else value.where(rows.inside.view(value.shape), 0.0)
