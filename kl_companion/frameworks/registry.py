"""Which frameworks there are, and their settings by name.

A file of this folder that assigns `FRAMEWORK` is the adapter of a framework, and its name is the framework's:
to add one is to add its file. The adapter is imported when it is first asked for.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from kl_companion.checks import unknown_name

if TYPE_CHECKING:
    from kl_companion.frameworks.records import Framework, Setting

_FIRST = (
    "trl",
    "verl",
    "openrlhf",
    "liger",
    "tunix",
)  # those that are installed; behind them all others by name


def _adapters(folder: Path) -> tuple[str, ...]:
    """Names of the modules of a folder that assign `FRAMEWORK`."""
    files = (p for p in folder.glob("*.py") if re.search(r"^FRAMEWORK = ", p.read_text("utf-8"), re.M))
    names = sorted(path.stem for path in files)
    return tuple(sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)))


FRAMEWORKS = _adapters(Path(__file__).parent)


def framework(name: str) -> Framework:
    """The framework of this name; ValueError for an unknown one."""
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    # what decides whether a table or a chapter is stale reads this line: it leads to every adapter
    found: Framework = import_module(f"kl_companion.frameworks.{name}").FRAMEWORK
    return found


def settings(framework_name: str | None = None) -> tuple[Setting, ...]:
    """The settings of one framework, or of all of them; ValueError for an unknown one."""
    chosen = FRAMEWORKS if framework_name is None else (framework_name,)
    return tuple(s for name in chosen for s in framework(name).settings)


def setting(name: str) -> Setting:
    """The setting ``framework.something``; ValueError for an unknown one, with the nearest."""
    prefix = name.partition(".")[0]
    known = {s.name: s for s in settings(prefix if prefix in FRAMEWORKS else None)}
    if name not in known:
        raise unknown_name("setting", name, known)
    return known[name]


def matching(prefix: str) -> tuple[Setting, ...]:
    """The settings whose names begin so, the one of exactly this name first; ValueError if there is none."""
    known = settings(prefix.partition(".")[0])
    found = [s for s in known if s.name.startswith(prefix)]
    if not found:
        raise unknown_name("setting", prefix, [s.name for s in known])
    return tuple(sorted(found, key=lambda s: s.name != prefix))
