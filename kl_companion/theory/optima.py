"""Optimal policies of regularized rewards: the maximizers of E[r] - beta D_f(policy || reference).

At the maximum r(y) - beta f'(t) is one number, the multiplier, for every y that keeps any mass, with
t = policy / reference; and at least r(y) - beta f'(0+) is not above it for every y that keeps none. One
number per distribution is unknown. It is not sought directly: near either end of f' the rounding of a
multiplier is worth a whole distribution, so the unknown is the ratio t of one token, the best one first
and then the one whose mass follows the multiplier most closely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import sympy
import torch

from kl_companion.checks import check_choice, check_distribution, check_floating, check_number
from kl_companion.divergences import Divergence, T, get_divergence
from kl_companion.theory.slopes import Slope, slope_of

Outside = Literal["forbidden", "allowed"]
OUTSIDE: tuple[Outside, ...] = ("forbidden", "allowed")
MOST_STEPS = 200


class OptimalPolicy(NamedTuple):
    """The maximizer of E[r] - beta D_f(policy || reference).

    Attributes:
        logp: Its log-probs, [..., vocab] float64; -inf where it has no mass.
        multiplier: r - beta f'(t), the same number for every token with mass, [...]; f'(1) = 0. With
            reverse KL it is beta log sum ref exp(r / beta), which is also the largest value of the
            objective. With forward KL, policy = beta ref / (multiplier + beta - r): the dual variable
            lambda* of tang2025pitfalls, section 3.1, and the Z* of emapg2026, eq (131), are
            multiplier + beta, and exceed every reward.
    """

    logp: torch.Tensor
    multiplier: torch.Tensor


class MultiplierRange(NamedTuple):
    """Which multipliers belong to a policy, [...] each.

    Attributes:
        above: A multiplier must exceed this, max r - beta f'(infinity); -inf where f' has no upper end.
        interior: Below this one, min r - beta f'(0+), no token is clipped to zero; inf where f'(0+) is -inf.
    """

    above: torch.Tensor
    interior: torch.Tensor


@torch.no_grad()
def optimal_policy(
    rewards: torch.Tensor,
    ref_logp: torch.Tensor,
    divergence: str | Divergence = "reverse_kl",
    beta: float | torch.Tensor = 1.0,
    *,
    outside: Outside = "forbidden",
) -> OptimalPolicy:
    """The policy that maximizes E[r] - beta D_f(policy || reference), in float64 and without gradient.

    Args:
        rewards: [..., vocab].
        ref_logp: Normalized log-probs of the reference, [..., vocab]; -inf where it has no mass.
        divergence: A registered name or a `Divergence`. Smooth ones are solved for, total variation is
            known: from every token that is more than beta below the best, all mass goes to the best.
        beta: Coefficient, a number or [...].
        outside: Whether the policy may use tokens that the reference does not. ``"forbidden"`` is a masked
            vocabulary. ``"allowed"`` is what the objective itself says: where a unit of mass outside costs
            the finite f'(infinity) (all but reverse KL, Pearson and power divergences of exponent > 1),
            the best reward outside can be worth it.

    Returns:
        `OptimalPolicy`; batch axes broadcast. Tokens clipped to zero have -inf. Where several policies are
        optimal (total variation, equal best rewards) the mass is shared in proportion to the reference.

    Raises:
        ValueError: unknown divergence or one with another kink than total variation's, shapes that do not
            go together, a reference that is not normalized, rewards that are not finite, a beta that is
            not positive, or numbers out of the range of float64.

    Source: tang2025pitfalls, section 3.1; emapg2026, eqs (129), (132), (137) and table 6, with the
    clipping that (137) leaves out.
    """
    d = get_divergence(divergence)
    check_choice("outside", outside, OUTSIDE)
    r, q, scale = _checked(rewards, ref_logp, beta)
    if not d.smooth:
        return _total_variation(d, r, q, scale, outside)
    if d.name == "reverse_kl":
        scores = q + r / scale
        total = scores.logsumexp(-1, keepdim=True)
        return OptimalPolicy(scores - total, (scale * total).squeeze(-1))
    slope = slope_of(d)
    off = q.isneginf()
    best = r.masked_fill(off, -torch.inf).argmax(-1, keepdim=True)
    # tokens outside the support get a harmless reward: their slopes are computed too
    inside = torch.where(off, r.gather(-1, best), r)
    u, x = _solve_from_the_top(slope, q, (inside - r.gather(-1, best)) / scale, best)
    u, x, pivot = _solve_from_the_pivot(slope, q, inside, scale, best, u, x)
    mass = q + u
    multiplier = r.gather(-1, pivot) - scale * (x + slope.origin)
    logp = mass - mass.logsumexp(-1, keepdim=True)
    if outside == "allowed" and slope.origin == slope.ceiling:
        logp, multiplier = _with_outside(slope, r, q, scale, logp, multiplier)
    if logp.isnan().any() or not multiplier.isfinite().all():
        raise ValueError("the multiplier was not found: rewards and beta are out of the range of float64")
    return OptimalPolicy(logp, multiplier.squeeze(-1))


def multiplier_range(
    rewards: torch.Tensor,
    ref_logp: torch.Tensor,
    divergence: str | Divergence,
    beta: float | torch.Tensor = 1.0,
) -> MultiplierRange:
    """The multipliers for which `policy_at` is a policy up to its normalization, and has no zero.

    Both ends hold for *every* token of the reference's support at once: it is the largest and the smallest
    reward that count (emapg2026, table 7, column "ranges").

    Args and errors: as `optimal_policy`.
    """
    slope = slope_of(get_divergence(divergence))
    return _range(slope, *_checked(rewards, ref_logp, beta))


def _range(slope: Slope, r: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> MultiplierRange:
    no_mass = q.isneginf()
    highest = r.masked_fill(no_mass, -torch.inf).amax(-1) - scale.squeeze(-1) * slope.ceiling
    lowest = r.masked_fill(no_mass, torch.inf).amin(-1) - scale.squeeze(-1) * slope.floor
    return MultiplierRange(highest, lowest)


def policy_at(
    multiplier: float | torch.Tensor,
    rewards: torch.Tensor,
    ref_logp: torch.Tensor,
    divergence: str | Divergence,
    beta: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """log of ref (f')^{-1}((r - multiplier)/beta), [..., vocab] float64: sums to one at the optimum only.

    Args:
        multiplier: A number or [...].
        rewards: [..., vocab].
        ref_logp: Normalized log-probs of the reference, [..., vocab].
        divergence: A smooth one.
        beta: Coefficient, a number or [...].

    Raises:
        ValueError: as `optimal_policy`, or a multiplier for which a slope above f'(infinity) is asked for.

    Source: emapg2026, eq (137).
    """
    slope = slope_of(get_divergence(divergence))
    r, q, scale = _checked(rewards, ref_logp, beta)
    level = torch.as_tensor(multiplier, dtype=torch.float64).unsqueeze(-1)
    above, _ = _range(slope, r, q, scale)
    wrong = ~(level.squeeze(-1) > above)
    if wrong.any():
        got, least = (y.expand(wrong.shape)[wrong][0].item() for y in (level.squeeze(-1), above))
        raise ValueError(
            f"multiplier is {got:.6g}, expected more than {least:.6g} (the largest reward minus beta "
            f"f'(infinity)): no ratio t has the slope that {got:.6g} asks for"
        )
    return (q + slope.log_of((r - level) / scale - slope.origin)).masked_fill(q.isneginf(), -torch.inf)


def _checked(
    rewards: torch.Tensor, ref_logp: torch.Tensor, beta: float | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rewards and log-reference [..., vocab] and beta [..., 1], broadcast, in float64."""
    check_floating("rewards", rewards)
    check_distribution("ref_logp", ref_logp)
    if not isinstance(beta, torch.Tensor):
        check_number("beta", beta)
    scale = torch.as_tensor(beta, dtype=torch.float64)
    if rewards.ndim == 0 or rewards.shape[-1] != ref_logp.shape[-1]:
        raise ValueError(
            f"rewards has shape {list(rewards.shape)}, expected [..., {ref_logp.shape[-1]}] like ref_logp "
            f"{list(ref_logp.shape)}"
        )
    if not rewards.isfinite().all():
        raise ValueError("rewards is not finite, expected a number for every token")
    if not (scale.isfinite() & (scale > 0)).all():
        raise ValueError(f"beta is {beta}, expected positive numbers: it is divided by")
    try:
        batch = torch.broadcast_shapes(rewards.shape[:-1], ref_logp.shape[:-1], scale.shape)
    except RuntimeError:
        raise ValueError(
            f"rewards {list(rewards.shape)}, ref_logp {list(ref_logp.shape)} and beta {list(scale.shape)} do "
            "not go together, expected [..., vocab], [..., vocab] and [...]"
        ) from None
    shape = (*batch, ref_logp.shape[-1])
    r, q = rewards.double().expand(shape), ref_logp.double().expand(shape)
    return r, q, scale.expand(batch).unsqueeze(-1)


def _solve_from_the_top(
    slope: Slope, q: torch.Tensor, below: torch.Tensor, best: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """log t of every token and the slope of the best one, whose t lies between 1 and 1 over its reference."""

    def log_mass(u: torch.Tensor) -> torch.Tensor:
        return (q + slope.log_of(slope.of_log(u) + below)).exp().sum(-1, keepdim=True).log()

    zero = torch.zeros_like(q[..., :1])
    u = increasing_root(log_mass, zero, -q.gather(-1, best))
    x = slope.of_log(u)
    return slope.log_of(x + below), x


def _solve_from_the_pivot(
    slope: Slope,
    q: torch.Tensor,
    r: torch.Tensor,
    scale: torch.Tensor,
    best: torch.Tensor,
    u: torch.Tensor,
    x: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same, with the slope of the token as unknown whose mass follows it most closely."""
    follows = q + u - slope.log_stiffness(u.clamp(min=-600.0, max=600.0))
    pivot = follows.masked_fill(q.isneginf() | ~u.isfinite(), -torch.inf).argmax(-1, keepdim=True)
    if torch.equal(pivot, best):
        return u, x, best
    apart = (r - r.gather(-1, pivot)) / scale
    start = x - apart.gather(-1, best)

    def log_mass(z: torch.Tensor) -> torch.Tensor:
        return (q + slope.log_of(z + apart)).exp().sum(-1, keepdim=True).log()

    width = 2.0**-44 * (1 + x.abs() + apart.gather(-1, best).abs())
    low, high = start - width, start + width
    # the first solution is off by rounding: widen the bracket until it contains the root
    for _ in range(MOST_STEPS):
        short, long = log_mass(low) > 0, log_mass(high) < 0
        if not (short | long).any():
            break
        low, high = torch.where(short, low - width, low), torch.where(long, high + width, high)
        width = 2 * width
    z = increasing_root(log_mass, low, high)
    return slope.log_of(z + apart), z, pivot


def increasing_root(
    function: Callable[[torch.Tensor], torch.Tensor], low: torch.Tensor, high: torch.Tensor
) -> torch.Tensor:
    """Where an increasing function is zero between ``low`` and ``high``, elementwise.

    Chandrupatla's rule: inverse quadratic interpolation where it can be trusted, halving elsewhere, so that
    infinite values and kinks cost steps and nothing else. An end is returned where no sign changes.

    Source: this book.
    """
    eps = torch.finfo(low.dtype).eps
    a, b = high, low
    fa, fb = function(a), function(b)
    outside_low, outside_high = fb >= 0, fa <= 0
    c, fc = b, fb
    t = torch.full_like(a, 0.5)
    for _ in range(MOST_STEPS):
        x = a + t * (b - a)
        fx = function(x)
        same = fx.sign() == fa.sign()
        c, fc = torch.where(same, a, b), torch.where(same, fa, fb)
        b, fb = torch.where(same, b, a), torch.where(same, fb, fa)
        a, fa = x, fx
        middle = torch.where(fa.abs() < fb.abs(), a, b)
        least = (2 * eps * middle.abs() + 1e-18) / (b - a).abs().clamp(min=1e-300)
        if ((least > 0.5) | (fa == 0) | outside_low | outside_high).all():
            break
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        step = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        trusted = (phi**2 < xi) & ((1 - phi) ** 2 < 1 - xi) & step.isfinite()
        limit = least.clamp(max=0.5)
        t = torch.where(trusted, step, 0.5).clamp(min=limit, max=1 - limit)
    root = torch.where(fa.abs() < fb.abs(), a, b)
    return torch.where(outside_low, low, torch.where(outside_high, high, root))


def _with_outside(
    slope: Slope,
    r: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    logp: torch.Tensor,
    multiplier: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mass to the best token outside the support, where a unit of it is worth more than its cost."""
    off = q.isneginf()
    prize = r.masked_fill(~off, -torch.inf).amax(-1, keepdim=True)
    inside = q + slope.log_of((r - prize) / scale)  # the slope of the tokens at multiplier prize - beta S
    kept = inside.masked_fill(off, -torch.inf).exp().sum(-1, keepdim=True)
    moves = (prize > -torch.inf) & (kept < 1)
    winners = off & (r == prize)
    share = ((1 - kept) / winners.sum(-1, keepdim=True)).log()
    moved = torch.where(winners, share, inside.masked_fill(off, -torch.inf))
    return torch.where(moves, moved, logp), torch.where(moves, prize - scale * slope.ceiling, multiplier)


def _total_variation(
    d: Divergence, r: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, outside: Outside
) -> OptimalPolicy:
    """f = c |t - 1|: a unit of mass costs 2 c beta to move, and only the best token is worth moving to."""
    cost = d.derivative.subs(T, 2)
    if sympy.simplify(d.f - cost * sympy.Abs(T - 1)) != 0:
        raise ValueError(
            f"{d.name!r} has a kink and is no multiple of total variation: expected a smooth divergence or "
            "total_variation"
        )
    off = q.isneginf()
    reach = r if outside == "allowed" else r.masked_fill(off, -torch.inf)
    best = reach.amax(-1, keepdim=True)
    price = scale * float(cost)
    # only what a move of mass gains strictly is moved
    left = (best - r > 2 * price) & ~off
    stays = q.masked_fill(left, -torch.inf).exp()
    winners = reach == best
    weight = torch.where(winners, q.exp(), 0.0)
    weight = torch.where(weight.sum(-1, keepdim=True) > 0, weight, winners.double())
    moved = q.masked_fill(~left, -torch.inf).exp().sum(-1, keepdim=True)
    policy = stays + moved * weight / weight.sum(-1, keepdim=True)
    return OptimalPolicy(policy.log(), (best - price).squeeze(-1))
