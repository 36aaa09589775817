"""The text of a Triton function, run with torch's functions in the place of Triton's."""

from types import SimpleNamespace

import pytest
import sympy
import torch

from kl_companion.divergences import (
    DIVERGENCES,
    entries_of,
    get_divergence,
    power_divergence,
)
from kl_companion.divergences.in_triton import source_of_larger

TL = SimpleNamespace(**{name: getattr(torch, name) for name in ("exp", "log", "sqrt", "abs", "where")})
FAMILIES = ("amari_alpha(0.3)", "power_divergence(3)", "power_divergence(-0.7)", "skewed_kl(0.1)")
OWN = power_divergence(sympy.sqrt(2))


@pytest.mark.parametrize("d", [*map(get_divergence, (*DIVERGENCES, *FAMILIES)), OWN], ids=lambda d: d.name)
def test_the_text_computes_the_entries(d):
    space = {"tl": TL, "expm1": torch.expm1, "log1p": torch.log1p, "power": lambda x, n: x**n}
    exec(source_of_larger(d), space)
    down = -torch.tensor([1e-3, 0.1, 0.7, 3.0, 8.0], dtype=torch.float64)
    for got, want in zip(space["of_larger"](down), entries_of(d).of_larger(down), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)
