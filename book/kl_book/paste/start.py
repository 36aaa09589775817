"""Where the page starts: the stand-in in PyTorch's place, recorded divergences in SymPy's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

from kl_book.paste.stand_in.namespace import modules

RECORDS = "records.json"  # beside the package


def start() -> None:
    """Make `kl_companion.auditing` importable without PyTorch and SymPy, with what `recorded` gave."""
    records = json.loads((Path(__file__).parents[2] / RECORDS).read_text(encoding="utf-8"))
    sys.modules.update(modules())
    sys.modules["sympy"] = _symbols()
    from kl_book.paste import divergences

    for name in ("forms", "generator", "registry", "compiled", "in_torch"):
        sys.modules[f"kl_companion.divergences.{name}"] = divergences
    divergences.read(records)
    import torch

    from kl_companion.auditing.worlds.trees import RECORDED, Condition

    for condition, vocab, places in records["fields"]:
        RECORDED[Condition(*condition), vocab, False] = tuple(
            {n: (value, torch.tensor(field, dtype=torch.float64)) for n, (value, field) in there.items()}
            for there in places
        )


def _symbols() -> ModuleType:
    """What `kl_companion.ops` asks SymPy for: the two classes that no object of a page has."""
    module = ModuleType("sympy")
    module.Expr = type("Expr", (), {})  # type: ignore[attr-defined]
    module.Function = type("Function", (module.Expr,), {})  # type: ignore[attr-defined]
    return module
