"""Divergences of whole distributions: logits up to 1e4, masked tokens, equal and disjoint supports.

In four dtypes: the exact number or an error, and no NaN in a gradient.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import exp, inf, log, mpf, workdps

from kl_companion import DIVERGENCES, exact_forward_kl, exact_kl, f_divergence
from kl_companion.estimators import top_k_f_divergence, truncated_f_divergence
from kl_companion.kernels import fused_f_divergence, linear_f_divergence
from tests.numerics.bounds import DTYPES, Between, around, logits, sums
from tests.numerics.settings import EXAMPLES
from tests.oracles.exactly import OF_SAMPLES, entry

Row = list[float]


def finite(x: torch.Tensor) -> bool:
    return bool(x.isfinite().all())


def divergence_of(name: str, log_p: Row, log_q: Row, error: float, dtype: torch.dtype) -> Between | None:
    """D_f of these log-probs, of which each may be off by `error` times a log-ratio; None if infinite."""
    eps, parts = mpf(torch.finfo(dtype).eps), []
    for a, b in zip(map(mpf, log_p), map(mpf, log_q), strict=True):
        at = entry(name, a, b)
        if at == inf:
            return None
        live = a > -inf and b > -inf
        off = mpf(error) + 4 * eps * abs(a - b) if live else mpf(0)
        near = [entry(name, a + x * off, b + y * off) for x in (-1, 0, 1) for y in (-1, 0, 1)]
        steps = min(abs(a - b), mpf(16)) if live else mpf(0)
        of_masses = exp(max(a, b)) * min(steps, mpf(1)) if live else abs(at)
        parts.append(Between(near, 16 * (max(map(abs, near)) * (1 + steps) + of_masses), dtype))
    return sums(parts, dtype)


def normalized(row: Row) -> list[mpf]:
    """Exact log-probs of logits."""
    largest = max(row)
    total = log(sum(exp(mpf(x) - largest) for x in row))
    return [mpf(x) - largest - total for x in row]


def draw_logits(data: Any, dtype: torch.dtype) -> torch.Tensor:
    """Two rows of logits, of policy and reference: [2, vocab]."""
    tokens = data.draw(st.integers(1, 5))
    first = data.draw(logits(tokens))
    kind = data.draw(st.sampled_from(["any", "equal", "near", "disjoint", "same mask"]))
    second = data.draw(logits(tokens)) if kind in ("any", "same mask") else list(first)
    if kind == "near":
        second = [x + data.draw(st.floats(-1e-3, 1e-3)) for x in first]
    if kind == "disjoint" and tokens > 1:
        first, second = [*first[:-1], -math.inf], [-math.inf] * (tokens - 1) + [0.0]
        first = first if max(first) > -math.inf else [0.0] * (tokens - 1) + [-math.inf]
    if kind == "same mask":
        second = [b if a > -math.inf else a for a, b in zip(first, second, strict=True)]
        second = second if max(second) > -math.inf else list(first)
    return torch.tensor([first, second], dtype=dtype)


def check(name: str, call: Any, inputs: list[torch.Tensor], wanted: Between | None) -> None:
    """The number and its gradients, or an error that says it is infinite, or beyond the dtype where it is."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    beyond = rf"{re.escape(name)}.* is beyond torch\.float(32|64): its largest ratios overflow"
    if wanted is None:
        with pytest.raises(ValueError, match=rf"{re.escape(name)}.* is infinite at|{beyond}"):
            call(*leaves)
        return
    try:
        value = call(*leaves)
    except ValueError as error:
        if wanted.overflows and re.search(beyond, str(error)):
            return
        raise
    assert wanted.holds(value.item()), (value.item(), wanted)
    slopes = torch.autograd.grad(value, leaves, allow_unused=True)
    assert not any(s.isnan().any() for s in slopes if s is not None), slopes


def check_infinite(call: Any, inputs: list[torch.Tensor]) -> None:
    """Without checks of values an infinite divergence is inf, and its gradient holds no NaN."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = call(*leaves)
    assert value.item() == math.inf
    slopes = torch.autograd.grad(value, leaves, allow_unused=True)
    assert not any(s.isnan().any() for s in slopes if s is not None), slopes


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_of_log_probs(name: str, dtype: torch.dtype, data: Any) -> None:
    logp, ref = draw_logits(data, dtype).log_softmax(-1)
    with workdps(60):
        wanted = divergence_of(name, logp.tolist(), ref.tolist(), 0.0, dtype)
    whole = logp.numel()
    calls = [partial(f_divergence, name), partial(truncated_f_divergence, name, k=whole)]
    calls += {"reverse_kl": [exact_kl], "forward_kl": [exact_forward_kl]}.get(name, [])
    for call in calls:
        check(name, partial(call, validate=True), [logp, ref], wanted)
        if wanted is None:
            check_infinite(call, [logp, ref])
        else:
            check(name, call, [logp, ref], wanted)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_of_logits(name: str, dtype: torch.dtype, data: Any) -> None:
    rows = draw_logits(data, dtype)
    working = torch.float64 if dtype == torch.float64 else torch.float32
    large = rows[rows.isfinite()].abs().max().item()
    error = 8 * torch.finfo(working).eps * (1 + large)
    with workdps(60):
        log_p, log_q = (normalized(row) for row in rows.tolist())
        wanted = divergence_of(name, log_p, log_q, error, working)
    check(name, partial(fused_f_divergence, name, validate=True), [rows[0], rows[1]], wanted)
    if finite(rows):
        one = torch.eye(rows.shape[1], dtype=dtype)

        def from_hidden(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            reference = {"ref_hidden": b[None].detach(), "ref_weight": one}
            return linear_f_divergence(name, a[None], one, **reference, validate=True)[0]

        check(name, from_hidden, [rows[0], rows[1]], wanted)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_head_and_a_sample(name: str, dtype: torch.dtype, data: Any) -> None:
    logp, ref = draw_logits(data, dtype).log_softmax(-1)
    vocab = logp.numel()
    token = data.draw(st.sampled_from([j for j in range(vocab) if logp[j] > -math.inf]))
    head = sorted(data.draw(st.sets(st.integers(0, vocab - 1))))
    index = torch.tensor(head, dtype=torch.int64)

    def call(a: torch.Tensor, b: torch.Tensor, *, validate: bool = False) -> torch.Tensor:
        tokens = torch.tensor([token])
        return top_k_f_divergence(name, a[None], b[None], tokens, indices=index, validate=validate)[0]

    if token not in head and ref[token] == -math.inf:
        with pytest.raises(ValueError, match=r"ref_logp_all of the sampled tokens is -inf|is infinite at"):
            call(logp, ref, validate=True)
        leaf = logp.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(leaf, ref), leaf)
        assert not slope.isnan().any()
        return
    with workdps(60):
        wanted = divergence_of(name, logp[index].tolist(), ref[index].tolist(), 0.0, dtype)
        if wanted is not None and token not in head:
            value = OF_SAMPLES[f"kf_plus_plus({name})"][0]
            u = mpf(ref[token].item()) - mpf(logp[token].item())
            wanted = sums([wanted, around(value, u, torch.finfo(dtype).eps, dtype)], dtype)
    check(name, partial(call, validate=True), [logp, ref], wanted)
    if wanted is None:
        check_infinite(call, [logp, ref])
    else:
        check(name, call, [logp, ref], wanted)
