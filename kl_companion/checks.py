"""Errors at the door: every check names what it got, what it wanted and why.

The public functions of the package call these before any arithmetic, so that a mistake ends in one
clear ``ValueError`` and not in a number.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from numbers import Rational, Real
from typing import Any

import torch

from kl_companion.host_reads import any_wrong

try:
    from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor
except ImportError:  # the stand-in for torch in the page has no transforms

    def is_functorch_wrapped_tensor(tensor: torch.Tensor) -> bool:
        """Return False: nothing is transformed."""
        return False


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LOOKS = ContextVar("formulas may choose a form by a value", default=True)
LONGEST_LIST = 240  # characters; a longer list of names is cut to the nearest
NEAREST = 6


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not registered; it lists the known ones and offers the nearest.

    Where there are many, those that resemble the name are listed, and the others counted.
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=NEAREST, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(names)
    if len(listed) > LONGEST_LIST:
        some = sorted(difflib.get_close_matches(str(name), names, n=NEAREST, cutoff=0.0))
        listed = f"{', '.join(some)} and {len(names) - len(some)} others"
    if not isinstance(name, str):
        return ValueError(f"{kind} is {described(name)}, expected a name. Known: {listed}")
    return ValueError(f"unknown {kind} {name!r}.{hint} Known: {listed}")


def look_up(
    kind: str, name: str, known: Mapping[str, Any], families: Mapping[str, Callable[[str], Any]]
) -> Any:
    """The entry ``name`` of a registry, or the member of a family: ``"k_lambda(0.5)"``.

    Raises:
        ValueError: neither, or no text at all; the known names are listed and the nearest is offered.
    """
    if not isinstance(name, str):
        raise unknown_name(kind, name, [*known, *(f"{f}(...)" for f in families)])
    if name in known:
        return known[name]
    family, _, rest = name.partition("(")
    if family in families and rest.endswith(")"):
        return families[family](rest[:-1])
    raise unknown_name(kind, name, [*known, *(f"{f}(...)" for f in families)])


def number(name: str, text: str) -> float:
    """The number in the parentheses of a family's member, such as 0.3 or 1/2; else ValueError."""
    try:
        x = float(Fraction(text)) if "/" in text else float(text)
    except (ValueError, ZeroDivisionError, OverflowError):
        x = math.nan
    if not math.isfinite(x):
        raise ValueError(f"{name} has the parameter {text!r}, expected a number")
    return x


@contextmanager
def without_looking() -> Iterator[None]:
    """Let `may_look` return False: a loss reads one value at its end, so its formulas read none."""
    token = _LOOKS.set(False)
    try:
        yield
    finally:
        _LOOKS.reset(token)


def may_look(*tensors: torch.Tensor) -> bool:
    """Return whether values may be read on the host: tensors of a CPU in eager mode, outside of transforms.

    A GPU would have to finish its queue first; graphs, `torch.func.vmap` and the device "meta" have no
    values. A formula may decide by one value where it may look, and needs a form without decisions besides.
    """
    if torch.compiler.is_compiling() or not _LOOKS.get():
        return False
    # Subclasses may have no values (FakeTensor) or only a part of them (DTensor).
    return all(
        type(x) in _PLAIN and x.device.type == "cpu" and not is_functorch_wrapped_tensor(x) for x in tensors
    )


def may_read(x: torch.Tensor) -> bool:
    """Return whether ``x`` has one value: not in a graph, under `torch.func.vmap` or on the device "meta"."""
    if torch.compiler.is_compiling() or x.device.type == "meta":
        return False
    while is_functorch_wrapped_tensor(x):
        if is_batchedtensor(x):
            return False
        x = get_unwrapped(x)
    return True


def check_number(name: str, x: object, *, infinite: bool = False) -> None:
    """Raise ValueError unless ``x`` is one real number: Python's, NumPy's or SymPy's, not a truth value.

    NaN is not a number, and infinity is one only with ``infinite=True``.
    """
    if isinstance(x, bool) or not (isinstance(x, Real) or getattr(x, "is_real", False) is True):
        raise ValueError(f"{name} is {described(x)}, expected a number")
    if isinstance(x, Rational) or not isinstance(x, Real):  # a whole number may be beyond every float
        return
    if math.isnan(x) or (math.isinf(x) and not infinite):
        raise ValueError(f"{name} is {described(x)}, expected a {'' if infinite else 'finite '}number")


def check_whole(name: str, x: Any, least: int, most: int | None = None) -> int:
    """Return ``x``; raise ValueError unless it is a whole number of at least ``least``, at most ``most``."""
    if isinstance(x, bool) or not isinstance(x, int) or x < least or (most is not None and x > most):
        limit = f" of at least {least}" if most is None else f" from {least} to {most}"
        raise ValueError(f"{name} is {described(x)}, expected a whole number{limit}")
    return x


def check_clip(clip: object) -> None:
    """Raise ValueError unless ``clip`` is a pair (lowest, highest) with 0 <= lowest <= highest."""
    pair = clip if isinstance(clip, (tuple, list)) and len(clip) == 2 else (math.nan, math.nan)
    if not all(isinstance(x, Real) for x in pair) or not (0 <= pair[0] <= pair[1] and pair[0] < math.inf):
        raise ValueError(f"clip is {clip}, expected (lowest, highest) with 0 <= lowest <= highest")


def described(x: object) -> str:
    """A value that was got, short enough for a message: numbers and texts themselves, else the type."""
    if isinstance(x, torch.Tensor):
        return f"a Tensor of shape {list(x.shape)}"
    return repr(x)[:40] if x is None or isinstance(x, (str, bool, int, float)) else f"a {type(x).__name__}"


def check_choice(kind: str, value: object, allowed: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``allowed``."""
    if value not in tuple(allowed):
        raise unknown_name(kind, value, allowed)


def check_scalar(
    name: str,
    value: Any,
    *,
    positive: bool = False,
    least: float = -math.inf,
    dtype: torch.dtype = torch.float64,
) -> None:
    """Raise ValueError unless ``value`` is finite, and positive or at least ``least`` where that is asked.

    Args:
        name: Of the coefficient, rate or bound, for the message.
        value: A number, or a tensor of numbers.
        positive: Whether zero is refused too.
        least: The smallest number that is allowed.
        dtype: Of the tensors that it multiplies; half precision multiplies in float32.
    """
    largest = torch.finfo(torch.promote_types(dtype, torch.float32)).max
    if isinstance(value, torch.Tensor):
        entries = value.detach()
        good = bool(((entries.abs() <= largest) & ((entries > 0) if positive else (entries >= least))).all())
    else:
        try:
            plain = math.nan if isinstance(value, (str, bytes)) else float(value)
        except (TypeError, ValueError, OverflowError):
            plain = math.nan
        good = abs(plain) <= largest and (plain > 0 if positive else plain >= least)
    if not good:
        wanted = "a positive number" if positive else "a finite number"
        bound = f" of at least {least:g}" if least > -math.inf and not positive else ""
        most = f" of at most {largest:.3g}" if largest < torch.finfo(torch.float64).max else ""
        raise ValueError(f"{name} is {value}, expected {wanted}{bound}{most}")


def check_temperature(temperature: float) -> float:
    """The temperature as a float; ValueError unless it and its reciprocal are positive numbers of float32."""
    about = torch.finfo(torch.float32)
    number = isinstance(temperature, Real) and not isinstance(temperature, bool)
    if not number or not about.tiny <= float(temperature) <= about.max:
        raise ValueError(
            f"temperature is {temperature!r}, expected a positive number, {about.tiny:.2g} to {about.max:.2g}"
        )
    return float(temperature)


def check_finite(name: str, x: torch.Tensor, where: torch.Tensor | None = None) -> None:
    """Raise ValueError if ``x`` holds NaN or an infinity (only under ``where``, if given)."""
    bad = ~x.detach().isfinite() if where is None else ~x.detach().isfinite() & where
    if any_wrong(bad):
        raise ValueError(f"{name} is {x.detach()[bad][0].item()} at {_first(bad)}: expected finite numbers")


def refuse_nan(name: str, result: torch.Tensor, **parts: torch.Tensor) -> torch.Tensor:
    """The result; ValueError if it holds NaN, naming the first of its parts that is not finite, and where.

    Infinities are let pass: a number that overflowed is infinite. NaN is what two of them leave of each
    other, or one of them times zero.
    """
    seen = result.detach()
    if not any_wrong(seen.isnan()):
        return result
    for part, x in parts.items():
        bad = ~x.detach().isfinite()
        if any_wrong(bad):
            raise ValueError(
                f"{name} is not a number: {part} is {x.detach()[bad][0].item()} at {_first(bad)}, expected "
                f"what {x.dtype} holds: policies less far apart, or smaller coefficients"
            )
    raise ValueError(f"{name} is not a number: sums or products on the way overflow {result.dtype}")


def check_shape(name: str, x: torch.Tensor, wanted: torch.Size | tuple[int, ...], like: str) -> None:
    """Raise ValueError unless ``x`` is a tensor of the shape ``wanted``; ``like`` says whose that is."""
    check_tensor(name, x)
    if tuple(x.shape) != tuple(wanted):
        raise ValueError(f"{name} has shape {list(x.shape)}, expected {list(wanted)} like {like}")


def check_tensor(name: str, x: torch.Tensor) -> None:
    """Raise ValueError unless ``x`` is a tensor."""
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name} is {described(x)}, expected a torch.Tensor")


def check_floating(name: str, x: torch.Tensor) -> None:
    """Raise ValueError unless ``x`` is a floating-point tensor."""
    check_tensor(name, x)
    if not x.is_floating_point():
        raise ValueError(f"{name} has dtype {x.dtype}, expected floating point")


def _first(bad: torch.Tensor) -> str:
    return str(bad.nonzero()[0].tolist())


def check_no_nan(name: str, x: torch.Tensor, where: torch.Tensor | None = None) -> None:
    """Raise ValueError if ``x`` holds NaN (only under ``where``, if given)."""
    bad = x.isnan() if where is None else x.isnan() & where
    if any_wrong(bad):
        raise ValueError(f"{name} is NaN at {_first(bad)}: expected numbers")


def slack(x: torch.Tensor) -> float:
    """Rounding that a log-softmax of this dtype may leave: a few units in the last place of 10."""
    return 64 * torch.finfo(x.dtype).eps


def check_log_probabilities(name: str, x: torch.Tensor, where: torch.Tensor | None = None) -> None:
    """Raise ValueError if an entry is NaN, above zero or -inf (only under ``where``, if given)."""
    check_floating(name, x)
    check_no_nan(name, x, where)
    inside = torch.ones_like(x, dtype=torch.bool) if where is None else where
    above = (x.detach() > slack(x)) & inside
    if any_wrong(above):
        value = x.detach()[above][0].item()
        raise ValueError(
            f"{name} is {value:.4g} at {_first(above)}, expected at most 0: "
            "log-probabilities are wanted, not logits or probabilities"
        )
    infinite = x.detach().isneginf() & inside
    if any_wrong(infinite):
        raise ValueError(
            f"{name} is -inf at {_first(infinite)}, expected finite log-probabilities of sampled tokens: "
            "a token of probability zero has no log-ratio"
        )


def check_pair(logp: torch.Tensor, ref_logp: torch.Tensor) -> None:
    """Raise ValueError unless both are floating-point tensors of one shape; values are not read."""
    check_floating("logp", logp)
    check_floating("ref_logp", ref_logp)
    check_shape("ref_logp", ref_logp, logp.shape, "logp")  # other shapes might broadcast silently


def check_samples(logp: torch.Tensor, ref_logp: torch.Tensor) -> None:
    """Raise ValueError unless log-probs of sampled tokens, and their differences, are finite.

    The sampled estimators (``k1`` ... ``k5``, ``k_lambda``, ``kf_plus_plus``) return NaN or infinity
    instead. Correct tensors cost one sum and one read on the host.

    Args:
        logp: Log-probs of the policy, any shape.
        ref_logp: Log-probs of the reference for the same tokens, the same shape.

    Raises:
        ValueError: no floating-point tensors of one shape, NaN, an infinity, or log-probs so far apart
            that their difference is infinite; the place is named.
    """
    check_pair(logp, ref_logp)
    log_w = ref_logp.detach() - logp.detach()
    if math.isfinite(log_w.sum(dtype=torch.promote_types(log_w.dtype, torch.float32))):
        return
    for name, x in (("logp", logp), ("ref_logp", ref_logp)):
        bad = ~x.isfinite()
        if any_wrong(bad):
            raise ValueError(
                f"{name} is {x[bad][0].item()} at {_first(bad)}, expected finite log-probabilities of "
                "sampled tokens: a token of probability zero has no log-ratio"
            )
    infinite = log_w.isinf()
    if any_wrong(infinite):  # otherwise each is finite, and only their sum overflowed
        raise ValueError(
            f"ref_logp - logp is infinite in {log_w.dtype} at {_first(infinite)}, expected log-ratios that "
            "it holds"
        )


def check_scores(name: str, x: torch.Tensor, where: torch.Tensor) -> None:
    """Raise ValueError if a row of logits [..., vocab] has NaN, +inf or only -inf, under ``where`` [...]."""
    rows = where.unsqueeze(-1)
    check_no_nan(name, x.detach(), rows)
    above = x.detach().isposinf() & rows
    if any_wrong(above):
        raise ValueError(
            f"{name} is inf at {_first(above)}, expected finite scores, or -inf for a masked token"
        )
    masked = x.detach().isneginf().all(-1) & where
    if any_wrong(masked):
        raise ValueError(
            f"{name} is -inf in the whole row {_first(masked)}, expected one token that is not masked"
        )


def check_vocabulary(name: str, x: torch.Tensor) -> None:
    """Raise ValueError unless ``x`` is a floating-point tensor [..., vocab]; values are not read."""
    check_floating(name, x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"{name} has shape {list(x.shape)}, expected [..., vocab] with vocab of at least 1")


def check_distribution(name: str, x: torch.Tensor) -> None:
    """Raise ValueError unless the last axis of ``x`` holds normalized log-probabilities.

    -inf entries are allowed (a masked vocabulary); rows must sum to one up to the dtype's rounding.
    """
    check_vocabulary(name, x)
    with torch.no_grad():
        half = torch.finfo(x.dtype).eps > 1e-4
        total = (x.float() if half else x).logsumexp(-1)
        if any_wrong(total.isnan()):  # looked for entry by entry only when a row's sum shows it
            check_no_nan(name, x)
        # what log_softmax and a sum over a large vocabulary round
        bad = total.abs() > (0.05 if half else max(1e-6, 2048 * torch.finfo(x.dtype).eps))
        if any_wrong(bad):
            where = _first(bad) if bad.ndim else ""
            got = total[bad][0].exp().item() if bad.ndim else total.exp().item()
            raise ValueError(
                f"{name} has a row {where} whose probabilities sum to {got:.6g}, expected 1: "
                "normalized log-probabilities are wanted (apply log_softmax to logits)"
            )


def check_mask_shape(completion_mask: torch.Tensor) -> None:
    """Raise ValueError unless the mask is a tensor [batch, seq]; values are not read."""
    if not isinstance(completion_mask, torch.Tensor) or completion_mask.ndim != 2:
        got = list(completion_mask.shape) if isinstance(completion_mask, torch.Tensor) else completion_mask
        raise ValueError(f"completion_mask has shape {got}, expected [batch, seq]")


def check_mask(completion_mask: torch.Tensor) -> None:
    """Raise ValueError unless the mask holds only 0 and 1 and every row has at least one token."""
    check_mask_shape(completion_mask)
    binary = (completion_mask == 0) | (completion_mask == 1)
    if any_wrong(~binary):
        at = _first(~binary)
        raise ValueError(f"completion_mask is neither 0 nor 1 at {at}: expected a mask of 0 and 1")
    empty = completion_mask.sum(-1) == 0
    if any_wrong(empty):
        raise ValueError(
            f"completion_mask row {_first(empty)} has no token: expected at least one per sequence"
        )
