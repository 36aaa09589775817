"""Whether two verdicts as data are the same."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from dataclasses import is_dataclass
from typing import Any

from kl_companion.auditing import audit
from kl_companion.auditing.reading.sources import pairs, value_of
from kl_companion.cli import load_function
from tests.support.corpus import corpus

WANT = "reverse_kl"


def difference(a: Any, b: Any, path: str = "") -> str:
    """Where two answers as data differ by more than 1e-9; "" where they do not."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        found = (difference(a[k], b[k], f"{path}.{k}") for k in a)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        found = (difference(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    elif isinstance(a, float | int) and isinstance(b, float | int) and not isinstance(a, bool):
        close = math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
        return "" if close else f"{path}: {a!r} and {b!r}"
    else:
        return "" if a == b else f"{path}: {a!r} and {b!r}"
    return next((text for text in found if text), "")


def requests() -> dict[str, dict[str, str]]:
    """Every loss of the corpus as it is pasted, by its name: its file, and the fields."""
    return {
        f"{path.stem}.{name}": {
            "code": path.read_text(encoding="utf-8"),
            "name": name,
            "want": WANT,
            "map": ", ".join(f"{theirs}={ours}" for theirs, ours in hand.map.items()),
            "set": ", ".join(option for n, value in hand.options.items() for option in _options(n, value)),
        }
        for path, name, hand in corpus()
    }


def _options(name: str, value: Any) -> list[str]:
    """An option as it is typed; of a configuration all its fields."""
    if is_dataclass(value) or isinstance(value, Namespace):
        return [f"{name}.{field}={x!r}" for field, x in vars(value).items()]
    return [f"{name}={value!r}"]


def by_command_line(loss: str) -> Any:
    """What `kl-companion audit FILE:FUNCTION --want reverse_kl --json` prints of a loss of the corpus."""
    path, name, hand = next(x for x in corpus() if f"{x[0].stem}.{x[1]}" == loss)
    options = {n: value_of(text) for n, text in pairs(requests()[loss]["set"], "--set").items()}
    found = audit(load_function(f"{path}:{name}"), want=WANT, roles=hand.map, options=options)
    return json.loads(json.dumps({**found.to_dict(), "versions": None}, allow_nan=False))
