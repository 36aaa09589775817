"""A loss of a release as two lines of plain PyTorch, and a script that shows its expected gradient."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

from kl_companion.auditing.reading.precision import exactly
from kl_companion.auditing.repair.remedies import lines_for
from kl_companion.divergences import get_divergence
from kl_companion.frameworks.shipped import Loss
from kl_companion.rollout import Rollout

ALONE = (sys.executable, "-I")  # a Python that sees what is installed and nothing of the folder it runs in
FARTHEST = 30.0  # the largest |log(ref/pi)| at which formulas are compared
_SIZES = (0.0, 0.3, 1.0, 2.5, 2.7, 4.0, 4.6, 8.0, 10.5, 12.0, 19.0, 21.0, FARTHEST)
_STALE = (0.0, 0.1, -0.1)  # log(mu/pi), within the usual clips of the ratio
_LOGPS = (-0.5, -3.0)
_CLOSE = 1e-9
_LOG_RATIOS = (
    "ref_logp - logp",
    "(ref_logp - logp).clamp(-20, 20)",
    "ref_logp - behavior_logp",
)  # last: reward
_BASES = ("-d", "0.5 * d**2", "d.exp() - d - 1", "d.abs()")  # k1, k2, k3
_RATIOS = ("", "(logp - behavior_logp).exp() * ", "(logp - logp.detach()).exp() * ")
_CLAMPS = ("{}({})", "{}({}).clamp(-10, 10)", "({}({})).clamp(-10, 10)")  # of a ratio and a base
# logits of three tokens under policy and reference, near each other and far
_LOGITS = (("[1.0, 0.0, -1.0]", "[-0.5, 0.5, 0.0]"), ("[0.0, -1.0, -5.0]", "[-1.0, -6.0, 0.5]"))
GRADIENTS = {
    "reverse_kl": ("KL(policy || reference)", "logp.exp() * (logp - ref_logp)"),
    "forward_kl": ("KL(reference || policy)", "ref_logp.exp() * (ref_logp - logp)"),
}
_SCRIPT = """\
import torch

logits = torch.tensor({policy}, dtype=torch.float64, requires_grad=True)  # of three tokens
ref_logp = torch.tensor({reference}, dtype=torch.float64).log_softmax(-1)
logp = logits.log_softmax(-1)
behavior_logp = logp.detach()  # the policy itself has sampled
{formula}  # of each token, when it is sampled

def gradient(x):
    (found,) = torch.autograd.grad(x.sum(), logits, retain_graph=True)
    return [round(g, 4) + 0.0 for g in found.tolist()]

print("expected gradient of the loss:", gradient(behavior_logp.exp() * loss))
{promises}
{change}
print("expected gradient with the change below:", gradient(behavior_logp.exp() * kl))
"""


def _formulas() -> list[str]:
    """Losses of one token in two lines, the shortest first."""
    found = {
        f"d = {d}\nloss = {clamp.format(ratio, base) if ratio + clamp != _CLAMPS[0] else base}"
        for d, base, ratio, clamp in product(_LOG_RATIOS, _BASES, _RATIOS, _CLAMPS)
        if "behavior" not in d or "behavior" in ratio  # in a reward it needs the ratio to have a gradient
    }
    return sorted(found, key=lambda text: (len(text), text))


def _answers(points: torch.Tensor) -> Rollout:
    """Answers of one token: [count, 3] of its log-probs under policy, reference and sampler."""
    policy, reference, sampler = torch.stack([points, torch.log(-torch.expm1(points))], -1).unbind(1)
    return Rollout.from_logits(
        torch.zeros(len(points), 1, dtype=torch.long),
        torch.ones(len(points), 1, dtype=points.dtype),
        policy.unsqueeze(1).requires_grad_(),
        reference.unsqueeze(1),
        behavior_logits=sampler.unsqueeze(1),
    )


def _value_and_slope(loss: Callable[[Rollout], torch.Tensor], points: torch.Tensor) -> torch.Tensor:
    """Of each answer, [count, 2]; a loss that is a mean over answers is asked for one at a time."""
    rollout = _answers(points)
    found = loss(rollout).reshape(-1)
    slope = None
    if found.requires_grad and rollout.logits is not None:
        (slope,) = torch.autograd.grad(found.sum(), rollout.logits, allow_unused=True)
    return torch.stack([found.detach(), torch.zeros_like(found) if slope is None else slope[:, 0, 0]], -1)


def _evaluated(formula: str, rollout: Rollout) -> torch.Tensor:
    names: dict[str, Any] = {"logp": rollout.logp, "ref_logp": rollout.ref_logp}
    exec(formula, names := names | {"behavior_logp": rollout.sampled_from})
    found: torch.Tensor = names["loss"]
    return found


def formula_of(loss: Loss) -> str:
    """The two lines with the value and the gradient of a loss, token by token; "" where none of them has.

    They are compared on answers of one token at log-ratios from -30 to 30, on fresh and on stale samples.
    """
    signed = sorted({sign * size for size in _SIZES for sign in (1, -1)})
    each = [
        (at - max(x, 0), at - max(x, 0) + x, at - max(x, 0) + stale)
        for x, stale, at in product(signed, _STALE, _LOGPS)
    ]
    points = torch.tensor(each, dtype=torch.float64)
    exact = exactly(loss)
    theirs = torch.cat([_value_and_slope(exact, point) for point in points.split(1)])
    for formula in _formulas():
        ours = _value_and_slope(partial(_evaluated, formula), points)
        if torch.allclose(ours, theirs, rtol=_CLOSE, atol=_CLOSE):
            return formula
    return ""


def reproduction(formula: str, promise: str) -> tuple[str, str] | None:
    """A script that needs torch alone, and what it printed; None where it shows no other gradient.

    Where the gradient near the reference is the promised one, it is looked at far from it.

    Args:
        formula: As `formula_of` returns it.
        promise: One of `GRADIENTS`.
    """
    for policy, reference in _LOGITS:
        script = _SCRIPT.format(
            policy=policy,
            reference=reference,
            formula=formula,
            promises="\n".join(f'print("gradient of {n}:", gradient({x}))' for n, x in GRADIENTS.values()),
            change="\n".join(lines_for(get_divergence(promise), "token")),
        )
        output = subprocess.run([*ALONE, "-c", script], capture_output=True, text=True, check=True).stdout
        gradient = dict(
            zip(("loss", *GRADIENTS), (x.partition(":")[2] for x in output.splitlines()), strict=False)
        )
        if gradient["loss"] != gradient[promise]:
            return script, output
    return None
