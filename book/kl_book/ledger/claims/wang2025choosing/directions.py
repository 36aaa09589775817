"""Section 1: the two directions of the KL and three choices; and the references (wang2025choosing)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, less, numbers, printed
from kl_book.ledger.claims.ground import errors, sums
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import sampled_elsewhere, worlds


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
    fits = []
    for middle, spread in ((center, math.exp(log_scale)), (mean_p, math.sqrt(square))):
        log_q = _normal(x, torch.tensor(middle), torch.tensor(spread).log())
        on_modes = float(torch.trapezoid(log_q.exp() * log_p, x))
        covers = float(torch.trapezoid(log_p.exp() * log_q, x))
        fits.append(Fit(0.5 * math.erfc(abs(middle) / spread / math.sqrt(2)), on_modes, covers))
    return fits[0], fits[1]


def _normal(x: torch.Tensor, center: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
    """Log-density of a Gaussian."""
    return -((x - center) ** 2) / 2 * torch.exp(-2 * log_scale) - log_scale - 0.5 * math.log(2 * math.pi)


@claim("WZ-1.1-directions")
def one_direction_seeks_a_mode_the_other_covers() -> Iterator[Found]:
    """Gaussians fitted to two modes: reverse KL puts them where the mixture is, forward KL spans it."""
    for apart_by in (0.5, 1.0, 1.5, 2.5, 4.0):
        reverse, forward = _gaussian_fits(apart_by)
        yield less(forward.on_modes, reverse.on_modes)
        yield less(reverse.covers, forward.covers)
    seeking, covering = (fit.smaller_side for fit in _gaussian_fits(2.5))
    yield less(seeking, 0.01, by=0.0)
    yield less(0.3, covering, by=0.0)
    yield numbers(seeking=seeking, covering=covering, near=_gaussian_fits(0.5)[0].smaller_side)


@claim("WZ-1.1-rlhf")
def reverse_kl_forbids_to_stray_and_not_to_leave_out() -> Iterator[Found]:
    """How common a choice is, and why it is made, is not computed; what each direction forbids is."""
    even, most = (torch.tensor(x).double().log() for x in ([0.5, 0.5], [1.0, 0.0]))
    for name, q, p in (("left_out", most, even), ("strayed", even, most)):
        sizes = {"reverse": float(sums.reverse_kl(q, p)), "forward": float(sums.forward_kl(q, p))}
        words = {k: f"{x:.3f}" if math.isfinite(x) else "infinite" for k, x in sizes.items()}
        yield numbers(**{f"{name}_{k}": x for k, x in words.items()})


def _right(
    gradient: Callable[[Enumeration, str], torch.Tensor], several: Iterator[Enumeration], direction: str
) -> str:
    """Which of k1, k2, k3 have the gradient of the KL in this direction as their mean, in every world."""
    every = list(several)
    right = [
        k
        for k in ("k1", "k2", "k3")
        if errors.worst(errors.apart(gradient(w, k), getattr(w, direction)) for w in every) < 1e-9
    ]
    return ", ".join(right) or "none"


@claim("WZ-1.2-three-choices")
def each_choice_changes_the_estimate() -> Iterator[Found]:
    """On-policy, reverse KL, differentiated: k2. Another sampler, direction or use: other estimates."""
    on, off = each(worlds), each(sampled_elsewhere)
    before = _right(Enumeration.grad, on(), "d_kl")
    others = {
        "elsewhere": _right(Enumeration.grad, off(), "d_kl"),
        "with_rho": _right(lambda w, k: w.E(w.in_loss(k)), off(), "d_kl"),
        "forward": _right(Enumeration.grad, on(), "d_forward"),
        "reward": _right(lambda w, k: w.E(w.in_reward(k)), on(), "d_kl"),
    }
    yield printed(float(before == "none") + float(sum(right == before for right in others.values())))
    yield numbers(before=before, **others)


LISTED = ("Yifan Zhang", "Yiping Ji", "Gavin Brown")
AUTHORS = ("Yifan Zhang", "Yifeng Liu", "Huizhuo Yuan", "Yang Yuan", "Quanquan Gu", "Andrew Chi-Chih Yao")
SHAH_LISTED = 8
SHAH = (
    *("Vedant Shah", "Johan Obando-Ceron", "Vineet Jain", "Brian Bartoldson", "Bhavya Kailkhura"),
    *("Sarthak Mittal", "Glen Berseth", "Pablo Samuel Castro", "Yoshua Bengio", "Nikolay Malkin"),
    *("Moksh Jain", "Siddarth Venkatraman", "Aaron Courville"),
)


@claim("WZ-refs")
def authors_of_the_listed_paper() -> Iterator[Found]:
    """Names in the list of references that are among the authors at arXiv:2505.17508."""
    right = [name for name in LISTED if name in AUTHORS]
    yield numbers(count=len(AUTHORS), authors=AUTHORS, listed=len(LISTED), right=len(right), names=right)


@claim("WZ-refs-shah")
def authors_of_the_other_listed_paper() -> Iterator[Found]:
    """The list of references ends after eight of the authors, without saying that there are more."""
    yield numbers(count=len(SHAH), listed=SHAH_LISTED, others=SHAH[SHAH_LISTED:])
