"""The share of a training step that the KL monitor takes, in TRL's GRPO trainer: limit 2 %.

    python -m benchmarks.monitoring --steps 2

The model is SmolLM2-135M where it has been converted (see `kl_companion.llm.packaged`), else the tiny one of
`kl_companion.frameworks.trl_example`, whose steps are mostly overhead. Every step is observed here, so that
few are enough; the share is that of the default `every`. What is timed is a whole step: sampling, scoring,
forward, backward, optimizer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kl_book.tables.provenance import gpu_name
from kl_companion.llm.packaged import missing, packaged_folder
from kl_companion.llm.tasks import make_task
from kl_companion.monitor import KLMonitor
from kl_companion.monitor.observation import Observation

LIMIT = 0.02


class Share(NamedTuple):
    """What was measured.

    Attributes:
        model: Which one.
        step: Seconds of a step without the observation, the median.
        observation: Seconds of an observation, the median.
        share: Of the time of training, with the default `every`.
        last: The last observation.
    """

    model: str
    step: float
    observation: float
    share: float
    last: Observation


def measured(steps: int, completions: int, parts: int, length: int, *, tiny: bool = False) -> Share:
    """Train for some steps of ``parts`` times ``completions`` answers; the first step warms up."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import trl
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback

    from kl_companion.frameworks.trl_example import PROMPTS, save_start, settings

    class Clock(TrainerCallback):
        begun = 0.0
        seconds: list[float] = []  # noqa: RUF012 (one clock is made)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.begun)

    tiny = tiny or _smollm2() is None
    with tempfile.TemporaryDirectory() as name:
        start = save_start(Path(name) / "start") if tiny else _smollm2()
        task = make_task("questions")
        examples = task.draw(16, torch.Generator().manual_seed(0))
        prompts = list(PROMPTS) if tiny else [x.prompt for x in examples]
        arguments = settings(
            Path(name) / "out",
            max_steps=steps + 1,
            per_device_train_batch_size=completions,
            gradient_accumulation_steps=parts,
            num_generations=min(8, completions),
            max_completion_length=length,
            learning_rate=1e-5,
            use_cpu=not torch.cuda.is_available(),
            generation_kwargs={"min_new_tokens": length},
        )
        clock = Clock()
        trainer = trl.GRPOTrainer(
            model=str(start),
            reward_funcs=lambda completions, **_: [float(len(x) % 7) for x in completions],
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        monitor = KLMonitor(every=1)
        monitor.attach(trainer)
        trainer.train()
    seconds = [x.seconds for x in monitor.observations]
    observation = statistics.median(seconds[1:])
    step = statistics.median(a - b for a, b in zip(clock.seconds[1:], seconds[1:], strict=True))
    every = KLMonitor().every
    model = "a tiny model" if tiny else "SmolLM2-135M"
    return Share(
        model, step, observation, observation / (every * step + observation), monitor.observations[-1]
    )


def _smollm2() -> Path | None:
    """Its folder; None where it is neither converted nor installed."""
    try:
        return packaged_folder("smollm2")
    except ImportError:
        print(missing("smollm2"))
        return None


def main(arguments: list[str] | None = None) -> None:
    """Print the line of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=2, help="that are timed (default: %(default)s)")
    parser.add_argument("--completions", type=int, default=8, help="of a part (default: %(default)s)")
    parser.add_argument("--parts", type=int, default=1, help="of a step (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="in tokens (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="the tiny model")
    parser.add_argument("--out", type=Path, help="a file for what was measured, as JSON")
    chosen = parser.parse_args(arguments)
    found = measured(chosen.steps, chosen.completions, chosen.parts, chosen.length, tiny=chosen.tiny)
    if chosen.out:
        kept = ("model", "step", "observation", "share")
        numbers = {name: getattr(found, name) for name in kept} | {"answers": found.last.answers}
        numbers |= {"limit": LIMIT, "torch": torch.__version__, "gpu": gpu_name()}
        chosen.out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    size = f"{chosen.parts} x {chosen.completions} x {chosen.length} tokens"
    print(f"{f'KL monitor / step, {found.model}, {size}':<58}{found.share:>8.2%}{found.step:>10.4f}")
    answers = f"an observation of {found.last.answers} answers, at most {LIMIT:.0%}"
    print(f"{f'  {answers}':<58}{'':>8}{found.observation:>10.4f}")


if __name__ == "__main__":
    main()
