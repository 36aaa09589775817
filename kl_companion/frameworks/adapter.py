"""A framework out of its file, such as ``verl.toml``: what a user writes, and which function computes it.

The functions are in the module of the same name, or in those that ``functions`` lists, and in `formulas`:
those that ``__all__`` names. The file has the fields of `Framework`, and:

* ``[[algorithms]]``: the fields of `Algorithm`; ``of`` is the framework of ``place``, if it is another one.
* ``[[settings]]``: the fields of `Setting` (with ``shipped`` for its ``beta``), or families of settings that
  share them. Each row of ``each`` is one of a family, and texts of the family write ``{kind}`` for what the
  row calls ``kind``. ``loss`` names a function of a rollout; ``terms`` one whose values [batch, seq] are
  differentiated (``how`` they are gathered: tokens or sequences) or charged (to the tokens ``ahead`` of them
  too, or to their own); ``with`` lists what of the row it is called with. ``ship`` names a function of a
  release and of options, which are those of ``with`` and of ``options``; see `Shipped`. ``algorithms``
  are all of the file, unless some are named by their ``key``, with changes or without.
* ``[common]``: what all settings share; ``[words]``: what stands for a short name of an ``aggregation``.

Names are written without the framework's own, places as ``file, function``. A function with options of its
own is ``{ call = "by", estimator = "gae" }``, or of a release ``{ ship = "grpo", loss_type = "dapo" }``.
``[history]`` has what is followed through past releases, see `kl_companion.frameworks.history.subjects`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks import formulas
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.installed import FOLDER, Distribution, SourceLocation, find, known, read
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.frameworks.shipped import Loss, Shipped
from kl_companion.rollout import Rollout

Functions = Mapping[str, Callable[..., Any]]
Row = dict[str, Any]
Ship = Callable[[Distribution, Row], Shipped]


class Adapter(NamedTuple):
    """A framework and its settings, in the order of the page."""

    framework: Framework
    settings: tuple[Setting, ...]


@cache
def adapter(name: str) -> Adapter:
    """The adapter in the file of this name."""
    data = read(name)
    remedy = data["remedy"]
    sequence, token = (
        f"{name}.{remedy[level]}" if level in remedy else None for level in ("sequence", "token")
    )
    instead = Remedy(sequence, token, remedy.get("words", ""))
    of = Framework(name, data["title"], *known(name), instead, data.get("without", ""))
    functions = functions_of(name)
    algorithms = {a.get("key", a["name"]): _algorithm(a, of, functions) for a in data.get("algorithms", ())}
    words = data.get("words", {})
    return Adapter(of, tuple(_setting(row, of, functions, algorithms, words) for row in _rows(data)))


def functions_of(framework: str) -> Functions:
    """Functions that the file of a framework may call, by name."""
    functions = {name: getattr(formulas, name) for name in formulas.__all__}
    for name in read(framework).get("functions", (framework,)):
        if (FOLDER / f"{name}.py").is_file():
            # what decides whether a table or a chapter is stale reads this line: it leads to every module
            public = import_module(f"kl_companion.frameworks.{name}").__all__
            module = import_module(f"kl_companion.frameworks.{name}")
            functions |= {function: getattr(module, function) for function in public}
    return functions


def _function(entry: str | Row, functions: Functions) -> Callable[..., Any]:
    if isinstance(entry, str):
        return functions[entry]
    options = dict(entry)
    return partial(functions[options.pop("call")], **options)


def _shipped(ship: Ship, framework: str, options: Row) -> Loss:
    """The loss of the installed release; it is looked for when the loss is first called."""

    @cache
    def installed() -> Loss:
        return ship(find(*known(framework)), options).loss

    def loss(rollout: Rollout, **more: torch.Tensor) -> torch.Tensor:
        return installed()(rollout, **more)

    return loss


def _place(text: str, of: str = "") -> SourceLocation:
    file, _, function = text.partition(", ")
    return SourceLocation(file, function, *(known(of) if of else ()))


def _algorithm(entry: Row, of: Framework, functions: Functions) -> Algorithm:
    recipe = dict(entry["recipe"])
    if "normalize" in recipe:
        recipe["normalize"] = _function(recipe["normalize"], functions)
    if "clip" in recipe:
        recipe["clip"] = tuple(recipe["clip"])
    return Algorithm(
        entry["name"],
        Recipe(**recipe),
        _place(entry["place"], entry.get("of", "")),
        entry.get("when", ""),
        entry.get("instead", ""),
        entry.get("after", False),
        _policy(entry["policy"], of, functions) if "policy" in entry else None,
    )


def _policy(entry: str | Row, of: Framework, functions: Functions) -> Callable[..., Any]:
    if isinstance(entry, str) or "call" in entry:
        return _function(entry, functions)
    options = dict(entry)
    return _shipped(functions[options.pop("ship")], of.name, options)


def _chosen(entry: str | Row, algorithms: Mapping[str, Algorithm]) -> Algorithm:
    if isinstance(entry, str):
        return algorithms[entry]
    changes = dict(entry)
    return algorithms[changes.pop("key")]._replace(**changes)


def _rows(data: Row) -> Iterator[Row]:
    """Every setting as one row, its texts filled in."""
    for family in data["settings"]:
        shared = {**data.get("common", {}), **family}
        for own in shared.pop("each", ({},)):
            row = {**shared, **own}
            yield {n: x.format_map(row) if isinstance(x, str) and n not in own else x for n, x in row.items()}


def _setting(
    row: Row,
    of: Framework,
    functions: Functions,
    algorithms: Mapping[str, Algorithm],
    words: Mapping[str, str],
) -> Setting:
    loss, level, aggregation = _loss(row, of, functions)
    aggregation = row.get("aggregation", aggregation)
    return Setting(
        name=f"{of.name}.{row['name']}",
        option=row["option"],
        loss=loss,
        place=_place(row["place"]),
        placement=row.get("placement", "loss"),
        level=row.get("level", level),
        aggregation=words.get(aggregation, aggregation),
        framework=of,
        default=row.get("default", ""),
        note=row.get("note", ""),
        sampled=row.get("sampled", True),
        algorithms=tuple(_chosen(entry, algorithms) for entry in row.get("algorithms", algorithms)),
        beta=row.get("shipped"),
        read=row.get("read", ""),
    )


def _loss(row: Row, of: Framework, functions: Functions) -> tuple[Loss, Any, str]:
    """The loss, and what follows for its level and its aggregation."""
    options = {name: row[name] for name in row.get("with", ()) if name in row}
    in_reward = row.get("placement") == "reward"
    if "loss" in row:
        return partial(functions[row["loss"]], **options), "sequence" if in_reward else "token", ""
    if "ship" in row:
        for name, x in row.get("options", {}).items():  # "{kind}" is what the row calls kind
            options[name] = row[x[1:-1]] if isinstance(x, str) and x.startswith("{") else x
        return _shipped(functions[row["ship"]], of.name, options), "sequence" if in_reward else "token", ""
    terms = partial(functions[row["terms"]], **options)
    if in_reward:
        ahead = row["ahead"]
        loss = formulas.in_reward(terms, ahead=ahead)
        return loss, "sequence" if ahead else "token", formulas.CHARGED[ahead]
    how = row.get("how", "tokens")
    return formulas.in_loss(terms, how), "token", formulas.GATHERED[how]
