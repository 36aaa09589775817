"""Section 1: the two directions of the KL, and three choices around them (wang2025choosing)."""

from __future__ import annotations

import math
from functools import cache

import torch

from kl_companion.claims.ledger import Evidence, claim, violation
from kl_companion.claims.off_policy import average, in_loss, in_reward, naive, sampled_elsewhere
from kl_companion.claims.worlds import (
    apart,
    exact,
    forward_kl,
    less,
    reverse_kl,
    worlds,
    worst,
)
from kl_companion.tabular import Problem


@cache
def _gaussian_fit(apart_by: float) -> tuple[float, float]:
    """Mass on the smaller side of 0 of the best Gaussian by reverse KL, and by forward KL.

    The target is .6 N(-a, .6^2) + .4 N(a, .6^2). Forward KL matches its mean and variance; reverse KL
    is integrated on a grid, and minimized on grids of means and scales that zoom in.
    """
    x = torch.linspace(-15, 15, 1001, dtype=torch.float64)
    parts = torch.stack([-((x + side * apart_by) ** 2) / (2 * 0.36) for side in (1, -1)])
    log_p = torch.logsumexp(parts + torch.tensor([[0.6], [0.4]]).double().log(), 0)  # up to a constant
    steps = torch.linspace(-1, 1, 25, dtype=torch.float64)
    center, log_scale, width = 0.0, 0.0, 4.0
    for _ in range(12):
        m, s = (center + width * steps)[:, None, None], (log_scale + width / 3 * steps)[None, :, None]
        log_q = -((x - m) ** 2) / 2 * torch.exp(-2 * s) - s - 0.5 * math.log(2 * math.pi)
        i, j = divmod(int(torch.trapezoid(log_q.exp() * (log_q - log_p), x).argmin()), len(steps))
        center, log_scale, width = float(m[i]), float(s[0, j]), width / 4
    mean_p = float(torch.trapezoid(log_p.exp() * x, x) / torch.trapezoid(log_p.exp(), x))
    square = float(torch.trapezoid(log_p.exp() * (x - mean_p) ** 2, x) / torch.trapezoid(log_p.exp(), x))
    fits = (center, math.exp(log_scale)), (mean_p, math.sqrt(square))
    seeking, covering = (0.5 * math.erfc(abs(m) / s / math.sqrt(2)) for m, s in fits)
    return seeking, covering


@claim("WZ-1.1-directions")
def one_direction_seeks_a_mode_the_other_covers() -> Evidence:
    """A Gaussian fitted to two far modes sits on one or spans both; a free policy fits both modes exactly."""
    seeking, covering = _gaussian_fit(2.5)
    close, _ = _gaussian_fit(0.5)
    farther = _gaussian_fit(4.0)
    inside = violation(seeking - 0.01, 0.3 - covering, farther[0] - seeking, 0.3 - farther[1])
    free = 0.4  # both divergences vanish at the target itself, whose smaller mode has this mass
    return Evidence(
        max(inside, violation(close - 0.01, free - 0.01)),
        inside=inside,
        condition=(
            "the policy cannot represent the reference, and its modes lie far apart; a policy that can "
            "represent it is at the same minimum under both, and differs only once a reward pulls"
        ),
        counterexample=(
            f"modes .6 N(-a, .6^2) and .4 N(a, .6^2): at a = 2.5 the Gaussian of least reverse KL has mass "
            f"{seeking:.5f} beside the smaller mode and that of forward KL {covering:.3f}; at a = 0.5 "
            "reverse "
            f"KL has {close:.3f} there, and any policy with one free number per outcome {free:.3f} under both"
        ),
    )


def _both(logp: torch.Tensor, ref_logp: torch.Tensor) -> tuple[float, float]:
    """KL(q||p) and KL(p||q), the first argument being q."""
    return float(reverse_kl(logp, ref_logp)), float(forward_kl(logp, ref_logp))


@claim("WZ-1.1-rlhf")
def reverse_kl_forbids_to_stray_and_not_to_leave_out() -> Evidence:
    """Without an arm of p reverse KL is bounded and forward KL is not; beyond p it is the other way round."""
    errors, even = [], torch.tensor([0.5, 0.5]).double().log()
    for gone in (1e-3, 1e-6, 0.0):
        most = torch.tensor([1 - gone, gone]).double().log()
        reverse, forward = _both(most, even)  # the policy leaves an arm of the reference out
        errors += [violation(reverse - math.log(2)), less(0.0, reverse)]
        errors.append(less(-0.3 * math.log(max(gone, 1e-300)), forward))
        reverse, forward = _both(even, most)  # the policy strays to what the reference hardly does
        errors += [less(-0.3 * math.log(max(gone, 1e-300)), reverse), violation(forward - math.log(2))]
    return Evidence(
        worst(errors),
        condition=(
            "checked is the reason, not how common the choice is: a policy that leaves out half of p has "
            "KL(q||p) = log 2 and no finite KL(p||q); one that puts half of its mass where p has none, the "
            "other way round"
        ),
    )


def _right(how: str, direction: str, problems: tuple[Problem, ...]) -> frozenset[str]:
    """Which of k1, k2, k3 have the gradient of the KL in this direction as their mean, in every world."""
    divergence = reverse_kl if direction == "reverse" else forward_kl

    def found(name: str, problem: Problem) -> torch.Tensor:
        if how == "naive":
            return naive(name, problem)
        return average(in_reward(name, problem) if how == "reward" else in_loss(name, problem), problem)

    return frozenset(
        name
        for name in ("k1", "k2", "k3")
        if worst(apart(found(name, p), exact(divergence, p)[1]) for p in problems) < 1e-9
    )


@claim("WZ-1.2-three-choices")
def each_choice_changes_the_estimate() -> Evidence:
    """On-policy, reverse KL, differentiated: k2. Another sampler, direction or use: other estimates."""
    before = _right("naive", "reverse", worlds())
    others = {
        "samples of mu": _right("naive", "reverse", sampled_elsewhere()),
        "samples of mu, with rho": _right("rho", "reverse", sampled_elsewhere()),
        "KL(p||q)": _right("naive", "forward", worlds()),
        "in the reward": _right("reward", "reverse", worlds()),
    }
    text = "; ".join(f"{what}: {', '.join(sorted(right)) or 'none'}" for what, right in others.items())
    return Evidence(
        float(not before) + float(sum(right == before for right in others.values())),
        condition=f"right of k1, k2, k3 as a plain loss on-policy: {', '.join(sorted(before))}; {text}",
    )
