"""Every public formula works where torch's functions do: vmap, compile, meta, views, inference mode."""

from __future__ import annotations

import pytest
import torch

from kl_companion.estimators import ESTIMATORS
from tests.support.transforms import SETTINGS, default_dtype, host_reads

FIXED = [n for n, e in ESTIMATORS.items() if e.inputs == "sampled" and not n.startswith("kf_plus_plus")]


def of_samples(length: int) -> tuple[torch.Tensor, ...]:
    """Log-probs of policy and reference, [4, length]."""
    generator = torch.Generator().manual_seed(length)
    return tuple(-2 * torch.rand(2, 4, length, generator=generator, dtype=torch.float32))


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", FIXED)
def test_a_sampled_estimator_in_every_setting(name: str, setting: str) -> None:
    SETTINGS[setting](ESTIMATORS[name].fn, of_samples)


@pytest.mark.parametrize("name", FIXED)
def test_a_sampled_estimator_reads_nothing_on_the_host(name: str) -> None:
    assert host_reads(ESTIMATORS[name].fn, *of_samples(3)) == []


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
        with pytest.raises(
            Exception, match=r"data-dependent|Data-dependent|meta tensors|Dynamic|control flow"
        ):
            SETTINGS[name](decides, of_samples)


def test_a_formula_that_takes_the_default_dtype_fails() -> None:
    def mixes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x - y + torch.tensor([0.1])

    with default_dtype(torch.float64), pytest.raises(AssertionError):
        SETTINGS["default dtype"](mixes, of_samples)
