"""Estimators from the log-probabilities of the sampled tokens: one function each, for tensors and symbols.

Throughout, ``logp`` is log pi(y) of a sampled y, ``ref_logp`` is log pi_ref(y), w = pi_ref/pi and
sg is stop-gradient. Docstrings say what the *value* estimates; what the *gradient* does is for
`kl_companion.theory.calculus` and `kl_companion.audit` to compute.

Types, dtypes and shapes are checked; values are not, so that the formulas work under `torch.func.vmap`, in
compiled graphs and on a GPU without a pause. Where the reference has lost the token (``ref_logp`` is -inf)
value and gradient are their limits at w = 0, infinite or not. Of a token that the policy cannot draw
(``logp`` is -inf) there is no estimate: the result is NaN or infinite. `kl_companion.Rollout` refuses both,
and so does `kl_companion.checks.check_samples`.

Near w = 1 the differences below cancel. In float32 the relative error of k3 at log w = 1e-4 stays
near 1e-3 with ``expm1`` (the form exp(x) - 1 - x is several times its own value off), which is below
what rounding already did to ``logp`` itself; so no series is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Literal, TypeVar, cast

from kl_companion.checks import check_choice, check_number, check_pair, number
from kl_companion.divergences import Divergence, T, get_divergence, stable_generator, stable_slope
from kl_companion.divergences.inline import moderate
from kl_companion.estimators.record import ESTIMATOR_FAMILIES, Estimator, register_estimator
from kl_companion.ops import (
    Array,
    constant,
    exp,
    expm1,
    finite,
    is_symbolic,
    product,
    score_ratio,
    stop_gradient,
)

Formula = TypeVar("Formula", bound=Callable[..., Any])
Form = Literal["bregman", "generic", "published"]
FORMS: tuple[Form, ...] = ("bregman", "generic", "published")


def split_form(text: str) -> tuple[str, Form]:
    """``"pearson, generic"`` as ("pearson", "generic"); the form may be missing and is then "bregman"."""
    first, comma, last = text.rpartition(",")
    return (first.strip(), cast(Form, last.strip())) if comma else (text.strip(), "bregman")


def _check(logp: Array, ref_logp: Array) -> None:
    """Raise ValueError unless both are floating-point tensors of one shape, or both symbols."""
    if not is_symbolic(logp, ref_logp):
        check_pair(logp, ref_logp)


def of_samples(fn: Formula) -> Formula:
    """Return the same function of (logp, ref_logp), which checks types, dtypes and shapes first.

    Raises:
        ValueError: neither two floating-point tensors of one shape nor two symbols.
    """

    @wraps(fn)
    def checked(logp: Array, ref_logp: Array) -> Array:
        _check(logp, ref_logp)
        return cast(Array, fn(logp, ref_logp))

    return cast(Formula, checked)


def with_weight(value: Array, weight: Array, logp: Array) -> Array:
    """sg(value) + sg(weight) log r: this value, and ``weight`` times the score as its gradient.

    Every unbiased estimate of one sample can be written so. Where value and weight grow large together,
    as in r k3 at a large w, a product with r would make the gradient from their rounded difference. An
    infinite weight becomes the largest number of its dtype, because infinity times log r = 0 is NaN.
    """
    return stop_gradient(value) + stop_gradient(finite(weight)) * (logp - stop_gradient(logp))


@register_estimator("k1", target="reverse_kl", source="tang2025pitfalls, section 2.1 (vanilla)")
@of_samples
def k1(logp: Array, ref_logp: Array) -> Array:
    """-log w: unbiased value of reverse KL, of either sign."""
    return logp - ref_logp


@register_estimator("k2", target="reverse_kl", source="tang2025pitfalls, eq (1) (squared)")
@of_samples
def k2(logp: Array, ref_logp: Array) -> Array:
    """(log w)^2 / 2: biased value, close to reverse KL when the policies are close."""
    return (logp - ref_logp) ** 2 / 2


@register_estimator("k3", target="reverse_kl", source="schulman2020")
@of_samples
def k3(logp: Array, ref_logp: Array) -> Array:
    """w - 1 - log w: unbiased value of reverse KL, never negative."""
    log_w = ref_logp - logp
    return expm1(log_w) - log_w


@register_estimator("k3_plus_plus", target="reverse_kl", source="emapg2026, table 1")
@of_samples
def k3_plus_plus(logp: Array, ref_logp: Array) -> Array:
    """r k3 with r = pi/sg(pi): the value of k3, with the part of the gradient that sampling dropped.

    Written by its gradient, -log w times the score (emapg2026, eq (91)).
    """
    log_w = ref_logp - logp
    return with_weight(expm1(log_w) - log_w, -log_w, logp)


@register_estimator("k4", target="reverse_kl", source="emapg2026, table 1")
@of_samples
def k4(logp: Array, ref_logp: Array) -> Array:
    """r sg(-log w): the value of k1; only the ratio r carries a gradient."""
    return stop_gradient(logp - ref_logp) * score_ratio(logp)


@register_estimator("k5", target="forward_kl", source="emapg2026, table 1")
@of_samples
def k5(logp: Array, ref_logp: Array) -> Array:
    """sg(w) log w + log r: unbiased value of forward KL from the policy's own samples."""
    log_w = ref_logp - logp
    return product(stop_gradient(finite(exp(log_w))), log_w) + (logp - stop_gradient(logp))


def k_lambda(lam: float) -> Callable[[Any, Any], Any]:
    """log(1/w) + lam (w - 1): k1 at 0, k3 at 1; an unbiased value of reverse KL for every ``lam``.

    Raises:
        ValueError: ``lam`` is no number.

    Source: tang2025pitfalls, section 3 (after schulman2020).
    """
    check_number("lam", lam)
    return partial(_k_lambda_of, lam)


def _k_lambda_of(lam: float, logp: Array, ref_logp: Array) -> Array:
    _check(logp, ref_logp)
    log_w = ref_logp - logp
    return constant(lam, log_w) * expm1(log_w) - log_w


def kf_plus_plus(divergence: str | Divergence, form: Form = "bregman") -> Callable[[Any, Any], Any]:
    """r w f(1/w): value and gradient unbiased for D_f(policy || reference), for any f.

    Args:
        divergence: A registered name or a `Divergence`.
        form: Which multiple of t - 1 stands in f, and where.

            * ``"bregman"``: none, f'(1) = 0. A sample is never negative and its gradient vanishes at
              w = 1. Reverse KL gives K3++.
            * ``"generic"``: f as it was registered, which is what the source prints: r (-log w) for
              reverse KL, sg(w) log w for forward KL.
            * ``"published"``: the value of ``"generic"`` with the gradient of ``"bregman"``, by one
              more term of value zero, -f'(1) log r. Reverse and forward KL give K4 and K5.

    Raises:
        ValueError: an unknown divergence or form.

    Source: emapg2026, eqs (115)-(119) and the note that closes appendix H.
    """
    d = get_divergence(divergence)
    check_choice("form", form, FORMS)
    # w f(1/w) is the value and f'(1/w) the weight; the forms differ in where the given f stands
    of_value = d if form == "bregman" else d.as_given
    of_weight = d.as_given if form == "generic" else d
    return partial(_kf_plus_plus_of, of_value, of_weight)


def _kf_plus_plus_of(
    of_value: Divergence,
    of_weight: Divergence,
    logp: Array,
    ref_logp: Array,
    *,
    look: bool = True,
) -> Array:
    """The estimator of `kf_plus_plus`; with ``look=False`` no value is read on the host."""
    _check(logp, ref_logp)
    log_w = ref_logp - logp
    if is_symbolic(log_w):
        value = of_value.dual.subs(T, exp(log_w))
        return with_weight(value, of_weight.derivative.subs(T, exp(-log_w)), logp)
    log_w = stop_gradient(log_w)
    near = look and moderate(log_w)
    value = stable_generator(of_value, log_w, dual=True, moderate=near)
    return with_weight(value, stable_slope(of_weight, -log_w, moderate=near), logp)


def _k_lambda(text: str) -> Estimator:
    lam = number("k_lambda", text)
    return Estimator(
        f"k_lambda({text})", k_lambda(lam), "reverse_kl", "sampled", "tang2025pitfalls, section 3"
    )


def _kf_plus_plus(text: str) -> Estimator:
    divergence, form = split_form(text)
    d = get_divergence(divergence)
    said = d.name if form == "bregman" else f"{d.name}, {form}"
    return Estimator(
        f"kf_plus_plus({said})", kf_plus_plus(d, form), d.name, "sampled", "emapg2026, eqs (115)-(119)"
    )


ESTIMATOR_FAMILIES["k_lambda"] = _k_lambda
ESTIMATOR_FAMILIES["kf_plus_plus"] = _kf_plus_plus
