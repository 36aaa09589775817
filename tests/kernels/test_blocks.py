"""New memory is asked for in large pages, where the system has them."""

import sys
from pathlib import Path

import pytest
import torch

from kl_companion.kernels import blocks
from kl_companion.kernels.blocks import new_like

MAPS = Path("/proc/self/smaps")


def flags_at(address):
    """What Linux says of the memory at an address."""
    inside = False
    for line in MAPS.read_text().splitlines():
        head = line.split(" ")[0]
        if "-" in head and ":" not in head:
            start, stop = (int(part, 16) for part in head.split("-"))
            inside = start <= address < stop
        if inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not tell of its pages")
@pytest.mark.parametrize(("entries", "large"), [(1 << 24, True), (1 << 10, False)])
def test_large_tensors_ask_for_large_pages(entries, large):
    made = new_like(torch.empty(entries))
    middle = made.data_ptr() + made.nbytes // 2
    assert ("hg" in flags_at(middle)) == large


def test_shapes_dtypes_and_other_systems(monkeypatch):
    x = torch.zeros(3, 8, dtype=torch.bfloat16).T
    made = new_like(x)
    assert made.shape == (8, 3)
    assert made.dtype == torch.bfloat16
    assert made.is_contiguous()
    assert new_like(torch.empty(1 << 30, device="meta")).device.type == "meta"
    monkeypatch.setattr(sys, "platform", "another")
    blocks._madvise.cache_clear()
    assert new_like(torch.zeros(1 << 22)).shape == (1 << 22,)
    blocks._madvise.cache_clear()


def test_a_processor_cuts_rows_and_a_gpu_cuts_its_own():
    assert blocks.pieces(151_936, torch.device("cpu")) == 64
    assert blocks.pieces(151_936, torch.device("cuda")) == 1
    numbers = torch.arange(6.0).view(2, 3)
    assert blocks.by_piece(numbers, 2).tolist() == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]
    alone = blocks.by_piece(numbers, 1)
    assert torch.equal(alone, numbers)
    assert alone.data_ptr() != numbers.data_ptr()


def test_blocks_of_a_gpu_are_large_and_leave_room_for_what_an_eager_kernel_makes_of_them():
    for compiled in (False, True):
        assert blocks.block_bytes(torch.device("cuda"), compiled=compiled) == 1 << 27
