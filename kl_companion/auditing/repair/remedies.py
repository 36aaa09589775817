"""A few lines of PyTorch that have the gradient that was wanted, with no import of ours."""

from __future__ import annotations

from kl_companion.divergences import Divergence, printed
from kl_companion.recommendations import ANY_DIVERGENCE, recommended_for


def lines_for(divergence: Divergence, level: str) -> list[str]:
    """Lines that compute ``kl``: those of the table of recommendations, which has Kf++ for any f."""
    known = recommended_for(divergence.name, level)
    if known is not None:
        return known.lines.splitlines()
    lines = ANY_DIVERGENCE.format(**printed(divergence)).splitlines()
    if level == "token":
        return lines
    names = "logp, ref_logp, behavior_logp"
    return [f"{names} = ((x * mask).sum(-1) for x in ({names}))", *lines]


def remedy(divergence: Divergence, *, level: str, beta: float = 1.0) -> str:
    """Source of a function ``remedy`` whose gradient is unbiased for beta times the divergence.

    It is the term that the table of recommendations has for the loss, with samples of any policy: K2 or K3
    times the detached ratio of policy to sampling policy; Kf++ times it for another f (emapg2026, eqs
    (115)-(119)). On-policy pass ``logp.detach()`` as ``behavior_logp``.

    Args:
        divergence: What is wanted.
        level: ``"token"``: one value per token; ``"sequence"``: a scalar from whole sequences, whose tokens
            ``mask`` marks.
        beta: Coefficient.
    """
    body = lines_for(divergence, level)
    mask = "" if level == "token" else ", mask"
    scaled = "kl" if beta == 1 else f"{beta:g} * kl"
    return "\n".join(
        (
            *(["import torch"] if "torch." in "".join(body) else []),
            f"def remedy(logp, ref_logp, behavior_logp{mask}):  # on-policy: logp.detach()",
            *(f"    {line}" for line in body),
            f"    return ({scaled}).mean()" if mask else f"    return {scaled}  # one value per token",
        )
    )
