"""What each extra brings, and what is said where it is missing; it runs where only the package is installed.

Run as a program: `python extras.py FOLDER [EXTRA ...]` asks for what every extra but the named ones brings,
and prints each answer that is not clear. The folder is empty; a small table is written there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Sequence
from pathlib import Path

# what the extra brings first of all
BRINGS = {"plots": "seaborn", "llm": "transformers", "trl": "trl"}
# (extra, the module that is missed first, what is asked for): nothing in the package needs the extra `test`
ASKED = [
    ("plots", "seaborn", "from kl_companion.plotting import figure; figure(print, alt='An empty plot')"),
    ("llm", "transformers", "from kl_companion.llm.models import load_model; load_model('nobody/nothing')"),
    ("llm", "tokenizers", "from kl_companion.llm.tokenizers import character_tokenizer as c; c('ab')"),
    (
        "llm",
        "safetensors",
        "from kl_companion.llm.checkpoints import save_checkpoint as s; s('x', {}, {})",
    ),
    (
        "llm",
        "transformers",
        "from kl_companion.llm.recipe import main; main(['--output', 'x', '--steps', '1'])",
    ),
    ("trl", "trl", "import kl_companion.frameworks.trl_trainer"),
    ("trl", "trl", "from kl_companion.frameworks.trl_example import train; train('.')"),
]
NEEDS = {"kl_companion.frameworks.trl_trainer": "trl"}  # modules that only import with an extra
TOY = """\
title: A toy
notebook: toy.ipynb
columns: {a: int}
key: [a]
cost: seconds
deterministic: true
"""
PARAMETERS = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": ["out = None"]}


def installed(module: str) -> bool:
    """Whether a module can be imported here."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def modules(without: Sequence[str] = ()) -> list[str]:
    """Every module of the package that imports without the named extras."""
    import kl_companion

    found = [m.name for m in pkgutil.walk_packages(kl_companion.__path__, "kl_companion.")]
    return [name for name in found if NEEDS.get(name) not in without and not name.endswith("__main__")]


def unclear(folder: Path) -> tuple[int, list[str]]:
    """How much was asked for in vain, and what was not answered with the extra and the command."""
    (folder / "tables" / "toy").mkdir(parents=True)
    (folder / "_toc.yml").touch()
    (folder / "tables" / "toy" / "manifest.yml").write_text(TOY, encoding="utf-8")
    (folder / "toy.ipynb").write_text(json.dumps({"cells": [PARAMETERS], "nbformat": 4}), encoding="utf-8")
    os.chdir(folder)
    asked, said = 0, []
    for extra, module, code in ASKED:
        if installed(module):
            continue
        asked += 1
        try:
            exec(code, {})
        except ImportError as error:
            if f"pip install 'kl-companion[{extra}]'" not in str(error):
                said.append(f"{code}: {error}")
        except BaseException as error:
            said.append(f"{code}: {type(error).__name__}: {error}")
        else:
            said.append(f"{code}: nothing was missing")
    return asked, said


def main(arguments: list[str]) -> int:
    """Import all that should import, ask for all that is missing; 0 when every answer is clear."""
    folder, present = Path(arguments[0]), arguments[1:]
    here = [extra for extra, module in BRINGS.items() if installed(module)]
    if lost := sorted(set(present) & set(BRINGS) - set(here)):
        print(f"the extra {lost} brought nothing")
        return 1
    names = modules([extra for extra in BRINGS if extra not in here])
    for name in names:
        importlib.import_module(name)
    asked, said = unclear(folder)
    print("\n".join(said) or f"{len(names)} modules imported, {asked} clear messages")
    return int(bool(said))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
