"""The emulated GPU sees every read of a known program, and refuses what CUDA refuses."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.support.emulated_gpu import CUDA, EmulatedGPU

READS = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x.sum()),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "format": lambda x: f"{x.sum():.3f}",
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "mask": lambda x: x[x > 0],
    "write under a mask": lambda x: x.index_put_((x > 0,), torch.tensor(0.0)),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "masked_select": lambda x: x.masked_select(x > 0),
    "as an index": lambda x: x[x.argmax() % 2],
    "into the host's memory": lambda x: torch.empty(2, 3).copy_(x),
}


@pytest.mark.parametrize("name", READS)
def test_a_read_is_counted_with_its_place(name: str) -> None:
    with EmulatedGPU() as gpu:
        x = gpu.put(torch.randn(2, 3))
        (read,) = gpu.reads_of(lambda: READS[name](x))
    assert "test_emulated_gpu.py" in read.place


def test_work_on_the_device_is_no_read() -> None:
    with EmulatedGPU() as gpu:
        x = gpu.put(torch.randn(2, 3, requires_grad=True))

        def work() -> torch.Tensor:
            y = (x @ x.T).softmax(-1) + torch.arange(2, device=x.device) + torch.tensor(1.0)
            y = y + x.new_zeros(2) + torch.tensor([1.0, 2.0], device=x.device) + torch.zeros_like(y)
            loss: torch.Tensor = y[:, [0, 1]].where(y > 0, 0.0).sum()
            loss.backward()
            return loss

        assert gpu.reads_of(work) == []
        assert x.grad is not None
        assert x.grad.device == work().device == CUDA


def test_numbers_are_those_of_the_cpu() -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    (leaf.exp().cumsum(-1)[:, ::2].T @ leaf).sum().backward()
    with EmulatedGPU() as gpu:
        x = gpu.put(leaf)
        (x.exp().cumsum(-1)[:, ::2].T @ x).sum().backward()
        assert x.grad is not None
        assert leaf.grad is not None
        assert torch.equal(x.grad.cpu(), leaf.grad)
    assert torch.equal(leaf, x.cpu())  # also outside of the context


MIXED = {
    "two devices": lambda x: x + torch.ones(3),
    "an index": lambda x: x.gather(-1, torch.zeros(2, 1, dtype=torch.long)),
    "a cat": lambda x: torch.cat([x, torch.ones(1, 3)]),
    "a generator": lambda x: torch.rand(2, device=x.device, generator=torch.Generator()),
}


@pytest.mark.parametrize("name", MIXED)
def test_two_devices_are_refused(name: str) -> None:
    with EmulatedGPU() as gpu, pytest.raises(RuntimeError, match=r"cuda.* cpu|'cpu'"):
        MIXED[name](gpu.put(torch.randn(2, 3)))


def test_numpy_is_refused() -> None:
    with EmulatedGPU() as gpu, pytest.raises(TypeError, match="can't convert cuda"):
        gpu.put(torch.ones(2)).numpy()


def test_a_module_moves_with_its_tied_weights() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    module[2].weight = module[0].weight
    x = torch.randn(4, 3)
    expected = copy.deepcopy(module)(x)
    with EmulatedGPU() as gpu:
        gpu.move(module)
        assert module[0].weight is module[2].weight
        again = copy.deepcopy(module)
        assert again[0].weight is again[2].weight
        assert isinstance(again[0].weight, torch.nn.Parameter)
        torch.testing.assert_close(again(gpu.put(x)).cpu(), expected)
