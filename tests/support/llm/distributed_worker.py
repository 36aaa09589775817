"""What every process of `test_distributed` does; it leaves its parameters in the folder that it is given.

Several trainings in one launch, because starting the processes takes most of the time.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from safetensors.torch import save_file

from kl_companion.llm import recipe
from kl_companion.llm.distributed import (
    average_gradients,
    average_records,
    join,
    mean_over_processes,
    own_seed,
    rank,
    world_size,
)
from kl_companion.llm.models import LanguageModel, frozen_copy, load_model
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, Task, make_task
from kl_companion.llm.training import train

# prompts of one length, completions of another: nothing is padded
FIXED = replace(
    make_task("sort", digits=3), reward=lambda text, example: float(text.count("1")), unique=False
)
SGD = Settings(beta=0.3, prompts=2, group=2, lr=0.03, optimizer="sgd", max_grad_norm=None, steps=3, seed=5)
ADAM = Settings(
    estimator="exact_kl", placement="reward", prompts=2, group=3, accumulate=2, lr=0.01, steps=3, seed=7
)
# completions of unequal lengths, averaged over the tokens of both processes, and a term over the sequences
UNEVEN = replace(FIXED, name="uneven", ends=True, max_new_tokens=24)
MEAN = replace(SGD, how="token_mean", level="sequence", estimator="k2", lr=0.3, beta=0.5, steps=2)


def draw(n: int, generator: torch.Generator) -> list[Example]:
    """Prompts of one to three digits."""
    lengths = torch.randint(1, 4, (n,), generator=generator).tolist()
    rows = torch.randint(10, (n, 3), generator=generator).tolist()
    return [Example("".join(map(str, row[:k])), "") for row, k in zip(rows, lengths, strict=True)]


LENGTHS: list[int] = []  # of all completions of this process


def count(text: str, example: Example) -> float:
    """A reward, which also takes note of the completion's length."""
    LENGTHS.append(len(text))
    return float(text.count("="))


# completions end by themselves, so that the processes do not sample equally long
ENDING = Task(name="ending", alphabet="0123456789=", max_new_tokens=48, draw=draw, reward=count, ends=True)


def weights(lm: LanguageModel) -> dict[str, torch.Tensor]:
    """Parameters by name."""
    return {name: x.detach().clone() for name, x in lm.model.named_parameters()}


def main(folder: Path) -> None:
    """All trainings, then the recipe itself."""
    join("cpu")
    said: dict[str, object] = {"rank": rank(), "world": world_size()}
    for name, task, settings in (("sort", FIXED, SGD), ("ending", ENDING, ADAM), ("uneven", UNEVEN, MEAN)):
        policy = load_model(folder / "start")
        averaged = {"gradients": average_gradients, "mean": mean_over_processes}
        history = train(policy, task, own_seed(settings), reference=frozen_copy(policy), **averaged)
        save_file(weights(policy), folder / f"{name}-{rank()}.safetensors")
        said[name] = history.records
    said["lengths"] = LENGTHS
    said["mean"] = average_records([{"rank": float(rank()), "two": 2.0}], torch.device("cpu"))
    (folder / f"said-{rank()}.json").write_text(json.dumps(said))
    options = ["--task", "sort", "--options", '{"digits": 3}', "--device", "cpu", "--steps", "2"]
    options += ["--prompts", "2", "--group", "2", "--evaluate", "4", "--model", str(folder / "start")]
    recipe.main([*options, "--output", str(folder / "recipe")])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
