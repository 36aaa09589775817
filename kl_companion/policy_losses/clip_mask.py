"""PPO's clip as a mask: which samples have a gradient."""

from __future__ import annotations

import torch

from kl_companion.checks import check_floating, check_no_nan, check_scalar
from kl_companion.host_reads import any_wrong


def ppo_mask(
    advantages: torch.Tensor,
    ratio: torch.Tensor,
    eps_low: float,
    eps_high: float,
    *,
    validate: bool = False,
) -> torch.Tensor:
    """1 where PPO's clip lets a gradient pass, else 0; the shape and dtype of ``ratio``, detached.

    0 where the advantage is positive and the ratio above 1 + eps_high, or the advantage is negative and the
    ratio below 1 - eps_low. Where the advantage is 0 the mask is 1 at any ratio: the clip would not matter
    there, but another loss under this mask is not clipped.

    Args:
        advantages: Of the shape of ``ratio``.
        ratio: pi / mu, of a sequence or of a token.
        eps_low: How far below 1 is free.
        eps_high: How far above 1 is free.
        validate: Whether NaN is refused, which reads values on the host; else its entry of the mask is NaN.

    Raises:
        ValueError: shapes that differ, or an eps that is negative or not finite; with ``validate=True`` NaN.

    Source: emapg2026, appendices A and J.4.
    """
    check_floating("ratio", ratio)
    if advantages.shape != ratio.shape:
        raise ValueError(
            f"advantages has shape {list(advantages.shape)}, expected {list(ratio.shape)} like ratio"
        )
    for name, eps in (("eps_low", eps_low), ("eps_high", eps_high)):
        check_scalar(name, eps, least=0.0)
    if validate and any_wrong(advantages.isnan() | ratio.isnan()):
        check_no_nan("advantages", advantages)
        check_no_nan("ratio", ratio)
    stopped = ((advantages > 0) & (ratio > 1 + eps_high)) | ((advantages < 0) & (ratio < 1 - eps_low))
    return (~stopped).to(ratio.dtype).masked_fill(advantages.isnan() | ratio.isnan(), torch.nan)
