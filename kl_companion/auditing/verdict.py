"""What an audit returns, and how it is judged against what was wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kl_companion.auditing.adapt import Reading
from kl_companion.auditing.findings import Finding
from kl_companion.auditing.objectives import OBJECTIVES, add_divergence
from kl_companion.auditing.remedies import remedy
from kl_companion.auditing.report import paragraph
from kl_companion.checks import unknown_name
from kl_companion.divergences import DIVERGENCES, Divergence, get_divergence


@dataclass(frozen=True)
class Audit:
    """The verdict on a loss; ``str()`` is the paragraph that the command line prints.

    Attributes:
        name: What was audited.
        findings: One per condition; the first is on-policy, small ratios.
        placement: ``"loss"`` or ``"reward"``.
        same_as: (estimator, coefficient) when a function is one of the registered estimators, sample
            by sample.
        want: The objective that was asked for, or None.
        met: Whether it is what the loss descends; None when nothing was asked for.
        remedy: A few lines of PyTorch when ``met`` is False, see `remedy`.
        reading: How the parameters of a function were read; None for an estimator.
    """

    name: str
    findings: tuple[Finding, ...]
    placement: str = "loss"
    same_as: tuple[str, float] | None = None
    want: str | None = None
    met: bool | None = None
    remedy: str | None = None
    reading: Reading | None = None

    @property
    def matches(self) -> dict[str, float]:
        """The explanation under the first condition; empty if zero or unknown."""
        return self.findings[0].matches[0] if self.findings[0].matches else {}

    @property
    def residual(self) -> float:
        """Residual under the first condition."""
        return self.findings[0].residual

    @property
    def curl(self) -> float:
        """Curl under the first condition."""
        return self.findings[0].curl

    @property
    def zero(self) -> bool:
        """Whether the expected gradient vanishes under the first condition."""
        return self.findings[0].zero

    @property
    def value_matches(self) -> dict[str, float]:
        """Whose value the loss estimates under the first condition."""
        return self.findings[0].value_matches

    @property
    def note(self) -> str:
        """The verdict in one paragraph."""
        return paragraph(self.name, self.findings, placement=self.placement, same_as=self.same_as)

    def __str__(self) -> str:
        return self.note


def accepts(finding: Finding, wanted: set[str]) -> bool:
    """Whether some explanation is the wanted regularizer, alone or beside rewards and entropies."""
    for explanation in finding.matches:
        kept = {n: c for n, c in explanation.items() if OBJECTIVES[n].regularizer}
        if len(kept) == 1 and all(n in wanted and c > 0 for n, c in kept.items()):
            return True
    return False


def _split(want: str) -> tuple[str, Divergence]:
    """("token", "sequence" or "", divergence) of a wanted name; ValueError for an unknown one."""
    level = next((x for x in ("token", "sequence") if want.startswith(f"{x}_")), "")
    try:
        return level, get_divergence(want.removeprefix(f"{level}_"))
    except ValueError as error:
        known = [f"{x}{d}" for d in DIVERGENCES for x in ("", "token_", "sequence_")]
        raise unknown_name("wanted objective", want, known) from error


def wanted_objectives(want: str) -> set[str]:
    """Names of the objectives that satisfy ``want``: a divergence at either level, or one level of it."""
    level, divergence = _split(want)
    add_divergence(divergence)
    prefixes = {"token": ("token", "policy_token"), "sequence": ("sequence",)}
    chosen = prefixes[level] if level else (*prefixes["token"], *prefixes["sequence"])
    return {f"{x}_{divergence.name}" for x in chosen}


def _coefficient(findings: Sequence[Finding], same_as: tuple[str, float] | None, curvature: float) -> float:
    """The beta that keeps the strength near the reference: second-order matching of the regularizers.

    Where nothing is descended, the factor in front of a recognized estimator is what was meant.
    """
    total = 0.0
    for name, c in (findings[0].matches[0] if findings[0].matches else {}).items():
        of = name.removeprefix("policy_").removeprefix("token_").removeprefix("sequence_")
        if of in DIVERGENCES and DIVERGENCES[of].smooth:
            total += c * float(DIVERGENCES[of].curvature)
    if total > 0:
        return total / curvature
    return same_as[1] if same_as is not None and same_as[1] > 0 else 1.0


def remedy_for(want: str, findings: Sequence[Finding], same_as: tuple[str, float] | None) -> str:
    """A few lines that do what was wanted, at the level at which the loss works, as strong as it is."""
    level, divergence = _split(want)
    seen = {n.partition("_")[0] for finding in findings for m in finding.matches for n in m}
    chosen = level or ("sequence" if "sequence" in seen and "token" not in seen else "token")
    curvature = float(divergence.curvature) if divergence.smooth else 1.0
    return remedy(divergence, level=chosen, beta=_coefficient(findings, same_as, curvature))
