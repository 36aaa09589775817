"""Every public formula works where torch's functions do: vmap, compile, meta, views, inference mode.

The formulas are those of the registry and of ``__all__``, so that a new one is tested too.
"""

from __future__ import annotations

import math
import pickle
from functools import partial

import pytest
import torch

import kl_companion.checks
import kl_companion.divergences.inline
import kl_companion.estimators as room
import kl_companion.estimators.vocabulary
from kl_companion.divergences import T, make_divergence
from kl_companion.estimators import ESTIMATORS, Estimator, get_estimator
from kl_companion.estimators.registry import ESTIMATOR_FAMILIES
from tests.support.transforms import SETTINGS, Function, compiled_by_default, default_dtype, host_reads

pytestmark = pytest.mark.slow

VOCAB = 7
CUBIC = make_divergence("cubic", (T - 1) ** 2 * (T + 2), source="test")
MEMBERS = {  # of each family another one than those that are registered
    "f_divergence": ("f_divergence(amari_alpha(0.3))",),
    "k_lambda": ("k_lambda(1/3)",),
    "kf_plus_plus": ("kf_plus_plus(reverse_kl, generic)", "kf_plus_plus(forward_kl, published)"),
    "top_k_reverse_kl": ("top_k_reverse_kl(3)", "top_k_reverse_kl(0)", "top_k_reverse_kl(2, published)"),
    "top_k_forward_kl": ("top_k_forward_kl(3)",),
    "top_k_f_divergence": ("top_k_f_divergence(neyman, 2)",),
    "truncated_kl": ("truncated_kl(2)",),
}
NAMES = [n for n in ESTIMATORS if "(32)" not in n] + [n for names in MEMBERS.values() for n in names]
FUNCTIONS: dict[str, tuple[str, Function]] = {
    "f_divergence": ("vocab", partial(room.f_divergence, "pearson")),
    "f_divergence of an own f": ("vocab", partial(room.f_divergence, CUBIC)),
    "exact_kl": ("vocab", room.exact_kl),
    "exact_forward_kl": ("vocab", room.exact_forward_kl),
    "top_k_f_divergence": ("top_k", partial(room.top_k_f_divergence, CUBIC, k=2)),
    "top_k_reverse_kl": ("top_k", partial(room.top_k_reverse_kl, k=2)),
    "top_k_forward_kl": ("top_k", partial(room.top_k_forward_kl, k=2)),
    "truncated_f_divergence": ("vocab", partial(room.truncated_f_divergence, "neyman", k=2)),
    "truncated_kl": ("vocab", partial(room.truncated_kl, k=2, form="generic")),
    **{name: ("sampled", getattr(room, name)) for name in ("k1", "k2", "k3", "k3_plus_plus", "k4", "k5")},
    "k_lambda": ("sampled", room.k_lambda(0.3)),
    "kf_plus_plus": ("sampled", room.kf_plus_plus(CUBIC, "generic")),
}
NO_FORMULA = {"Estimator", "ESTIMATORS", "get_estimator", "register_estimator", "TopK"}


ENTRIES = {name: get_estimator(name) for name in NAMES}
CASES = {**{name: (e.inputs, e.fn) for name, e in ENTRIES.items()}, **FUNCTIONS}


def arguments(inputs: str, dtype: torch.dtype, length: int) -> tuple[torch.Tensor, ...]:
    """Arguments of a formula: log-probs [4, length], or rows [4, length, vocab] and sampled ids."""
    generator = torch.Generator().manual_seed(length)
    if inputs == "sampled":
        return tuple(-2 * torch.rand(2, 4, length, generator=generator, dtype=dtype))
    scores = 3 * torch.randn(2, 4, length, VOCAB, generator=generator, dtype=dtype)
    rows = tuple(scores.log_softmax(-1))
    if inputs == "vocab":
        return rows
    return (*rows, torch.randint(VOCAB, (4, length), generator=generator))


def test_no_formula_is_left_out() -> None:
    assert set(MEMBERS) == set(ESTIMATOR_FAMILIES)
    assert set(room.__all__) - NO_FORMULA <= set(FUNCTIONS)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CASES)
def test_a_formula_in_every_setting(name: str, setting: str) -> None:
    inputs, fn = CASES[name]
    dtypes = (torch.float32,) if setting == "compile" else (torch.float32, torch.float64)
    for dtype in dtypes:
        SETTINGS[setting](fn, partial(arguments, inputs, dtype))


@pytest.mark.parametrize(
    "name", ["k3", "kf_plus_plus", "f_divergence", "exact_kl", "top_k_f_divergence", "truncated_kl"]
)
def test_a_formula_in_graphs_by_default(name: str) -> None:
    inputs, fn = CASES[name]
    compiled_by_default(fn, partial(arguments, inputs, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_a_formula_reads_at_most_one_value(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, fn = CASES[name]
    args = arguments(inputs, dtype, 3)
    far = tuple(x * 40 if x.is_floating_point() else x for x in args)
    lost = tuple(x.clone() for x in args)
    for x in lost:
        if x.is_floating_point():
            x[..., 0] = -math.inf
    reads = [len(host_reads(fn, *x)) for x in (args, far, lost)]
    assert max(reads) <= 1
    for module in (kl_companion.checks, kl_companion.divergences.inline, kl_companion.estimators.vocabulary):
        monkeypatch.setattr(module, "may_look", lambda *tensors: False)  # the answer for a GPU
    for x in (args, far, lost):
        assert host_reads(fn, *x) == []


@pytest.mark.parametrize("name", CASES)
def test_without_a_look_the_numbers_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, fn = CASES[name]
    args = arguments(inputs, torch.float64, 5)
    leaf = args[0].clone().requires_grad_()
    plain = fn(leaf, *args[1:])
    (slope,) = torch.autograd.grad(plain.sum(), leaf)
    for module in (kl_companion.divergences.inline, kl_companion.estimators.vocabulary):
        monkeypatch.setattr(module, "may_look", lambda *tensors: False)
    blind = fn(leaf, *args[1:])
    torch.testing.assert_close(blind, plain, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(torch.autograd.grad(blind.sum(), leaf)[0], slope, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_an_estimator_pickles(name: str) -> None:
    entry = get_estimator(name)
    copy = pickle.loads(pickle.dumps(entry))
    assert isinstance(copy, Estimator)
    assert (copy.name, copy.target, copy.inputs, copy.source) == entry[:1] + entry[2:]
    args = arguments(entry.inputs, torch.float64, 3)
    assert torch.equal(copy.fn(*args), entry.fn(*args))
    again = pickle.loads(pickle.dumps(entry))  # after the first call, when functions are compiled
    assert torch.equal(again.fn(*args), entry.fn(*args))


def test_reads_are_counted() -> None:
    x = torch.tensor([0.5, -1.0])
    assert host_reads(lambda: float(x.sum())) == ["aten._local_scalar_dense"]
    assert len(host_reads(lambda: x[x > 0])) >= 1
    assert len(host_reads(lambda: bool((x > 0).any()))) == 1
    assert len(host_reads(lambda: (x > 0).nonzero())) == 1


def test_a_formula_that_decides_by_a_value_fails_in_its_settings() -> None:
    def decides(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y if (x > y).any() else y - x

    for name in ("vmap", "compile", "meta"):
        with pytest.raises(Exception, match=r"[dD]ata-dependent|meta tensors|control flow"):
            SETTINGS[name](decides, partial(arguments, "sampled", torch.float32))


def test_a_formula_that_takes_the_default_dtype_fails() -> None:
    def mixes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y + torch.tensor([0.1])

    with default_dtype(torch.float64), pytest.raises(AssertionError):
        SETTINGS["default dtype"](mixes, partial(arguments, "sampled", torch.float32))
