"""Section 1: the two directions of the KL, and three choices around them (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.ground.errors import apart, less, violation, worst
from kl_book.ledger.claims.ground.off_policy import average, in_loss, in_reward, mean_gradient
from kl_book.ledger.claims.ground.sums import exact, forward_kl, reverse_kl
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, worlds
from kl_companion.tabular import Problem


class Fit(NamedTuple):
    """A Gaussian fitted to a mixture, and how it lies beside it.

    Attributes:
        smaller_side: Its mass on the smaller side of 0.
        on_modes: E_q[log p], how probable its own samples are under the mixture.
        covers: E_p[log q], how probable the mixture's samples are under it.
    """

    smaller_side: float
    on_modes: float
    covers: float


@cache
def _gaussian_fits(apart_by: float) -> tuple[Fit, Fit]:
    """The best Gaussian by reverse KL and by forward KL, for .6 N(-a, .6^2) + .4 N(a, .6^2).

    Forward KL matches the mean and the variance; reverse KL is integrated on a grid, and minimized on grids
    of means and scales that zoom in.
    """
    x = torch.linspace(-15, 15, 1001, dtype=torch.float64)
    parts = torch.stack([-((x + side * apart_by) ** 2) / (2 * 0.36) for side in (1, -1)])
    log_p = torch.logsumexp(parts + torch.tensor([[0.6], [0.4]]).double().log(), 0)
    log_p = log_p - torch.trapezoid(log_p.exp(), x).log()
    steps = torch.linspace(-1, 1, 25, dtype=torch.float64)
    center, log_scale, width = 0.0, 0.0, 4.0
    for _ in range(12):
        m, s = (center + width * steps)[:, None, None], (log_scale + width / 3 * steps)[None, :, None]
        log_q = _normal(x, m, s)
        i, j = divmod(int(torch.trapezoid(log_q.exp() * (log_q - log_p), x).argmin()), len(steps))
        center, log_scale, width = float(m[i]), float(s[0, j]), width / 4
    mean_p = float(torch.trapezoid(log_p.exp() * x, x))
    square = float(torch.trapezoid(log_p.exp() * (x - mean_p) ** 2, x))
    found = []
    for middle, spread in ((center, math.exp(log_scale)), (mean_p, math.sqrt(square))):
        log_q = _normal(x, torch.tensor(middle), torch.tensor(spread).log())
        on_modes = float(torch.trapezoid(log_q.exp() * log_p, x))
        covers = float(torch.trapezoid(log_p.exp() * log_q, x))
        found.append(Fit(0.5 * math.erfc(abs(middle) / spread / math.sqrt(2)), on_modes, covers))
    return found[0], found[1]


def _normal(x: torch.Tensor, center: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
    """Log-density of a Gaussian."""
    return -((x - center) ** 2) / 2 * torch.exp(-2 * log_scale) - log_scale - 0.5 * math.log(2 * math.pi)


@claim("WZ-1.1-directions")
def one_direction_seeks_a_mode_the_other_covers() -> Iterator[Found]:
    """Gaussians fitted to two modes: reverse KL puts them where the mixture is, forward KL spans it."""
    errors = []
    for apart_by in (0.5, 1.0, 1.5, 2.5, 4.0):
        reverse, forward = _gaussian_fits(apart_by)
        errors += [less(forward.on_modes, reverse.on_modes), less(reverse.covers, forward.covers)]
    (near, _), (seeking, covering) = _gaussian_fits(0.5), _gaussian_fits(2.5)
    errors += [violation(seeking.smaller_side - 0.01), violation(0.3 - covering.smaller_side)]
    yield from each_form(
        worst(errors),
        smaller_side=seeking.smaller_side,
        smaller_side_2=covering.smaller_side,
        smaller_side_3=near.smaller_side,
    )


def _both(logp: torch.Tensor, ref_logp: torch.Tensor) -> tuple[float, float]:
    """KL(q||p) and KL(p||q), the first argument being q."""
    return float(reverse_kl(logp, ref_logp)), float(forward_kl(logp, ref_logp))


@claim("WZ-1.1-rlhf")
def reverse_kl_forbids_to_stray_and_not_to_leave_out() -> Iterator[Found]:
    """How common a choice is, and why it is made, is not computed; what each direction forbids is."""
    even, most = (torch.tensor(x).double().log() for x in ([0.5, 0.5], [1.0, 0.0]))
    left_out, strayed = (
        [f"{x:.3f}" if math.isfinite(x) else "infinite" for x in _both(*pair)]
        for pair in ((most, even), (even, most))
    )
    yield numbers(left_out_0=left_out[0], left_out_1=left_out[1], strayed_0=strayed[0], strayed_1=strayed[1])


def _right(how: str, direction: str, problems: tuple[Problem, ...]) -> frozenset[str]:
    """Which of k1, k2, k3 have the gradient of the KL in this direction as their mean, in every world."""
    divergence = reverse_kl if direction == "reverse" else forward_kl

    def found(name: str, problem: Problem) -> torch.Tensor:
        if how == "naive":
            return mean_gradient(name, problem)
        return average(in_reward(name, problem) if how == "reward" else in_loss(name, problem), problem)

    return frozenset(
        name
        for name in ("k1", "k2", "k3")
        if worst(apart(found(name, p), exact(divergence, p)[1]) for p in problems) < 1e-9
    )


@claim("WZ-1.2-three-choices")
def each_choice_changes_the_estimate() -> Iterator[Found]:
    """On-policy, reverse KL, differentiated: k2. Another sampler, direction or use: other estimates."""
    before = _right("naive", "reverse", worlds())
    others = {
        "samples of mu": _right("naive", "reverse", sampled_elsewhere()),
        "samples of mu, with rho": _right("rho", "reverse", sampled_elsewhere()),
        "KL(p||q)": _right("naive", "forward", worlds()),
        "in the reward": _right("reward", "reverse", worlds()),
    }
    text = "; ".join(f"{what}: {', '.join(sorted(right)) or 'none'}" for what, right in others.items())
    yield from each_form(
        float(not before) + float(sum(right == before for right in others.values())),
        number=", ".join(sorted(before)),
        text=text,
    )
