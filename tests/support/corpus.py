"""Losses in the form in which trainers write them, with verdicts that were derived by hand."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

FOLDER = Path(__file__).parents[1] / "auditing" / "corpus"


class Hand(NamedTuple):
    """What a loss minimizes, in the limit of many answers to one prompt, where lengths vary.

    A loss that returns one value per token is summed over the tokens of an answer and averaged over answers;
    of a tuple it is the first entry.

    Attributes:
        fresh: {objective: coefficient} where the policy itself has sampled. {} is an expected gradient of
            zero, None is no sum of at most three known objectives beside one of the rewards.
        stale: The same where an older policy has sampled.
        per: What every coefficient is multiplied by: "" is nothing, "tokens" 1 / (mean length of the answers
            of the batch), "answers" their number, "width" 1 / (padded length of the batch),
            "tokens_deviation" 1 / (that mean length x the standard deviation of rewards), "batch" one common
            factor from other statistics of the batch.
        options: Settings that the function, or the class, has to be given.
        clamped: Whether a clamp takes gradients away at large ratios, so that both verdicts are for small
            ones: to the reference with logarithms below 2.6, where K3 is below 10, to the sampler below 2.
        tool: Whether it minimizes the same where answers contain a tool's text; None where that was not
            derived, as of a loss without a mask.
        why: The derivation.
        map: What a name means where it does not say it.
    """

    fresh: dict[str, float] | None
    stale: dict[str, float] | None
    per: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    clamped: bool = False
    tool: bool | None = None
    why: str = ""
    map: dict[str, str] = {}  # noqa: RUF012 - never changed


@cache
def load(path: Path) -> ModuleType:
    """The module of that file, imported alone."""
    name = f"tests.auditing.corpus.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # a dataclass looks its own module up
    spec.loader.exec_module(module)
    return module


def corpus() -> Iterator[tuple[Path, str, Hand]]:
    """Every loss: its file, its name in it (``function`` or ``Class.method``), and its verdict."""
    for stem, losses in yaml.safe_load((FOLDER / "verdicts.yml").read_text(encoding="utf-8")).items():
        path = FOLDER / f"{stem}.py"
        for name, fields in losses.items():
            if "both" in fields:
                fields["fresh"] = fields["stale"] = fields.pop("both")
            # an option may be an expression of the file
            options = {n: eval(str(x), vars(load(path))) for n, x in fields.pop("options", {}).items()}
            yield path, name, Hand(**fields, options=options)
