"""Bad input to the language models: folders, vocabularies, prompts, settings, files of problems."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from kl_companion.llm import generation, models, pretraining, tokenizers
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, make_task
from kl_companion.llm.training import train
from tests.refusals.case import folder

_DIGITS = "0123456789="


@cache
def tiny(alphabet: str = _DIGITS, context: int = 16) -> models.LanguageModel:
    """A random model of two tokens' width."""
    tokenizer = tokenizers.character_tokenizer(alphabet)
    return models.tiny_model(tokenizer, hidden=8, layers=1, heads=2, kv_heads=1, context=context)


def generate(*prompts: str, **options: Any) -> object:
    """Complete prompts."""
    task = replace(make_task("sort", digits=2), max_new_tokens=4)
    examples = [Example(prompt, "0") for prompt in prompts]
    generator = torch.Generator().manual_seed(0)
    return generation.generate(tiny(), task, examples, **{"generator": generator, **options})


def load(*files: str, name: str = "model", **options: Any) -> object:
    """Load a folder of these files, all of them without content."""
    made = folder() / name
    made.mkdir()
    for file in files:
        (made / file).write_text("{}", encoding="utf-8")
    return models.load_model(made, **options)


def trained(weight: float | None = None, **options: Any) -> object:
    """Train the tiny model for a step; `weight` is written over its first weights."""
    policy = models.frozen_copy(tiny())
    policy.model.requires_grad_(True)
    if weight is not None:
        next(policy.model.parameters()).data.fill_(weight)
    return train(policy, make_task("sort", digits=2), Settings(steps=1, prompts=1, group=2), **options)


def problems(text: str, name: str = "problems.jsonl", **options: Any) -> object:
    """Make a task of a file of problems."""
    (folder() / name).write_text(text, encoding="utf-8")
    return make_task("data", **{"path": str(folder() / name), "style": "gsm8k", **options})


def without_alphabet() -> object:
    """Pretrain on problems in natural language."""
    path = folder() / "problems.jsonl"
    path.write_text('{"question": "1 + 1", "answer": "#### 2"}\n', encoding="utf-8")
    return pretraining.pretrained("data", steps=1, seed=0, path=str(path), style="gsm8k")
