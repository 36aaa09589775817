"""The registry of f-divergences: those with a name, and families of which every number is a member."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, lru_cache

import sympy

from kl_companion.checks import check_number, look_up, number
from kl_companion.divergences import families
from kl_companion.divergences.forms import Number, T, exact, label, simplest_fraction, tidy
from kl_companion.divergences.generator import Divergence, make_divergence

DIVERGENCES: dict[str, Divergence] = {}
# the source of the divergences that distillation uses
_GKD = "GKD, arXiv:2306.13649, section 2"
_DISTILLM = "DistiLLM, arXiv:2402.03898, section 3.1"


def register_divergence(
    name: str, f: sympy.Expr, *, source: str, derivative: sympy.Expr | None = None
) -> Divergence:
    """Make a divergence (see `make_divergence`) and add it to ``DIVERGENCES`` under ``name``.

    Raises:
        ValueError: as `make_divergence`, or the name is taken by another generator.
    """
    divergence = make_divergence(name, f, source=source, derivative=derivative)
    if name in DIVERGENCES and DIVERGENCES[name].f != divergence.f:
        taken = DIVERGENCES[name].f
        raise ValueError(f"divergence {name!r} is registered already, as f = {taken}: expected a new name")
    DIVERGENCES[name] = divergence
    return divergence


def _parameter(name: str, x: Number) -> sympy.Expr:
    """Return the parameter of a family as an exact number; ValueError for what is no finite number."""
    check_number(name, x)
    if isinstance(x, float) and not math.isfinite(x):
        raise ValueError(f"{name} is {x}, expected a finite number")
    return exact(x)


def _share(name: str, x: Number, *, below: bool = False) -> sympy.Expr:
    share = _parameter(name, x)
    if not (0 <= share < 1 or (share == 1 and not below)):
        raise ValueError(f"{name} is {x}, expected a number from 0 to {'below ' * below}1")
    return share


@lru_cache(maxsize=None, typed=True)
def amari_alpha(alpha: Number) -> Divergence:
    """Amari's alpha-divergence, f = 4/(1 - alpha^2) (1 - t^((1 + alpha)/2)), normalized (emapg2026, table 6).

    Its limits alpha -> 1 and alpha -> -1 are reverse and forward KL. Curvature 1 for every alpha.

    Raises:
        ValueError: alpha is not a finite number.
    """
    a = _parameter("alpha", alpha)
    if a in (1, -1):
        return DIVERGENCES["reverse_kl" if a == 1 else "forward_kl"]
    e = (1 + a) / 2
    f = 4 / (1 - a**2) * (1 - T**e)
    return families.power(f"amari_alpha({label(a)})", e, f, "emapg2026, table 6")


@lru_cache(maxsize=None, typed=True)
def power_divergence(a: Number) -> Divergence:
    """The same family by its exponent, f = (t^a - 1 - a (t - 1)) / (a (a - 1)) (emapg2026, table 5).

    ``power_divergence(a)`` is ``amari_alpha(2 a - 1)``; its limits a -> 1 and a -> 0 are reverse and
    forward KL.

    Raises:
        ValueError: the exponent is not a finite number.
    """
    e = _parameter("the exponent", a)
    if e in (0, 1):
        return DIVERGENCES["reverse_kl" if e == 1 else "forward_kl"]
    f = (T**e - 1 - e * (T - 1)) / (e * (e - 1))
    return families.power(f"power_divergence({label(e)})", e, f, "emapg2026, table 5")


@lru_cache(maxsize=None, typed=True)
def generalized_jensen_shannon(beta: Number) -> Divergence:
    """Return the Jensen-Shannon divergence of GKD: beta KL(reference || m) + (1 - beta) KL(policy || m).

    The mixture is m = beta reference + (1 - beta) policy. In distillation the reference is the teacher and
    the policy the student, so that this is ``generalized_jsd_loss`` of TRL with the same ``beta``. Near the
    reference it is beta (1 - beta) times a KL, and it tends to 0 where beta tends to 0 or 1. There TRL
    computes a KL instead, and so does this function: beta = 0 is forward KL, KL(reference || policy), and
    beta = 1 reverse KL, KL(policy || reference), which are the limits of the divergence over beta and over
    1 - beta. beta = 1/2 is the Jensen-Shannon divergence.

    Args:
        beta: Share of the reference in the mixture, from 0 to 1.

    Raises:
        ValueError: beta is not such a number.
    """
    b = _share("beta", beta)
    if b in (0, 1):
        return DIVERGENCES["reverse_kl" if b == 1 else "forward_kl"]
    if b == sympy.Rational(1, 2):
        return DIVERGENCES["jensen_shannon"]
    return families.of_mixture(f"generalized_jensen_shannon({label(b)})", b, _GKD)


@lru_cache(maxsize=None, typed=True)
def skewed_forward_kl(skew: Number) -> Divergence:
    """Return the skew KL of DistiLLM, KL(reference || skew reference + (1 - skew) policy).

    It is finite where the policy has no probability. Skew 0 is forward KL.

    Args:
        skew: Share of the reference in the mixture, from 0 to below 1; DistiLLM's alpha, 0.1 there.

    Raises:
        ValueError: skew is not such a number.
    """
    share = _share("skew", skew, below=True)
    if share == 0:
        return DIVERGENCES["forward_kl"]
    return families.skewed_forward(f"skewed_forward_kl({label(share)})", share, _DISTILLM)


@lru_cache(maxsize=None, typed=True)
def skewed_reverse_kl(skew: Number) -> Divergence:
    """Return the skew reverse KL of DistiLLM, KL(policy || skew policy + (1 - skew) reference).

    It is finite where the reference has no probability. Skew 0 is reverse KL.

    Args:
        skew: Share of the policy in the mixture, from 0 to below 1; DistiLLM's alpha, 0.1 there.

    Raises:
        ValueError: skew is not such a number.
    """
    share = _share("skew", skew, below=True)
    if share == 0:
        return DIVERGENCES["reverse_kl"]
    return families.skewed_reverse(f"skewed_reverse_kl({label(share)})", share, _DISTILLM)


FAMILIES: dict[str, Callable[..., Divergence]] = {
    "amari_alpha": amari_alpha,
    "power_divergence": power_divergence,
    "generalized_jensen_shannon": generalized_jensen_shannon,
    "skewed_forward_kl": skewed_forward_kl,
    "skewed_reverse_kl": skewed_reverse_kl,
    "skewed_kl": skewed_forward_kl,  # as DistiLLM's paper calls it
}


def get_divergence(name: str | Divergence) -> Divergence:
    """The divergence of that name; families take a number: ``"amari_alpha(0.3)"``, ``"skewed_kl(1/10)"``.

    Raises:
        ValueError: unknown name (the known ones and the nearest are listed).
    """
    if isinstance(name, Divergence):
        return name
    members = {family: lambda text, family=family: _member(family, text) for family in FAMILIES}
    return look_up("divergence", name, DIVERGENCES, members)


def _member(family: str, text: str) -> Divergence:
    x = number(family, text)
    fraction = Fraction(text) if "/" in text else simplest_fraction(x)  # 0.3333333333333333 is 1/3
    return FAMILIES[family](sympy.Rational(fraction.numerator, fraction.denominator))


# what torch.compiler.assume_constant_result sets, without loading the compiler: it cannot trace SymPy
_member._dynamo_marked_constant = True  # type: ignore[attr-defined]


def inverse_slope(divergence: Divergence) -> sympy.Expr:
    """(f')^{-1}: the positive t with f'(t) = s, on the branch with t = 1 at s = 0. Symbol ``s``.

    Raises:
        ValueError: f' has no inverse (total variation).
    """
    return divergence.inverse_slope


register_divergence("reverse_kl", T * sympy.log(T), source="tang2025pitfalls, section 2")
register_divergence("forward_kl", -sympy.log(T), source="tang2025pitfalls, section 3")
register_divergence(
    "jensen_shannon",
    (T * sympy.log(T) - (T + 1) * sympy.log((T + 1) / 2)) / 2,
    source="emapg2026, table 5",
)
register_divergence("squared_hellinger", (sympy.sqrt(T) - 1) ** 2 / 2, source="emapg2026, table 5")
register_divergence("pearson", (T - 1) ** 2, source="emapg2026, table 5")
register_divergence("neyman", (T - 1) ** 2 / T, source="emapg2026, table 6")
register_divergence(
    "total_variation",
    sympy.Abs(T - 1) / 2,
    source="emapg2026, table 5",
    derivative=sympy.sign(T - 1) / 2,
)
DIVERGENCES["amari_alpha(0.5)"] = amari_alpha(0.5)
DIVERGENCES["power_divergence(1.5)"] = power_divergence(1.5)


@cache
def swapped(d: Divergence) -> Divergence:
    """The divergence with its arguments exchanged: its gradient by the first is that of d by the second."""
    for other in (d, *DIVERGENCES.values()):
        if tidy(other.f - d.dual) == 0:
            return other
    return make_divergence(f"swapped {d.name}", d.dual, source=d.source)
