"""Random numbers as PyTorch draws them on a processor: the same generator, the same normal numbers.

The worlds of an audit are drawn from seeds, so that a verdict is the same wherever it is made.
"""

from __future__ import annotations

import math
import random
from typing import Any

from kl_book.paste.stand_in.arrays import size_of
from kl_book.paste.stand_in.kinds import FLOAT64, INT64
from kl_book.paste.stand_in.tensor import NotInPage, Tensor

_STATE = 624
_BLOCK = 16  # normal numbers that PyTorch makes at a time where there are so many
_BITS = 53


class Generator:
    """`torch.Generator`, the Mersenne Twister seeded by one number."""

    def __init__(self, device: Any = "cpu") -> None:
        self._twister = random.Random()
        self._spare: float | None = None
        self.manual_seed(67280421310721)

    def manual_seed(self, seed: int) -> Generator:
        """Start anew."""
        state = [seed & 0xFFFFFFFF]
        for i in range(1, _STATE):
            state.append((1812433253 * (state[-1] ^ (state[-1] >> 30)) + i) & 0xFFFFFFFF)
        self._twister.setstate((3, (*state, _STATE), None))
        self._spare = None
        return self

    def uniform(self) -> float:
        """A number between 0 and 1."""
        high, low = self._twister.getrandbits(32), self._twister.getrandbits(32)
        return (((high << 32) | low) & ((1 << _BITS) - 1)) / (1 << _BITS)

    def permutation(self, count: int) -> list[int]:
        """The numbers below ``count`` in another order."""
        found = list(range(count))
        for i in range(count - 1):
            j = i + self._twister.getrandbits(32) % (count - i)
            found[i], found[j] = found[j], found[i]
        return found

    def normal(self) -> float:
        """One normal number; every second one was made with the one before."""
        if self._spare is not None:
            found, self._spare = self._spare, None
            return found
        angle, size = 2 * math.pi * self.uniform(), math.sqrt(-2 * math.log1p(-self.uniform()))
        self._spare = size * math.sin(angle)
        return size * math.cos(angle)

    def normals(self, count: int) -> list[float]:
        """Normal numbers, in blocks where there are many."""
        if count < _BLOCK:
            return [self.normal() for _ in range(count)]
        found = [self.uniform() for _ in range(count)]
        for start in range(0, count - _BLOCK + 1, _BLOCK):
            found[start : start + _BLOCK] = _block(found[start : start + _BLOCK])
        if count % _BLOCK:
            found[-_BLOCK:] = _block([self.uniform() for _ in range(_BLOCK)])
        return found


def _block(uniform: list[float]) -> list[float]:
    half = _BLOCK // 2
    pairs = list(zip(uniform[:half], uniform[half:], strict=True))
    sizes = [math.sqrt(-2 * math.log(1 - u)) for u, _ in pairs]
    angles = [2 * math.pi * v for _, v in pairs]
    cosines = [r * math.cos(a) for r, a in zip(sizes, angles, strict=True)]
    return cosines + [r * math.sin(a) for r, a in zip(sizes, angles, strict=True)]


def _shape(sizes: tuple[Any, ...], generator: Generator | None, name: str) -> tuple[int, ...]:
    if generator is None:
        raise NotInPage(f"torch.{name} without a generator: a loss that draws")
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes


def randn(*sizes: Any, generator: Generator | None = None, **_: Any) -> Tensor:
    """Normal numbers from a generator."""
    shape = _shape(sizes, generator, "randn")
    assert generator is not None
    return Tensor(generator.normals(size_of(shape)), shape, FLOAT64)


def rand(*sizes: Any, generator: Generator | None = None, **_: Any) -> Tensor:
    """Numbers between 0 and 1 from a generator."""
    shape = _shape(sizes, generator, "rand")
    assert generator is not None
    return Tensor([generator.uniform() for _ in range(size_of(shape))], shape, FLOAT64)


def randperm(count: int, *, generator: Generator | None = None) -> Tensor:
    """The numbers below ``count`` in an order from a generator."""
    shape = _shape((count,), generator, "randperm")
    assert generator is not None
    return Tensor(generator.permutation(count), shape, INT64)
