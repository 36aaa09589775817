"""The project's own training loop on the small world: `kl_companion.llm.training.Run`, sampling apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kl_companion.llm.generation import Samples
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, make_task
from kl_companion.llm.training import Run
from kl_companion.monitor.doctor.subject import Declared, WorldGradients, seen
from kl_companion.monitor.doctor.tiny_model import TinyModel
from kl_companion.monitor.doctor.tracing import POLICY, REFERENCE, Trace, label, scoring
from kl_companion.monitor.doctor.world import Ids, SmallWorld


class ExaminedLoop:
    """The loop that `kl_companion.llm.training.train` runs with these settings; in float32, without LoRA."""

    sets_beta = True

    def __init__(self, settings: Settings) -> None:
        plain: dict[str, Any] = {
            "dtype": "float32",
            "lora": None,
            "lesson": 0,
            "max_grad_norm": None,
            "lag": 1,
        }
        if settings.anchor == "taught":
            plain["anchor"] = "fixed"
        self.settings = replace(settings, **plain)
        self.title, self.ids = "the project's own loop", Ids()
        self.declared = Declared(
            temperature=settings.temperature,
            updates=settings.inner_steps,
            beta=settings.beta,
            accumulate=settings.accumulate,
        )

    def run(
        self, world: SmallWorld, *, parts: int = 1, beta: float | None = None, trace: Trace | None = None
    ) -> WorldGradients:
        """See `Examined`."""
        policy, reference = TinyModel(world, POLICY), TinyModel(world, REFERENCE).requires_grad_(False)
        settings = replace(self.settings, accumulate=parts)
        if beta is not None:
            settings = replace(settings, beta=beta)
        models = (LanguageModel(policy, None), LanguageModel(reference, None))
        run = Run(models[0], make_task("sort"), settings, models[1], None, None)
        samples, rewards = _samples(world, settings.temperature), world.rollout.rewards
        assert rewards is not None

        def loss() -> torch.Tensor | None:
            label(samples.behavior_logp, "old log-probs")
            label(samples.completion_mask, "mask")
            with scoring():
                advantages = run.compare(samples, rewards[world.batch].float())
            label(advantages.values, "advantages")
            total, _, _ = run.descend(samples, rewards[world.batch].float(), advantages)
            return torch.tensor(total)

        return seen(loss, policy.model, reference.model, trace)


def _samples(world: SmallWorld, temperature: float) -> Samples:
    """The world's answers as the loop's sampler hands them over."""
    layout = world.layout()
    count = len(world.batch)
    return Samples(
        layout.prompt_ids,
        layout.prompt_mask,
        layout.completion_ids,
        layout.completion_mask,
        layout.completion_mask,
        world.scored(world.sampler_logits, temperature),
        torch.ones(count, dtype=torch.bool),
        torch.zeros(count, dtype=torch.int64),
        [Example("", "")] * count,
        [""] * count,
        [""] * count,
    )
