"""The kinds of numbers: floating ones are all float64, whole ones all int64, beside them bool.

An audit works in float64 whatever a trainer casts to, and so does this: `torch.float32`, `torch.bfloat16` and
`torch.half` are names of float64 here.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A dtype; kinds later in order take earlier ones in."""

    rank: int
    name: str
    is_floating_point: bool = False
    is_complex: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of a number, as torch has them."""
        return 1 if self.rank == 0 else 8

    def __repr__(self) -> str:
        """As torch prints it."""
        return f"torch.{self.name}"


BOOL, INT64, FLOAT64 = Kind(0, "bool"), Kind(1, "int64"), Kind(2, "float64", is_floating_point=True)
NAMES = {
    "bool": BOOL,
    **dict.fromkeys(("int64", "int32", "int16", "int8", "uint8", "long", "int", "short"), INT64),
    **dict.fromkeys(("float64", "float32", "float16", "bfloat16", "double", "float", "half"), FLOAT64),
}
_OF_TYPE = {bool: BOOL, int: INT64, float: FLOAT64}


def kind_of(number: Any) -> Kind:
    """The kind of a Python number.

    Raises:
        TypeError: it is none.
    """
    kind = _OF_TYPE.get(type(number))
    if kind is None:
        raise TypeError(f"{number!r} is a {type(number).__name__}, expected a tensor or a number")
    return kind


def as_kind(entries: list[Any], old: Kind, new: Kind) -> list[Any]:
    """Entries as another kind: whole numbers are cut off, and everything but 0 is true."""
    if old is new:
        return entries
    if new is FLOAT64:
        return list(map(float, entries))
    if new is BOOL:
        return [x != 0 for x in entries]
    return [int(x) if x == x and abs(x) != float("inf") else -(2**63) for x in entries]


class Limits(NamedTuple):
    """`torch.finfo` or `torch.iinfo`."""

    min: float
    max: float
    eps: float = 0.0
    tiny: float = 0.0
    smallest_normal: float = 0.0
    bits: int = 64


def finfo(kind: Kind = FLOAT64) -> Limits:
    """The limits of float64.

    Raises:
        TypeError: a kind of whole numbers.
    """
    if not kind.is_floating_point:
        raise TypeError(f"torch.finfo() requires a floating point dtype, got {kind}")
    f = sys.float_info
    return Limits(-f.max, f.max, f.epsilon, f.min, f.min)


def iinfo(kind: Kind = INT64) -> Limits:
    """The limits of int64."""
    return Limits(-(2**63), 2**63 - 1)
