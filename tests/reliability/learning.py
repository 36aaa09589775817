"""Training runs with checkpoints, and pretraining of the embedded model, to be killed or to find a full disk.

Each is a fork of a process that has imported the libraries, which takes longer than the work itself.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from kl_companion.llm import pretraining, recipe
from kl_companion.llm.cache import CACHE_VARIABLE, whole
from kl_companion.llm.checkpoints import load_checkpoint
from tests.reliability.disturbing.sitecustomize import disturb
from tests.reliability.killing import Running, Work, environment_of

SIZE = {"hidden": 16, "layers": 1}
STEPS, EVERY = 9, 2
# what a process has imported before the work forks from it; the library puts off what bears its name
LOADED = [
    __name__,
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.auto.modeling_auto",
    "safetensors.torch",
]
TRAIN = (
    f"--steps {STEPS} --every {EVERY} --prompts 2 --group 2 --evaluate 4 --device cpu --output output "
    "--checkpoint kept --pretraining-steps 4 --pretraining-until none --anchor ema --decay 0.5 --lag 2"
)


def step_of(folder: Path) -> int:
    """Read the checkpoint, which fails for one that is half-written: the steps that were finished, or 0."""
    kept = load_checkpoint(folder / "project/kept")
    return 0 if kept is None else int(kept.state["step"])


class Forked(Work):
    """Work that a Python function does in a process of its own."""

    def body(self) -> int:
        """Do the work in the working directory; the exit status."""
        raise NotImplementedError

    def start(self, folder: Path, variables: dict[str, str], limit: int | None = None) -> Running:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        reader, writer = context.Pipe(duplex=False)
        given = {**environment_of(folder), CACHE_VARIABLE: str(folder / "project" / "models"), **variables}
        process = context.Process(target=forked, args=[self, folder, given, limit, writer])
        process.start()
        writer.close()
        stream = os.fdopen(os.dup(reader.fileno()), "rb")
        reader.close()
        return Running(process, stream)

    def prepare(self, folder: Path) -> None:
        pass

    def result(self, folder: Path) -> dict[str, bytes]:
        """What was trained, and the models that are kept."""
        found = {}
        # a checkpoint has the same name at every step: it is compared where it is the last one
        last = ["project/kept/[!.]*"] * (step_of(folder) == STEPS)
        for pattern in ("project/output/[!.]*", "project/output/model/*", "project/models/[!.]*/*", *last):
            for path in folder.glob(pattern):
                if path.is_file():
                    found[path.relative_to(folder).as_posix()] = path.read_bytes()
        return found

    def finished(self, folder: Path) -> set[str]:
        """The steps that a checkpoint holds, and the pretraining whose model is kept."""
        last = step_of(folder)
        models = [path for path in (folder / "project/models").glob("[!.]*") if whole(path)]
        return {f"step {n}" for n in range(1, last + 1)} | {"pretraining" for _ in models}

    def begun(self, folder: Path, said: str) -> list[str]:
        return re.findall(r"^(step \d+|pretraining)\b", said, flags=re.M)

    def rest(self, folder: Path) -> None:
        """A day goes by: what is unfinished in the cache belongs to nobody then."""
        for path in (folder / "project/models").glob(".*"):
            os.utime(path, (0, 0))


class Training(Forked):
    """The recipe from the command line, with checkpoints, from an embedded model."""

    what = f"training, {STEPS} steps, a checkpoint every {EVERY}, from an embedded model"

    def body(self) -> int:
        return recipe.main(TRAIN.split())


class Pretraining(Forked):
    """The embedded model of a task."""

    what = "pretraining of the embedded model"

    def body(self) -> int:
        try:
            pretraining.pretrained("sort", size=SIZE, steps=60, seed=0, digits=3)
        except OSError as error:  # what the function promises
            print(f"{type(error).__name__}: {error}", flush=True)
            return 1
        return 0


def forked(
    work: Forked, folder: Path, variables: dict[str, str], limit: int | None, writer: Connection
) -> None:
    """What happens in the process of its own."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(writer.fileno(), stream)
    writer.close()
    os.environ.update(variables)
    tempfile.tempdir = None
    os.chdir(folder / "project")
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if "KL_DISTURB" in variables:
        what, number, tally = variables["KL_DISTURB"].split(":")
        disturb(what, int(number), tally)
    pretrain = pretraining.pretrain

    def told(*arguments, **options) -> int:  # type: ignore[no-untyped-def]
        print("pretraining", flush=True)
        return pretrain(*arguments, **options)

    pretraining.pretrain = told
    sys.exit(work.body())
