"""Records of TensorBoard event files and of offline files of wandb, by the standard library."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

BLOCK = 32768  # bytes of a block of LevelDB's log format
_HEADER = 7  # bytes before the first chunk, and before the content of every chunk
_FULL, _FIRST, _LAST = 1, 2, 4  # kinds of chunks


class Field(NamedTuple):
    """A field of a protobuf message.

    Attributes:
        number: Its number in the schema.
        value: An int for a varint, bytes for everything else.
    """

    number: int
    value: Any


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message; ValueError where it is no protobuf, or cut."""
    at, size = 0, len(message)
    while at < size:
        key, at = _varint(message, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield Field(key >> 3, value)
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"protobuf message has wire type {wire} at byte {at}, expected 0, 1, 2 or 5")
        length, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
        if at + length > size:
            raise ValueError(f"protobuf message ends at byte {size}, expected {at + length}")
        yield Field(key >> 3, message[at : at + length])
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError(f"protobuf message ends within a number at byte {at}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def event_rows(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the scalars of a TensorBoard event file, one row per event; a cut last record is left out.

    torch writes ``simple_value``, TensorFlow 2 a tensor.
    """
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        if at + 12 + size > len(data):
            return
        row: dict[str, Any] = {}
        for number, value in fields(data[at + 12 : at + 12 + size]):
            if number == 2:
                row["step"] = _signed(value)
            elif number == 5:
                row.update(_scalars(value))
        if set(row) - {"step"}:
            yield {"step": 0, **row}
        at += 16 + size


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for _, value in (x for x in fields(summary) if x.number == 1):
        tag, number = "", None
        for kind, content in fields(value):
            if kind == 1:
                tag = content.decode(errors="replace")
            elif kind == 2 and len(content) == 4:
                (number,) = struct.unpack("<f", content)
            elif kind == 8:
                number = _tensor(content)
        if number is not None:
            yield tag, number


def _tensor(content: bytes) -> float | None:
    parts = dict(fields(content))
    form = "<f" if parts.get(1) == 1 else "<d"
    for number in (5, 6, 4):  # float_val, double_val, tensor_content
        value = parts.get(number, b"")
        if isinstance(value, bytes) and len(value) == struct.calcsize(form):
            return float(struct.unpack(form, value)[0])
    return None


def offline_rows(data: bytes) -> tuple[list[dict[str, Any]], dict[str, Any], list[str]]:
    """Return the history rows, the configuration and the console lines of a ``run-*.wandb`` file.

    Args:
        data: The content: LevelDB's log format, with a ``wandb_internal.Record`` in every record. A record
            that a crash cut is left out.
    """
    rows: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    console: list[str] = []
    for record in _records(data):
        try:
            entries = list(fields(record))
        except ValueError:
            continue
        for number, value in entries:
            if number == 2:
                rows.append(_items(value, 1))
            elif number == 5:
                config.update(_items(value, 1))
            elif number == 17:
                for part in (x.value for x in fields(value) if x.number == 4):
                    config.update(_items(part, 1))
            elif number == 13:
                console += [x.value.decode(errors="replace") for x in fields(value) if x.number == 3]
    return rows, config, console


def _records(data: bytes) -> Iterator[bytes]:
    parts: list[bytes] = []
    at = _HEADER
    while at + _HEADER <= len(data):
        left = BLOCK - at % BLOCK
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if left < _HEADER or (kind == 0 and size == 0):
            at += left
            continue
        chunk = data[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        if len(chunk) < size:
            return
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(chunk)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def _items(message: bytes, number: int) -> dict[str, Any]:
    return dict(_item(x.value) for x in _bytes_only(fields(message)) if x.number == number)


def _bytes_only(every: Iterable[Field]) -> Iterator[Field]:
    return (x for x in every if isinstance(x.value, bytes))


def _item(message: bytes) -> tuple[str, Any]:
    """Return the key and the value of an item; releases write the value as JSON or in a typed field."""
    nested: list[str] = []
    key = ""
    value: Any = None
    for number, content in fields(message):
        if number == 1:
            key = content.decode(errors="replace")
        elif number == 2:
            nested.append(content.decode(errors="replace"))
        elif number == 4:
            value = bool(content)
        elif number == 5:
            value = _signed(content)
        elif number == 6:
            (value,) = struct.unpack("<d", content)
        elif number == 7:
            value = content.decode(errors="replace")
        elif number in (8, 16):
            try:
                value = json.loads(content)
            except ValueError:
                value = content.decode(errors="replace")
    return key or ".".join(nested), value
