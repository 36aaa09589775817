"""Read the files of this folder: a case is a call with bad input, and what the message to it must name.

A file lists blocks of `call: names`, below the kind of the bad input where a page shows it::

    - for: [exact_kl, exact_forward_kl]
      two vocabularies:
        fn(ALL, REF_ALL[..., :4]): ref_logp_all has shape [2, 3, 4]

`for` has the entry points, each of which is `fn` in the calls unless the block gives an expression for it.
`raises`, of a block or a file, is the exception where it is no ValueError. Calls are evaluated among the
public names, those of the samples and of the modules under `from`, and the expressions under `given`. What a
message must name are texts in their order, " .. " between two of them: the argument and the value, never the
advice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import sympy
import torch
import yaml

from kl_book.names import kl
from tests.refusals.case import Case

FOLDER = Path(__file__).parent
SAMPLES = "tests.refusals.samples"
PAGE = "estimating at_scale losing deriving enumerating commands projects language_models"


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice: one of two cases would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [
            key.value for key, _ in node.value if key.value not in ("for", "fn")
        ]  # a merged block has both
        if len(keys) > len({*keys}):
            raise ValueError(f"a case is twice in {self.name}: {sorted(keys)}")
        return super().construct_mapping(node, deep)


def content(name: str) -> dict[str, Any]:
    """A file of the catalogue as it is written."""
    with (FOLDER / f"{name}.yml").open(encoding="utf-8") as file:
        return yaml.load(file, _Loader)


def cases(name: str) -> Iterator[Case]:
    """The cases of a file, in its order."""
    file = content(name)
    names: dict[str, Any] = {"math": math, "partial": partial, "sympy": sympy, "torch": torch}
    for module in map(import_module, [SAMPLES, *file.get("from", [])]):
        names |= {each: getattr(module, each) for each in dir(module)}
    names |= {each: getattr(kl, each) for each in kl}
    for each, expression in file.get("given", {}).items():
        names[each] = eval(expression, names)
    for block in file["cases"]:
        rows = dict(block)
        entries, fn = rows.pop("for", ""), rows.pop("fn", "")
        raised = rows.pop("raises", file.get("raises", "ValueError"))
        several = isinstance(entries, list)
        for entry in entries if several else [entries]:
            known = names | {"fn": eval(fn or (entry if several else "None"), names)}
            for kind, calls in rows.items():
                for call, named in calls.items() if isinstance(calls, dict) else [(kind, calls)]:
                    where = entry or call.partition("(")[0]
                    yield Case(where, kind, partial(eval, call, known), raised, named)


GROUPS: dict[str, tuple[Case, ...]] = {
    content(f"page/{name}")["section"]: (*cases(f"page/{name}"),) for name in PAGE.split()
}
CASES: tuple[Case, ...] = tuple(case for group in GROUPS.values() for case in group)
