"""A few lines of PyTorch that have the gradient that was wanted, with no import of ours."""

from __future__ import annotations

from collections.abc import Sequence

from kl_companion.auditing.fit.findings import Finding
from kl_companion.auditing.judgment.summary import curvature
from kl_companion.auditing.worlds.targets import split_want
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


def chosen_level(want: str, findings: Sequence[Finding]) -> str:
    """The level that is wanted, else the one at which the loss works."""
    seen = {n.partition("_")[0] for finding in findings for m in finding.matches for n in m}
    return split_want(want)[0] or ("sequence" if "sequence" in seen and "token" not in seen else "token")


def curvature_of(want: str) -> float:
    """Return its strength near the reference beside the reverse KL; 1 where it is not smooth there."""
    divergence = split_want(want)[1]
    return float(divergence.curvature) if divergence.smooth else 1.0


def coefficient_for(
    want: str,
    findings: Sequence[Finding],
    same_as: tuple[str, float] | None,
    named: float | None = None,
) -> float:
    """The beta with which what is wanted is as strong near the reference as the loss.

    Args:
        want: What was wanted.
        findings: Of the loss.
        same_as: The estimator that it is, sample by sample.
        named: The coefficient that its parameters name, for a loss that is nothing known.
    """
    total = curvature(findings[0])  # of second order: what the regularizers are near the reference
    if total > 0:
        return total / curvature_of(want)
    if same_as is not None and same_as[1] > 0:  # nothing is minimized: the factor in front was meant
        return same_as[1]
    return abs(named or total or 1.0) / (curvature_of(want) if named or total else 1.0)
