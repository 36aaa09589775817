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
    Sharded,
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
    """Parameters, put together where they are sharded."""
    found = {}
    for name, x in lm.model.named_parameters():
        whole = x.detach().full_tensor() if hasattr(x, "full_tensor") else x.detach()
        found[name] = whole.contiguous().clone()
    return found


def trained(
    start: Path, task: Task, settings: Settings, shard: bool
) -> tuple[LanguageModel, list[dict[str, float]]]:
    """The recipe without its files."""
    policy = load_model(start)
    reference = frozen_copy(policy)
    sharded = Sharded(policy, reference, device=torch.device("cpu")) if shard else None
    history = train(
        policy,
        task,
        own_seed(settings),
        reference=reference,
        gradients=None if shard else average_gradients,
        mean=sharded.mean if sharded else mean_over_processes,
    )
    if sharded:
        sharded.wait()
        whole = sharded.whole(policy)
        assert (whole is None) == (rank() != 0)
        if whole is not None:
            again = weights(whole)
            save_file(again, start.parent / f"whole-{task.name}.safetensors")
    return policy, history.records


def main(folder: Path) -> None:
    """All trainings, then the recipe itself."""
    join("cpu")
    said: dict[str, object] = {"rank": rank(), "world": world_size()}
    for name, task, settings in (("sort", FIXED, SGD), ("ending", ENDING, ADAM), ("uneven", UNEVEN, MEAN)):
        for kind, shard in (("parallel", False), ("sharded", True)):
            lm, records = trained(folder / "start", task, settings, shard)
            save_file(weights(lm), folder / f"{name}-{kind}-{rank()}.safetensors")
            said[f"{name}-{kind}"] = records
    said["lengths"] = LENGTHS
    said["mean"] = average_records([{"rank": float(rank()), "two": 2.0}], torch.device("cpu"))
    (folder / f"said-{rank()}.json").write_text(json.dumps(said))
    options = ["--task", "sort", "--options", '{"digits": 3}', "--device", "cpu", "--steps", "2"]
    options += ["--prompts", "2", "--group", "2", "--evaluate", "4", "--model", str(folder / "start")]
    recipe.main([*options, "--shard", "--output", str(folder / "recipe")])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
