"""f-divergences: only f is typed in, everything else about a divergence is derived from it.

Convention, everywhere in the package: ``D_f(P || Q) = sum_y Q(y) f(P(y) / Q(y))`` with P the policy
and Q the reference, t = P/Q = 1/w, f(1) = 0 and f normalized to f'(1) = 0. So ``reverse_kl`` is
KL(policy || reference) and ``forward_kl`` is KL(reference || policy). Adding c (t - 1) to f changes no
divergence, hence the normalization is free; the *scale* of f is never touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import sympy

from kl_companion.divergences.convexity import check_convex
from kl_companion.divergences.forms import LARGEST_POWER, T, W, highest_power, short, tidy, without_floats

SUPPORT = "expected one support, or a divergence that is finite without it"  # in messages of several modules
_S = sympy.Symbol("s", real=True)
_ROUNDING = 1e-13  # of f(1), relative to the largest float in f


# by id: before torch 2.13 a function that a graph takes as a constant receives numbers and no objects
LIVING: WeakValueDictionary[int, Divergence] = WeakValueDictionary()


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

    def __new__(cls, *_: Any, **__: Any) -> Divergence:
        """Create a divergence that is found by its id; copies and pickles are created here too."""
        new = super().__new__(cls)
        LIVING[id(new)] = new
        return new

    def with_forms(self, **forms: object) -> Divergence:
        """Keep derived properties that were worked out by hand, so that SymPy does not search for them.

        Args:
            forms: Values of the cached properties below, by their names.
        """
        self.__dict__.update(forms)
        return self

    @property
    def smooth(self) -> bool:
        """False where f' jumps at t = 1."""
        return self.kinked is None

    @cached_property
    def derivative(self) -> sympy.Expr:
        """f'."""
        return short(sympy.diff(self.f, T)) if self.kinked is None else self.kinked

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
    def inverse_slope(self) -> sympy.Expr:
        """(f')^{-1}, see `kl_companion.divergences.inverse_slope`."""
        if not self.smooth:
            raise ValueError(f"f' of {self.name!r} is piecewise constant: it has no inverse")
        try:
            low = highest_power(self.derivative) <= LARGEST_POWER  # of others SymPy searches without end
            roots = sympy.solve(sympy.Eq(self.derivative, _S), T) if low else []
        except (NotImplementedError, TypeError):  # SymPy raises them for an equation that it cannot solve
            roots = []
        for root in roots:
            if sympy.simplify(root.subs(_S, 0) - 1) == 0:
                return sympy.simplify(root)
        raise ValueError(f"no closed inverse of f' = {self.derivative} was found for {self.name!r}")

    @cached_property
    def curvature(self) -> sympy.Expr:
        """f''(1): near the reference D_f is about curvature/2 times the chi-squared distance.

        Dividing beta by it makes two divergences equally strong there. NaN where f is not smooth.
        """
        if not self.smooth:
            return sympy.nan
        return _number(sympy.diff(self.f, T, 2).subs(T, 1))  # `derivative` is slow to simplify

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


def _number(constant: sympy.Expr) -> sympy.Expr:
    """A constant in its shortest form: rational at once, or else by `simplify`, which is slow to load."""
    return constant if constant.is_Rational else sympy.simplify(constant)


def _zero_at_one(name: str, f: sympy.Expr, rounding: float) -> sympy.Expr:
    """Return f without the rounding of f(1); ValueError for another symbol, or where f(1) is not 0."""
    if f.free_symbols != {T}:
        other = " (kl_companion.divergences.T, which is positive: another Symbol('t') is another symbol)"
        raise ValueError(
            f"f of {name!r} has the symbols {sorted(map(str, f.free_symbols))}, expected only t"
            f"{other if any(x.name == 't' and x != T for x in f.free_symbols) else ' (T)'}"
        )
    at_one = _number(f.subs(T, 1))
    if at_one != 0 and not (at_one.is_real and abs(at_one) <= rounding):
        raise ValueError(f"f of {name!r} is {f.subs(T, 1)} at t = 1, expected 0")
    return f - at_one


def make_divergence(
    name: str, f: sympy.Expr, *, source: str, derivative: sympy.Expr | None = None
) -> Divergence:
    """Check and normalize a generator without registering it.

    Args:
        name: Name to give it.
        f: Convex expression in ``T`` with f(1) = 0. A linear term c (t - 1) is added so that
            f'(1) = 0; f is never rescaled. A float in it is the simplest fraction that it rounds.
        source: Bib key and place, for the reader.
        derivative: f', needed only where SymPy cannot differentiate f usefully (at a kink).

    Raises:
        ValueError: f has another symbol, f(1) is not 0, f is not convex, or f has a kink and no
            ``derivative`` is given.
    """
    f = sympy.sympify(f)
    rounding = _ROUNDING * max(abs(float(x)) for x in (*f.atoms(sympy.Float), 0))
    f = without_floats(f)
    kinks = f.atoms(sympy.Abs, sympy.sign, sympy.Piecewise, sympy.Max, sympy.Min)
    if kinks and derivative is None:
        raise ValueError(
            f"f of {name!r} has a kink at {min(kinks, key=str)}, expected its slope as derivative=, "
            "with the value at t = 1 that the gradient should have there"
        )
    kinked = None if derivative is None else without_floats(sympy.sympify(derivative))
    f = _zero_at_one(name, f, rounding)
    slope = sympy.diff(f, T) if kinked is None else kinked
    check_convex(name, slope, kinked=kinked is not None)
    at_one = _number(slope.subs(T, 1))
    if kinked is not None:
        kinked -= at_one
    return Divergence(name, f - at_one * (T - 1), source, kinked, at_one)
