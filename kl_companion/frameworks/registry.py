"""Which frameworks there are, and their settings by name.

A framework is a TOML file of this folder, see `adapter`: to add one is to add its file. It is read when it is
first asked for.
"""

from __future__ import annotations

from pathlib import Path

from kl_companion.checks import unknown_name
from kl_companion.frameworks.adapter import adapter
from kl_companion.frameworks.records import Framework, Setting

_FIRST = ("trl", "verl", "openrlhf", "liger")  # the best known; behind them all others by name


def _adapters(folder: Path) -> tuple[str, ...]:
    """Names of the TOML files of a folder."""
    names = sorted(path.stem for path in folder.glob("*.toml"))
    return tuple(sorted(names, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)))


FRAMEWORKS = _adapters(Path(__file__).parent)


def framework(name: str) -> Framework:
    """The framework of this name; ValueError for an unknown one."""
    if name not in FRAMEWORKS:
        raise unknown_name("framework", name, FRAMEWORKS)
    return adapter(name).framework


def settings(framework_name: str | None = None) -> tuple[Setting, ...]:
    """The settings of one framework, or of all of them; ValueError for an unknown one."""
    chosen = FRAMEWORKS if framework_name is None else (framework(framework_name).name,)
    return tuple(s for name in chosen for s in adapter(name).settings)


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
