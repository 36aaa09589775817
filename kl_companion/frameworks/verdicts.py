"""The audit of a setting: what it minimizes, where its gradient is exactly zero, and what to set instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kl_companion.auditing import Audit, Finding, audit
from kl_companion.auditing.fit.explanations import COMMON, UNITS
from kl_companion.auditing.judgment.summary import Part, effects, number, row, terms
from kl_companion.auditing.judgment.term import verdict_lines
from kl_companion.frameworks.installed import Unavailable
from kl_companion.frameworks.records import Framework, Setting
from kl_companion.frameworks.registry import setting
from kl_companion.rollout import Rollout

_FARTHEST = 30.0  # the largest |log(ref/pi)| that is looked at
_STEPS = 2401  # of 0.025
_HALVINGS = 40
_LOGP = -32.0  # of the sampled token; then the reference has room above it
Zone = tuple[float, float]


class Verdict(NamedTuple):
    """What was found.

    Attributes:
        setting: The setting.
        audit: See `kl_companion.audit`.
        dead: Intervals of log(ref/pi) of a token in which its term has no gradient at all, on-policy; None
            for losses that read whole distributions.
    """

    setting: Setting
    audit: Audit
    dead: tuple[Zone, ...] | None

    def __str__(self) -> str:
        return paragraph(self)


def _weights(setting: Setting, log_ratios: torch.Tensor) -> torch.Tensor:
    """The gradient of one-token completions with these log(ref/pi), [count]: exact zeros are meant."""
    count = len(log_ratios)

    def scores(logp: torch.Tensor) -> torch.Tensor:
        """Logits [count, 1, 2] whose token 0 has these log-probs."""
        other = (-logp.exp()).log1p()
        return torch.stack([logp, other], -1).unsqueeze(1)

    logits = scores(torch.full_like(log_ratios, _LOGP)).requires_grad_()
    rollout = Rollout.from_logits(
        torch.zeros(count, 1, dtype=torch.long),
        torch.ones(count, 1, dtype=log_ratios.dtype),
        logits,
        scores(_LOGP + log_ratios),
    )
    (gradient,) = torch.autograd.grad(setting.exact(rollout), logits, allow_unused=True)
    return torch.zeros_like(log_ratios) if gradient is None else gradient[:, 0, 0]


def dead_zones(setting: Setting) -> tuple[Zone, ...] | None:
    """Intervals of log(ref/pi) in which a token's term has a gradient of exactly zero, on-policy.

    They are found by evaluating the loss at log-ratios from -30 to 30 and halving the edges; an interval that
    reaches the end of what is looked at is taken to go on. Single points, such as a log-ratio of 0, are none.
    None for losses that read whole distributions.
    """
    if not setting.sampled:
        return None
    grid = torch.linspace(-_FARTHEST, _FARTHEST, _STEPS, dtype=torch.float64)
    dead = (_weights(setting, grid) == 0).tolist()
    zones = []
    start = None
    for i, zero in enumerate([*dead, False]):
        if zero and start is None:
            start = i
        elif not zero and start is not None:
            if i - start > 1:
                low = -math.inf if start == 0 else _edge(setting, grid[start - 1], grid[start])
                high = math.inf if i == _STEPS else _edge(setting, grid[i], grid[i - 1])
                zones.append((low, high))
            start = None
    return tuple(zones)


def _edge(setting: Setting, alive: torch.Tensor, dead: torch.Tensor) -> float:
    """Where between a log-ratio with a gradient and one without it ends."""
    for _ in range(_HALVINGS):
        middle = (alive + dead) / 2
        if _weights(setting, middle.reshape(1)).item() == 0:
            dead = middle
        else:
            alive = middle
    return ((alive + dead) / 2).item()


def zone_words(dead: tuple[Zone, ...] | None) -> str:
    """Intervals in words; "" for none, "not looked at" for a loss that reads whole distributions."""
    if dead is None:
        return "not looked at"
    said = []
    for low, high in dead:
        if low == -math.inf and high == math.inf:
            said.append("everywhere")
        elif low == -math.inf:
            said.append(f"log(ref/pi) < {high:.6g}")
        elif high == math.inf:
            said.append(f"log(ref/pi) > {low:.6g}")
        else:
            said.append(f"{low:.6g} < log(ref/pi) < {high:.6g}")
    return " or ".join(said)


def audit_setting(
    chosen: str | Setting,
    *,
    off_policy: bool | None = None,
    scale: float | None = None,
    want: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Audit one way in which a framework can be told to regularize.

    Args:
        chosen: A `Setting`, or its name, such as ``"verl.loss_k3"``.
        off_policy: On- or off-policy samples only; None looks at both.
        scale: One size of log-ratios instead of small (1) and large (4).
        want: See `kl_companion.audit`.
        progress: Called with a line of text per condition.

    Raises:
        ValueError: an unknown name; as `Unavailable`, a framework that is not installed.
    """
    found = chosen if isinstance(chosen, Setting) else setting(chosen)
    # a function of logits has many more objectives to be a sum of: sums of three would take minutes
    most = 3 if found.sampled else 2
    exact = found.exact

    def loss(rollout: Rollout) -> torch.Tensor:
        return exact(rollout)

    try:
        verdict = audit(
            loss, off_policy=off_policy, scale=scale, want=want, max_terms=most, progress=progress
        )
    except ValueError as error:
        if isinstance(error.__cause__, Unavailable):  # said by the adapter, not by a reader's loss
            raise error.__cause__ from None
        raise
    named = replace(verdict, name=found.name, placement=found.placement)
    return Verdict(found, named, dead_zones(found))


def _coefficient(term: Part) -> str:
    if term.unit == COMMON:
        return f"{number(term.coefficient)} x a number of the batch"
    return number(term.coefficient) + (f" / {UNITS[term.unit]}" if term.unit else "")


def in_words(finding: Finding) -> tuple[str, str]:
    """(objective, coefficient) of a finding in words of a table."""
    found = terms(finding)
    if not found:
        return ("nothing" if finding.zero else "unnamed"), "none"
    return " + ".join(t.objective for t in found), ", ".join(map(_coefficient, found))


def _where_lengths_agree(finding: Finding, fixed: Finding) -> str:
    """What a finding becomes on answers of one length; "" where nothing but that the padded length is it."""
    one = [
        [t._replace(unit="tokens" if t.unit == "positions" else t.unit) for t in terms(x)]
        for x in (finding, fixed)
    ]
    if finding.zero == fixed.zero and one[0] == one[1]:
        return ""
    objective, coefficient = in_words(fixed)
    return objective if coefficient in ("none", "1") else f"{objective} ({coefficient})"


def division_words(chosen: Setting) -> str:
    """What is divided by which standard deviation, and when; "nothing" where nothing is."""
    parts = [
        f"{chosen.divides(a)} by that of the {a.over} ({a.when or 'by default'})"
        for a in chosen.algorithms
        if a.over
    ]
    return "; ".join(parts) or "nothing"


def option_words(name: str) -> str:
    """What to write for a setting so that its penalty is not divided."""
    chosen = setting(name)
    algorithm = chosen.penalty_divided
    if algorithm is None:
        return chosen.option
    if algorithm.instead:
        return f"{chosen.option}; {algorithm.instead}, so that nothing is divided"
    by = f"divided by the standard deviation of the {algorithm.over}, which no option turns off"
    return f"{chosen.option}; {by}"


def remedy_words(known: Framework) -> str:
    """The framework's own settings that give the two gradients of the reverse KL."""
    parts = []
    for level, name in (("whole sequences", known.remedy.sequence), ("next tokens", known.remedy.token)):
        what = f"{option_words(name)} ({name})" if name else "no option"
        parts.append(f"gradient of the reverse KL of {level}: {what}")
    return "; ".join(parts) + (f". {known.remedy.words}" if known.remedy.words else "")


def rows(verdict: Verdict) -> Iterator[dict[str, Any]]:
    """A row per sampling and size of log-ratios, where lengths vary; ``condition`` says what they change."""
    chosen = verdict.setting
    known = chosen.framework
    fixed = {c.condition[::2]: c for c in verdict.audit.findings if c.condition and not c.condition.eos}
    for finding in verdict.audit.findings:
        if finding.condition is None or not finding.condition.eos:
            continue
        objective, coefficient = in_words(finding)
        other = _where_lengths_agree(finding, fixed[finding.condition[::2]])
        condition = f"lengths vary; where they do not: {other}" if other else "lengths vary or not"
        yield {
            "setting": chosen.name,
            "sampling": "off-policy" if finding.condition.off_policy else "on-policy",
            "scale": finding.condition.scale,
            "framework": known.name,
            "title": known.title,
            "wheel": known.distribution if chosen.installed else "none",
            "version": chosen.version,
            "kind": "installed" if chosen.installed else "formula",
            "where": chosen.where,
            "digest": chosen.digest,
            "option": chosen.option,
            "default": chosen.default or "no",
            "purpose": chosen.purpose,
            "placement": chosen.placement,
            "level": chosen.level,
            "aggregation": chosen.aggregation,
            "divided": division_words(chosen),
            "minimizes": row(finding),
            "practice": " ".join(effects(finding)) or "none",
            "objective": objective,
            "coefficient": coefficient,
            "condition": condition,
            "residual": finding.residual,
            "curl": finding.curl,
            "zero_gradient": zone_words(verdict.dead) or "nowhere",
        }


def paragraph(verdict: Verdict) -> str:
    """What the command line prints of one setting."""
    chosen = verdict.setting
    known = chosen.framework
    kind = chosen.version if chosen.installed else f"formula, read in {chosen.version}"
    lines = [
        *verdict_lines(verdict.audit),
        f"  framework: {known.title} ({kind}), in the {chosen.placement}",
        f"  option: {chosen.option}",
        f"  default: {chosen.default or 'no'}",
        f"  where: {chosen.where}",
        f"  aggregation: {chosen.aggregation}",
        f"  The gradient of a token is exactly zero: {zone_words(verdict.dead) or 'nowhere'}.",
    ]
    if chosen.note:
        lines.append(f"  {chosen.note}")
    lines.append(f"  Instead: {remedy_words(known)}")
    return "\n".join(lines)
