r"""The training recipe from the command line, in one process or many.

    python -m kl_companion.llm.recipe --model embedded --task sort --estimator k2 --beta 0.1 \
        --steps 100 --output DIR

does in one process what the notebook `llm_rl` does, and writes `history.csv` (one row per step),
`recipe.json` (all that was asked for) and `model/`, which `load_model` reads. Every field of
`kl_companion.llm.settings.Settings` is an option.

**Several processes, data parallel**: each draws prompts of its own, gradients are averaged, the history is
the mean over the processes.

    accelerate launch --multi_gpu --num_processes 8 -m kl_companion.llm.recipe --model PATH ...

The same line works on a machine without a GPU, where the processes talk through gloo, and so does

    torchrun --nproc-per-node 2 -m kl_companion.llm.recipe ...

(`accelerate launch --cpu` starts one process whatever number it is given, unless MPI is installed. The recipe
stops when it sees that.)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pandas as pd
import torch

from kl_companion.files import write_atomically
from kl_companion.llm.distributed import (
    average_gradients,
    average_records,
    join,
    mean_over_processes,
    own_seed,
    rank,
    world_size,
)
from kl_companion.llm.evaluation import evaluate
from kl_companion.llm.models import LanguageModel, frozen_copy, load_model, save_model
from kl_companion.llm.pretraining import pretrained
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Task, make_task
from kl_companion.llm.training import Record, train

EMBEDDED = "embedded"
HELD_OUT = 1_000_003  # seed of the prompts that are evaluated


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the recipe; 0, 1 when a file cannot be written, or an error that argparse explains."""
    parser = make_parser()
    chosen = parser.parse_args(arguments)
    try:
        settings = settings_of(chosen)
        options = json.loads(chosen.options)
        if not isinstance(options, dict):
            raise ValueError(f"--options is {chosen.options!r}, expected a JSON object")
        if chosen.checkpoint and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError("--checkpoint got several processes, expected one")
        task = make_task(chosen.task, **options)
    except ValueError as error:
        parser.error(str(error))
    try:
        run(chosen, settings, task, options)
    except OSError as error:  # a full disk
        print(f"{parser.prog}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def settings_of(chosen: argparse.Namespace) -> Settings:
    """The settings among the options of a parsed command line; ValueError as `Settings` says."""
    given: dict[str, Any] = {field.name: getattr(chosen, field.name) for field in fields(Settings)}
    for name in ("clip", "importance_clip"):
        given[name] = given[name] and tuple(given[name])
    return Settings(**given)


def run(chosen: argparse.Namespace, settings: Settings, task: Task, options: dict[str, Any]) -> None:
    """Train as the parsed command line says, in this process of perhaps many, and write the results."""
    device = join(chosen.device)
    policy, reference = models(chosen, options, str(device))
    examples = task.draw(chosen.evaluate, torch.Generator().manual_seed(HELD_OUT)) if chosen.evaluate else []

    def look(lm: LanguageModel, step: int) -> Record:
        found = evaluate(lm, reference, task, examples=examples, temperature=settings.temperature)
        return {f"held_out_{key}": x for key, x in found.items()}

    history = train(
        policy,
        task,
        own_seed(settings),
        reference=reference,
        evaluate=look if examples else None,
        every=chosen.every,
        progress=Lines(settings.steps) if rank() == 0 else None,
        checkpoint=chosen.checkpoint,
        gradients=average_gradients,
        mean=mean_over_processes,
    )
    records = average_records(history.records, device)
    if rank() == 0:
        recipe = {**vars(chosen), **asdict(settings), "options": options, "processes": world_size()}
        write(Path(chosen.output), records, policy, recipe)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def models(
    chosen: argparse.Namespace, options: dict[str, Any], device: str
) -> tuple[LanguageModel, LanguageModel]:
    """The policy, and the reference: another model where one is named, else the policy as it starts."""
    if chosen.model == EMBEDDED:
        given = {"steps": chosen.pretraining_steps, "seed": chosen.pretraining_seed}
        policy = pretrained(
            chosen.task, until=chosen.pretraining_until, **given, device=device, options=options
        )
    else:
        policy = load_model(chosen.model, device=device)
    if chosen.reference is None:
        return policy, frozen_copy(policy)
    reference = load_model(chosen.reference, device=device)
    reference.model.requires_grad_(False)
    return policy, reference


def write(output: Path, records: list[Record], lm: LanguageModel, recipe: dict[str, Any]) -> None:
    """The results, each file or folder whole or not at all."""
    save_model(lm, output / "model")
    others = sorted({key for record in records for key in record} - {"step"})
    texts = {
        "history.csv": pd.DataFrame(records, columns=["step", *others]).to_csv(index=False),
        "recipe.json": json.dumps(recipe, indent=2, sort_keys=True) + "\n",
    }
    for name, text in texts.items():
        write_atomically(output / name, text)
    for left in [*output.glob(".model-*"), *output.glob(".*.part")]:  # by a run that was killed
        shutil.rmtree(left) if left.is_dir() else left.unlink()


class Lines:
    """A line per tenth of the run."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, record: Record) -> None:
        """Print the record when it is time to."""
        step = int(record["step"])
        if step % max(1, self.total // 10) == 0 or step == self.total:
            shown = ", ".join(f"{k} {record[k]:.4g}" for k in ("reward", "loss", "grad_norm") if k in record)
            print(f"step {step} of {self.total}: {shown}", flush=True)


# -- the command line ----------------------------------------------------------------------------------------


def make_parser() -> argparse.ArgumentParser:
    """The options: what to train, on what, where to, and every field of `Settings`."""
    parser = argparse.ArgumentParser(
        prog="python -m kl_companion.llm.recipe",
        description="Train a language model with a KL term. The module's docstring is about many devices.",
    )
    add = parser.add_argument
    add(
        "--model",
        default=EMBEDDED,
        help="a folder, a name on the hub, smollm2, or 'embedded' (trained on the spot)",
    )
    add(
        "--reference",
        help="another model to measure the KL to, such as a teacher; default: the policy's start",
    )
    add("--task", default="sort", help="a name of kl_companion.llm.tasks.TASKS")
    add("--options", default="{}", help="options of the task as JSON, such as '{\"digits\": 6}'")
    add("--output", required=True, help="the folder to write to")
    add("--evaluate", type=int, default=64, help="held-out prompts that are evaluated; 0 evaluates nothing")
    add("--every", type=int, default=50, help="steps between evaluations and between checkpoints")
    add("--checkpoint", help="a folder for checkpoints; a run goes on from the last one there")
    add(
        "--device",
        choices=("auto", "cpu"),
        default="auto",
        help="auto: a GPU per process where there are any",
    )
    add("--pretraining-steps", type=int, default=400, help="of the embedded model, at most")
    add("--pretraining-until", type=_or_none(float), default=0.35, help="its expected reward, or none")
    add("--pretraining-seed", type=int, default=0, help="of the embedded model")
    group = parser.add_argument_group("settings", "see kl_companion.llm.settings.Settings")
    hints = get_type_hints(Settings)
    for field in fields(Settings):
        flag = f"--{field.name.replace('_', '-')}"
        group.add_argument(
            flag, default=field.default, help=f"default: {field.default}", **_kind(hints[field.name])
        )
    return parser


def _kind(hint: Any) -> dict[str, Any]:
    """What argparse must know to read a value of that type.

    transformers' HfArgumentParser reads neither the word "none" nor a pair of numbers.
    """
    optional = NoneType in get_args(hint)
    kind = get_args(hint)[0] if optional else hint
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is tuple:
        return {"nargs": 2, "type": float, "metavar": ("LOW", "HIGH")}
    known = get_args(kind) if get_origin(kind) is Literal else ()
    read = str if known else kind
    options: dict[str, Any] = {"type": _or_none(read) if optional else read}
    if known:
        words = (*known, "none") if optional else known
        options |= {"choices": (*known, None) if optional else known, "metavar": f"{{{','.join(words)}}}"}
    return options


def _or_none(kind: Any) -> Any:
    """The type, with the word "none" for None."""

    def read(text: str) -> Any:
        return None if text == "none" else kind(text)

    read.__name__ = kind.__name__
    return read


if __name__ == "__main__":
    raise SystemExit(main())
