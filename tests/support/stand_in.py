"""The same expression in PyTorch and in its stand-in: values, shapes, kinds and gradients have to agree."""

import math
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from kl_book.paste.stand_in.namespace import modules
from tests.support.data import data

OURS = modules()
INF, NAN = math.inf, math.nan
# inputs by name: floating ones ask for gradients
INPUTS = data(__file__)


def _inputs(torch_, given):
    tensors = {name: torch_.tensor(value) for name, value in given.items()}
    return {name: t.requires_grad_() if t.is_floating_point() else t for name, t in tensors.items()}


def _kind(t):
    return "float" if t.is_floating_point() else str(t.dtype).removeprefix("torch.")


def _tensors(result):
    if isinstance(result, (tuple, list)) and not hasattr(result, "numel"):
        return [t for part in result for t in _tensors(part)]
    return [result]


@contextmanager
def _doubles():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@_doubles()
def _found(torch_, functional, code, given):
    """Results of code in one of the two, as data, and the gradients of their sum with fixed weights."""
    inputs = _inputs(torch_, given)
    space = {"torch": torch_, "F": functional, "math": math, "inf": INF, "nan": NAN, **inputs}
    *lines, last = code.split("; ")
    exec("\n".join(lines), space)
    results = _tensors(eval(last, space))
    data, total = [], None
    for t in results:
        if not hasattr(t, "is_floating_point"):
            data.append(t)
            continue
        data.append((_kind(t), list(t.shape), t.detach().tolist(), bool(t.requires_grad)))
        if t.requires_grad:
            weights = torch_.tensor([math.sin(2.0 + i) for i in range(t.numel())]).reshape(t.shape)
            part = (t * weights).sum()
            total = part if total is None else total + part
    slopes = {}
    if total is not None:
        leaves = {name: t for name, t in inputs.items() if t.requires_grad}
        found = torch_.autograd.grad(total, list(leaves.values()), allow_unused=True)
        slopes = {n: None if g is None else g.tolist() for n, g in zip(leaves, found, strict=True)}
    return data, slopes


def near(a, b):
    """Whether two results are the same but for rounding."""
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(near, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(near(a[k], b[k]) for k in a)
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or math.isclose(a, b, rel_tol=1e-11, abs_tol=1e-13)
    return a == b and type(a) is type(b)


def _zeros(slopes, other):
    """No part in the result, or a gradient of 0, are the same to whoever reads it."""
    return {n: _filled(other[n], 0.0) if g is None and other[n] is not None else g for n, g in slopes.items()}


def _filled(like, value):
    return [_filled(part, value) for part in like] if isinstance(like, list) else value


def agree(code, **more):
    """Assert that both find the same."""
    given = {name: value for name, value in {**INPUTS, **more}.items() if name in code}
    theirs, slopes = _found(torch, F, code, given)
    ours, own = _found(OURS["torch"], OURS["torch.nn.functional"], code, given)
    assert near(theirs, ours), (code, theirs, ours)
    slopes, own = _zeros(slopes, own), _zeros(own, slopes)
    assert near(slopes, own), (code, slopes, own)


def both_refuse(code, **more):
    """Assert that both raise; the stand-in's own error."""
    given = {name: value for name, value in {**INPUTS, **more}.items() if name in code}
    caught = []
    for space in ((torch, F), (OURS["torch"], OURS["torch.nn.functional"])):
        try:
            _found(*space, code, given)
        except Exception as error:
            caught.append(error)
    assert len(caught) == 2, (code, caught)
    return caught[1]
