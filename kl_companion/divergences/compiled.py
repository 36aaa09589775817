"""Expressions of f as functions of tensors: compiled from SymPy, differentiable, accurate near t = 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import mpmath
import sympy
import torch
from sympy.codegen.cfunctions import expm1, log1p

from kl_companion.divergences import inline
from kl_companion.divergences.forms import T, logs_apart, tidy
from kl_companion.divergences.generator import LIVING, Divergence

_U = sympy.Symbol("u", real=True)
_LARGEST_INTEGER = 2**53

# without derivatives, for compiled loops
_INLINE = {**inline.NAMES, "exp": inline.exp, "expm1": inline.expm1, "log1p": inline.log1p}


def _nested(*pieces: sympy.Tuple) -> sympy.Expr:
    """A piecewise expression as where(condition, this, otherwise): Python's own `if` refuses tensors."""
    where = sympy.Function("where")
    expr = pieces[-1][0]
    for value, condition in reversed(pieces[:-1]):
        expr = where(condition, value, expr)
    return expr


def folded_constants(expr: sympy.Basic) -> sympy.Basic:
    """Return an expression whose constants other than small fractions are floats."""

    def is_constant(e: sympy.Basic) -> bool:
        if e.is_Rational:  # torch multiplies by no integer of more than 64 bits
            return max(abs(e.p), e.q) > _LARGEST_INTEGER
        return bool(e.is_number) and not e.is_Float

    return sympy.sympify(expr).replace(is_constant, lambda e: e.evalf(17))


def torch_function(
    expr: sympy.Basic, *symbols: sympy.Symbol, names: dict[str, Any] = inline.NAMES
) -> Callable[..., Any]:
    """A tensor function of ``symbols`` that computes ``expr`` elementwise, differentiable by autograd.

    A tuple of expressions makes a function that returns a tuple, and computes once what they share.

    Constants are folded first, because torch functions refuse Python numbers (``torch.log(2)``).

    ``printed`` of the result is the function without what makes tensors of constants.
    """
    folded = folded_constants(expr).replace(sympy.Piecewise, _nested)
    folded = folded.replace(sympy.sign, sympy.Function("sgn"))
    compiled = sympy.lambdify(symbols, folded, modules=[names], cse=True)

    def function(*tensors: torch.Tensor) -> Any:
        return inline.filled(compiled(*tensors), tensors[0])

    function.printed = compiled  # type: ignore[attr-defined]
    return function


class _Parts(dict[str, Any]):
    """Tensor functions of one divergence, by name. Pickles and copies of the divergence leave them out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Parts, ())


_MAKE: dict[str, Callable[[Divergence], Any]] = {
    "f": lambda d: function_of_log(d.f),
    "dual": lambda d: function_of_log(d.dual),
    "slope": lambda d: function_of_log(d.derivative),
    "slope by inverse": lambda d: function_of_log(_slope_by_inverse(d)),
    "terms": lambda d: _terms(d, slope=False),
    "slope terms": lambda d: _terms(d, slope=True),
    "edges": lambda d: d.edges,
}


def _part(d: Divergence, name: str) -> Any:
    """Return a tensor function of a divergence, compiled from SymPy when it is first used.

    Functions are stored in the divergence, where `torch.compile` finds them. Tracing a graph it cannot follow
    SymPy; there all of them are made at once, before the first is looked up.
    """
    if torch.compiler.is_compiling():
        _make_all(id(d))
        return d._parts[name]  # type: ignore[attr-defined]
    parts = vars(d).setdefault("_parts", _Parts())
    if name not in parts:
        parts[name] = _MAKE[name](d)
    return parts[name]


def _make_all(divergence: int) -> bool:
    d = LIVING[divergence]
    parts = vars(d).setdefault("_parts", _Parts())
    parts.update({name: make(d) for name, make in _MAKE.items() if name not in parts})
    return True


# what torch.compiler.assume_constant_result sets, without loading the compiler: it cannot trace SymPy
_make_all._dynamo_marked_constant = True  # type: ignore[attr-defined]


def edges_of(divergence: Divergence) -> tuple[float, float]:
    """Return f(0) and the limit of f(t)/t, infinite or not."""
    edges: tuple[float, float] = _part(divergence, "edges")
    return edges


def generator_of_log(divergence: Divergence, *, dual: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """f(e^u) (or its dual) as a function of the tensor u = log t.

    f vanishes to second order at t = 1, where exp(u) would leave the rounding of 1; written with expm1
    and log1p it is as accurate as u itself is known (relative error of a few eps/|u|).
    """
    function: Callable[[torch.Tensor], torch.Tensor] = _part(divergence, "dual" if dual else "f")
    return function


def slopes_of_log(
    divergence: Divergence,
) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    """f'(e^u) as a function of u, for u <= 0; and of -u, through the dual, for u >= 0."""
    return _part(divergence, "slope"), _part(divergence, "slope by inverse")


def _slope_by_inverse(divergence: Divergence) -> sympy.Expr:
    """f'(t) = f*(1/t) - (1/t) f*'(1/t), as a function of 1/t."""
    return tidy(divergence.dual - T * sympy.diff(divergence.dual, T))


def stable_slope(
    divergence: Divergence, log_t: torch.Tensor, *, moderate: bool | None = None
) -> torch.Tensor:
    """f'(t), a weight in front of the score, from log t; without overflow where f' is bounded.

    As accurate near t = 1, where f' vanishes, as log t itself. ``moderate`` is as in `stable_generator`.
    """
    below, above = slopes_of_log(divergence)
    if inline.moderate(log_t) if moderate is None else moderate:
        return below(log_t)
    return inline.slope(below, above, edges_of(divergence)[1], log_t)  # lim f(t)/t is lim f'(t)


def function_of_log(expr: sympy.Expr) -> Callable[[torch.Tensor], torch.Tensor]:
    """An expression in ``T`` as a function of the tensor u = log t, with expm1 and log1p."""
    return torch_function(_accurate_near_one(expr), _U)


def _accurate_near_one(expr: sympy.Expr) -> sympy.Expr:
    if expr.is_rational_function(T):
        expr = sympy.together(expr)  # one numerator, in which the powers of t cancel before they are rounded
    in_log = sympy.expand(sympy.powsimp(sympy.expand(expr.subs(T, sympy.exp(_U)))))
    small = in_log.replace(sympy.exp, lambda a: 1 + expm1(a)).replace(sympy.log, _log_of_small)
    return sympy.expand(small)


def stable_generator(
    divergence: Divergence, log_t: torch.Tensor, *, dual: bool = False, moderate: bool | None = None
) -> torch.Tensor:
    """f(t) (or its dual) where t may overflow: f(t) below t = 1 and t times the dual of 1/t above.

    The same number in either form, but no infinity is subtracted from another; and where infinity would
    meet zero (t log t times 1/t), f(t) is taken after all. At t = 0 it is the limit.

    Args:
        divergence: The divergence.
        log_t: log t, any shape.
        dual: Whether t f(1/t) is computed instead.
        moderate: The result of `inline.moderate`, if a caller knows it; False reads nothing on the host.
    """
    direct = generator_of_log(divergence, dual=dual)
    if inline.moderate(log_t) if moderate is None else moderate:
        return direct(log_t)
    edges = edges_of(divergence)[::-1] if dual else edges_of(divergence)
    return inline.generator(direct, generator_of_log(divergence, dual=not dual), edges, log_t)


def terms_of_log(divergence: Divergence, slope: bool) -> list[tuple[float, Callable[..., torch.Tensor]]]:
    """f(t), or t f'(t), as a sum of t^k times what grows slower, functions of log t: the k and these."""
    terms: list[tuple[float, Callable[..., torch.Tensor]]] = _part(
        divergence, "slope terms" if slope else "terms"
    )
    return terms


def _terms(divergence: Divergence, *, slope: bool) -> list[tuple[float, Callable[..., torch.Tensor]]]:
    found = []
    whole = sympy.expand(sympy.powsimp(sympy.expand(divergence.f.subs(T, sympy.exp(_U)))))
    for term in sympy.Add.make_args(whole):
        power, rest = sympy.S.Zero, sympy.S.One
        for factor in sympy.Mul.make_args(term):
            k = factor.exp.coeff(_U) if isinstance(factor, sympy.exp) else sympy.S.Zero
            power, rest = power + k, rest * (factor if k == 0 else sympy.exp(factor.exp - k * _U))
        found.append((float(power), torch_function(rest.diff(_U) + power * rest if slope else rest, _U)))
    return found


def _log_of_small(argument: sympy.Expr) -> sympy.Expr:
    """log(c + x) as log(c) + log1p(x/c), with c the value at u = 0."""
    at_zero = argument.replace(expm1, lambda a: sympy.S.Zero)
    return sympy.log(at_zero) + log1p(sympy.expand(argument / at_zero - 1))


_X, _W, _LOG1P = sympy.Symbol("X", positive=True), sympy.Symbol("W"), sympy.Function("log1p_")
_MOST_POWERS = 32  # of e^(u/m): polynomials of a higher degree are slow to factor and to compute
_OPEN = (sympy.Piecewise, sympy.exp, sympy.Abs, sympy.sign)


def _roots(forms: Sequence[sympy.Expr]) -> int | None:
    """The m for which all are made of powers of e^(u/m) and of logarithms; None where there is none."""
    powers = [power.exp for form in forms for power in form.atoms(sympy.Pow) if power.base == T]
    closed = not any(form.has(*_OPEN) for form in forms) and all(power.is_Rational for power in powers)
    m = int(sympy.ilcm(1, 1, *(power.q for power in powers))) if closed else 0
    highest = max((abs(power * m) for power in powers), default=0)
    return m if closed and highest <= _MOST_POWERS else None


def _in_powers(whole: sympy.Expr, m: int) -> sympy.Expr:
    """An expression in ``T`` by u = log t, X = e^(u/m) and W = X - 1, with which it vanishes at t = 1."""
    whole = sympy.expand(sympy.powsimp(sympy.expand(whole.subs(T, _X**m)))).subs(sympy.log(_X), _U / m)
    whole = sympy.expand(whole.replace(sympy.log, lambda a: _log_in_powers(a) if a.has(_X) else sympy.log(a)))
    terms = sympy.collect(whole, [_U, *whole.atoms(_LOG1P)], evaluate=False)
    return sympy.Add(*(term * _factored(factor) for term, factor in terms.items())).replace(_LOG1P, log1p)


def _factored(factor: sympy.Expr) -> sympy.Expr:
    whole = sympy.Integer(1)
    for sign, part in zip((1, -1), sympy.fraction(sympy.cancel(sympy.together(factor))), strict=True):
        number, bases = sympy.factor_list(part, _X)
        factors = ((_W if base == _X - 1 else base) ** power for base, power in bases)
        whole *= sympy.Mul(number, *factors) ** sign
    return whole


def _log_in_powers(argument: sympy.Expr) -> sympy.Expr:
    at_one = argument.subs(_X, 1)
    return sympy.log(at_one) + _LOG1P(sympy.expand((argument / at_one - 1).subs(_X, 1 + _W)))


class OfLarger(NamedTuple):
    """Value and slope of an entry per unit of its larger probability, by minus |log t|.

    Where t < 1 that is f(t) and t f'(t), which Q multiplies; where t > 1, f(t)/t and f'(t), which P does.
    So written no power of t overflows where the product with the larger probability does not.
    """

    value_below: torch.Tensor
    slope_below: torch.Tensor
    value_above: torch.Tensor
    slope_above: torch.Tensor
    ratio: torch.Tensor  # of the smaller probability to the larger


def forms_of_larger(d: Divergence) -> tuple[sympy.Tuple, int | None]:
    """Return the expressions of `OfLarger`, in that order, and their m: in u, X = e^(u/m) and W = X - 1.

    Where m is None they are expressions in u alone.
    """
    inverse = 1 / T
    forms = (d.f, T * d.derivative, T * d.f.subs(T, inverse), d.derivative.subs(T, inverse))
    apart = [logs_apart(form) for form in forms]
    m = _roots(apart)
    if m is None:
        open_forms = (d.f, tidy(T * d.derivative), d.dual, _slope_by_inverse(d))
        return sympy.Tuple(*(_accurate_near_one(form) for form in open_forms), sympy.exp(_U)), None
    return sympy.Tuple(*(_in_powers(form, m) for form in apart), _X**m), m


def _of_larger(d: Divergence) -> Callable[[torch.Tensor], OfLarger]:
    forms, m = forms_of_larger(d)
    if m is None:
        by_log = torch_function(forms, _U, names=_INLINE)
        return lambda down: OfLarger(*by_log(down))
    by_powers = torch_function(forms, _U, _X, _W, names=_INLINE)

    def of_larger(down: torch.Tensor) -> OfLarger:
        part = down if m == 1 else down * (1 / m)
        return OfLarger(*by_powers(down, inline.exp(part), inline.expm1(part)))

    return of_larger


_TERMS = 10
_TRIAL = 0.25  # where the series is tried


@cache
def near_one(d: Divergence) -> tuple[float, ...] | None:
    """c with f(t)/t = u^2 (c[0] + c[1] u + ...), u = log t; None where f has no such series at t = 1."""
    with mpmath.workdps(80):
        f = sympy.lambdify(T, d.f, modules="mpmath")

        def of_log(u: mpmath.mpf) -> mpmath.mpf:
            return f(mpmath.exp(u)) * mpmath.exp(-u)

        taylor = mpmath.taylor(of_log, 0, 1 + _TERMS)
        for u in (-_TRIAL, _TRIAL):
            exact, found = of_log(mpmath.mpf(u)), mpmath.polyval(taylor[::-1], u)
            if any(abs(c) > 1e-20 for c in taylor[:2]) or abs(found - exact) > 1e-6 * abs(exact):
                return None
        return tuple(float(c) for c in taylor[2:])


_NEAR_ONE = (-1e-3, -1e-2)  # log t where values and slopes nearly vanish
_BEYOND = (-0.6, -1.5, -4.0)  # log t beyond every series


def _keeps_digits(d: Divergence, of_larger: Callable[[torch.Tensor], OfLarger]) -> tuple[bool, bool]:
    """Whether all is accurate in float32: the values next to t = 1, and everything else."""
    # no default of the caller's: the answer is kept for the process
    u = torch.tensor(_NEAR_ONE + _BEYOND, dtype=torch.float32, device="cpu")
    near = len(_NEAR_ONE)
    with mpmath.workdps(40):
        f, slope = (sympy.lambdify(T, e, modules="mpmath") for e in (d.f, d.derivative))
        accurate = []
        for function, below, above in (
            (f, *(lambda r: (r.value_below, r.value_above))(of_larger(u))),
            (slope, *(lambda r: (r.slope_below, r.slope_above))(of_larger(u))),
        ):
            for at, low, high in zip(u.tolist(), below.tolist(), above.tolist(), strict=True):
                t = mpmath.exp(at)
                pairs = [(low, function(t) * (t if function is slope else 1))]
                pairs += [(high, function(1 / t) * (1 if function is slope else t))]
                accurate.append(all(abs(got - want) <= 1e-5 * abs(want) for got, want in pairs))
    return all(accurate[:near]), all(accurate[near:])


class Entries(NamedTuple):
    """All that an entry of D_f and its gradient are computed from."""

    of_larger: Callable[[torch.Tensor], OfLarger]
    series: tuple[float, ...] | None  # `near_one` where values need it there
    at_zero: float  # f(0), infinite or not
    at_infinity: float  # the limit of f(t)/t
    narrow: bool  # float32 is enough


@cache
def entries_of(d: Divergence) -> Entries:
    """The functions, the series and the edges of a divergence."""
    of_larger = _of_larger(d)
    # modes of torch that cast, trace or fake tensors are the caller's thread's, and the answer is kept
    with ThreadPoolExecutor(max_workers=1) as another_thread:
        values, others = another_thread.submit(_keeps_digits, d, of_larger).result()
    series = None if values else near_one(d)
    narrow = others and (values or series is not None)
    return Entries(of_larger, series, *d.edges, narrow)
