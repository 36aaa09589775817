"""f-divergences: only f is typed in, everything else about a divergence is derived from it.

Convention, everywhere in the package: ``D_f(P || Q) = sum_y Q(y) f(P(y) / Q(y))`` with P the policy
and Q the reference, t = P/Q = 1/w, f(1) = 0 and f normalized to f'(1) = 0. So ``reverse_kl`` is
KL(policy || reference) and ``forward_kl`` is KL(reference || policy). Adding c (t - 1) to f changes no
divergence, hence the normalization is free; the *scale* of f is never touched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

import sympy

from kl_companion.checks import check_number, look_up, number

SUPPORT = "expected one support, or a divergence that is finite without it"  # in messages of several modules
T = sympy.Symbol("t", positive=True)
W = sympy.Symbol("w", positive=True)


def tidy(expr: sympy.Expr) -> sympy.Expr:
    """A short form of an expression in positive symbols, with |x| and sign(x) kept as they are."""
    if not expr.has(sympy.sign, sympy.Abs):
        return sympy.simplify(sympy.expand_log(expr))
    opened = expr.replace(sympy.Abs, lambda a: a * sympy.sign(a))
    opened = sympy.expand(opened.replace(sympy.sign, lambda a: sympy.sign(sympy.factor(sympy.together(a)))))
    for kink in opened.atoms(sympy.sign):
        (inside,) = kink.args
        rest, slope = opened.subs(kink**2, 1).as_independent(kink, as_Add=True)
        slope = sympy.factor(sympy.cancel(slope / kink))
        over = sympy.cancel(slope / inside)
        # (c + 0 inside) sign(inside) stays; c inside sign(inside) is c |inside|
        opened = sympy.expand(rest) + (
            over * sympy.Abs(inside) if not over.has(inside) and over.is_number else slope * kink
        )
    return opened


@dataclass(frozen=True)
class Divergence:
    """A divergence D_f(policy || reference), from its generator.

    A frozen dataclass and not a tuple of nine fields: the derived expressions are computed when first
    asked for, which keeps the import fast.

    Attributes:
        name: The registered name.
        f: Generator in the symbol ``T`` (t = policy / reference), f(1) = f'(1) = 0.
        source: Bib key and place.
        kinked: f' where it jumps at t = 1 (total variation), where SymPy cannot differentiate f usefully.
        slope: f'(1) of the generator as it was registered, before normalization.
    """

    name: str
    f: sympy.Expr
    source: str
    kinked: sympy.Expr | None = None
    slope: sympy.Expr = sympy.S.Zero

    @property
    def smooth(self) -> bool:
        """False where f' jumps at t = 1."""
        return self.kinked is None

    @cached_property
    def derivative(self) -> sympy.Expr:
        """f'."""
        return sympy.simplify(sympy.diff(self.f, T)) if self.kinked is None else self.kinked

    @cached_property
    def as_given(self) -> Divergence:
        """The same divergence with its generator as it was registered: f plus slope (t - 1).

        Over a whole vocabulary the two are the same number with the same gradient; over a part of it
        they are not.
        """
        if self.slope == 0:
            return self
        f = tidy(sympy.expand(self.f + self.slope * (T - 1)))
        kinked = None if self.kinked is None else tidy(self.kinked + self.slope)
        return replace(self, f=f, kinked=kinked, slope=sympy.S.Zero)

    @cached_property
    def dual(self) -> sympy.Expr:
        """t f(1/t): the generator of the same divergence with its arguments exchanged."""
        return tidy(T * self.f.subs(T, 1 / T))

    @cached_property
    def phi(self) -> sympy.Expr:
        """Gradient weight of D_f(policy || reference) in w: phi_f(w) = f'(1/w)  (emapg2026, K.1)."""
        return tidy(self.derivative.subs(T, 1 / W))

    @cached_property
    def psi(self) -> sympy.Expr:
        """Gradient weight of D_f(reference || policy) in w: psi_f(w) = f(w) - w f'(w)  (emapg2026, K.2)."""
        return tidy(self.f.subs(T, W) - W * self.derivative.subs(T, W))

    @cached_property
    def slope_range(self) -> tuple[sympy.Expr, sympy.Expr]:
        """(f'(0+), f'(infinity)): the slopes that f' takes on t > 0."""
        return tuple(sympy.limit(self.derivative, T, end, d) for end, d in ((0, "+"), (sympy.oo, "-")))

    @cached_property
    def curvature(self) -> sympy.Expr:
        """f''(1): near the reference D_f is about curvature/2 times the chi-squared distance.

        Dividing beta by it makes two divergences equally strong there. NaN where f is not smooth.
        """
        if not self.smooth:
            return sympy.nan
        return sympy.nsimplify(sympy.diff(self.f, T, 2).subs(T, 1))  # `derivative` is slow to simplify

    @cached_property
    def at_zero(self) -> sympy.Expr:
        """f(0+): the cost per unit of reference mass where the policy has none."""
        return sympy.limit(self.f, T, 0, "+")

    @cached_property
    def at_infinity(self) -> sympy.Expr:
        """lim f(t)/t: the cost per unit of policy mass where the reference has none."""
        return sympy.limit(self.f / T, T, sympy.oo)

    @cached_property
    def edges(self) -> tuple[float, float]:
        """`at_zero` and `at_infinity` as numbers."""
        zero, infinity = (float(x) if x.is_finite else math.inf for x in (self.at_zero, self.at_infinity))
        return zero, infinity


DIVERGENCES: dict[str, Divergence] = {}


def _number(constant: sympy.Expr) -> sympy.Expr:
    """A constant in its shortest form: rational at once, or else by `simplify`, which is slow to load."""
    return constant if constant.is_Rational else sympy.simplify(constant)


def _check_generator(name: str, f: sympy.Expr, derivative: sympy.Expr) -> None:
    if f.free_symbols != {T}:
        raise ValueError(
            f"f of {name!r} has the symbols {sorted(map(str, f.free_symbols))}, expected only t (T)"
        )
    if _number(f.subs(T, 1)) != 0:
        raise ValueError(f"f of {name!r} is {f.subs(T, 1)} at t = 1, expected 0")
    points = [sympy.Rational(2) ** k for k in range(-12, 13)]
    values = [derivative.evalf(subs={T: p}) for p in points]
    if not all(v.is_real for v in values):
        raise ValueError(
            f"f of {name!r} is not real for every t > 0: f' is {next(v for v in values if not v.is_real)}"
        )
    slopes = [float(v) for v in values]
    steps = [b - a for a, b in itertools.pairwise(slopes)]
    if min(steps) < -1e-12 * max(map(abs, slopes)):
        at = points[steps.index(min(steps))]
        raise ValueError(
            f"f of {name!r} is not convex: f' falls between t = {at} and t = {2 * at}, expected a slope that "
            "never falls"
        )


def make_divergence(
    name: str, f: sympy.Expr, *, source: str, derivative: sympy.Expr | None = None
) -> Divergence:
    """Check and normalize a generator without registering it.

    Args:
        name: Name to give it.
        f: Convex expression in ``T`` with f(1) = 0. A linear term c (t - 1) is added so that
            f'(1) = 0; f is never rescaled.
        source: Bib key and place, for the reader.
        derivative: f', needed only where SymPy cannot differentiate f usefully (at a kink).

    Raises:
        ValueError: f has another symbol, f(1) is not 0, f is not convex, or f has a kink and no
            ``derivative`` is given.
    """
    f = sympy.sympify(f)
    kinks = f.atoms(sympy.Abs, sympy.sign, sympy.Piecewise, sympy.Max, sympy.Min)
    if kinks and derivative is None:
        raise ValueError(
            f"f of {name!r} has a kink at {min(kinks, key=str)}, expected its slope as derivative=, "
            "with the value at t = 1 that the gradient should have there"
        )
    kinked = None if derivative is None else sympy.sympify(derivative)
    slope = sympy.diff(f, T) if kinked is None else kinked
    _check_generator(name, f, slope)
    at_one = _number(slope.subs(T, 1))
    if kinked is not None:
        kinked -= at_one
    return Divergence(name, f - at_one * (T - 1), source, kinked, at_one)


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


@cache
def amari_alpha(alpha: float | sympy.Rational) -> Divergence:
    """Amari's alpha-divergence, f = 4/(1 - alpha^2) (1 - t^((1 + alpha)/2)), normalized (emapg2026, table 6).

    Its limits alpha -> 1 and alpha -> -1 are reverse and forward KL. Curvature 1 for every alpha.

    Raises:
        ValueError: alpha is no number.
    """
    check_number("alpha", alpha)
    a = sympy.nsimplify(alpha)
    if a == 1 or a == -1:
        return DIVERGENCES["reverse_kl" if a == 1 else "forward_kl"]
    f = 4 / (1 - a**2) * (1 - T ** ((1 + a) / 2))
    return make_divergence(f"amari_alpha({float(a):g})", f, source="emapg2026, table 6")


@cache
def power_divergence(a: float | sympy.Rational) -> Divergence:
    """The same family by its exponent, f = (t^a - 1 - a (t - 1)) / (a (a - 1)) (emapg2026, table 5).

    ``power_divergence(a)`` is ``amari_alpha(2 a - 1)``; its limits a -> 1 and a -> 0 are reverse and
    forward KL.

    Raises:
        ValueError: the exponent is no number.
    """
    check_number("the exponent", a)
    e = sympy.nsimplify(a)
    if e == 0 or e == 1:
        return DIVERGENCES["reverse_kl" if e == 1 else "forward_kl"]
    f = (T**e - 1 - e * (T - 1)) / (e * (e - 1))
    return make_divergence(f"power_divergence({float(e):g})", f, source="emapg2026, table 5")


FAMILIES: dict[str, Callable[..., Divergence]] = {
    "amari_alpha": amari_alpha,
    "power_divergence": power_divergence,
}


def get_divergence(name: str | Divergence) -> Divergence:
    """The divergence of that name; families take a number: ``"amari_alpha(0.3)"``.

    Raises:
        ValueError: unknown name (the known ones and the nearest are listed).
    """
    if isinstance(name, Divergence):
        return name
    members = {f: lambda text, f=f: FAMILIES[f](number(f, text)) for f in FAMILIES}
    return look_up("divergence", name, DIVERGENCES, members)


@cache
def inverse_slope(divergence: Divergence) -> sympy.Expr:
    """(f')^{-1}: the positive t with f'(t) = s, on the branch with t = 1 at s = 0. Symbol ``s``.

    Raises:
        ValueError: f' has no inverse (total variation).
    """
    s = sympy.Symbol("s", real=True)
    if not divergence.smooth:
        raise ValueError(f"f' of {divergence.name!r} is piecewise constant: it has no inverse")
    try:
        roots = sympy.solve(sympy.Eq(divergence.derivative, s), T)
    except (NotImplementedError, TypeError):  # SymPy raises them for an equation that it cannot solve
        roots = []
    for root in roots:
        if sympy.simplify(root.subs(s, 0) - 1) == 0:
            return sympy.simplify(root)
    raise ValueError(f"no closed inverse of f' = {divergence.derivative} was found for {divergence.name!r}")


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
