"""Bad input to the language models: folders, vocabularies, prompts, settings, files of problems."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from kl_companion.book.refusals.case import Case, folder
from kl_companion.llm import distillation, evaluation, frontier, generation, models, pretraining, tokenizers
from kl_companion.llm.settings import Settings, expand
from kl_companion.llm.tasks import Example, make_task
from kl_companion.llm.training import train

_DIGITS = "0123456789="
_SETTINGS, _LOAD, _GENERATE = "llm.settings.Settings", "llm.models.load_model", "llm.generation.generate"
_ONE_TEXT: Any = "12"
_TRAIN, _TASK = "llm.training.train", "llm.tasks.make_task"


@cache
def tiny(alphabet: str = _DIGITS, context: int = 16) -> models.LanguageModel:
    """A random model of two tokens' width."""
    tokenizer = tokenizers.character_tokenizer(alphabet)
    return models.tiny_model(tokenizer, hidden=8, layers=1, heads=2, kv_heads=1, context=context)


def _settings(kind: str, **choices: Any) -> Case:
    return Case(_SETTINGS, kind, lambda: Settings(**choices))


def _generate(*prompts: str, **options: Any) -> object:
    task = replace(make_task("sort", digits=2), max_new_tokens=4)
    examples = [Example(prompt, "0") for prompt in prompts]
    generator = torch.Generator().manual_seed(0)
    return generation.generate(tiny(), task, examples, **{"generator": generator, **options})


def _load(*files: str, name: str = "model", **options: Any) -> object:
    made = folder() / name
    made.mkdir()
    for file in files:
        (made / file).write_text("{}", encoding="utf-8")
    return models.load_model(made, **options)


def _train(**options: Any) -> object:
    policy = models.frozen_copy(tiny())
    policy.model.requires_grad_(True)
    return train(policy, make_task("sort", digits=2), Settings(steps=1, prompts=1, group=2), **options)


def _broken() -> object:
    policy = models.frozen_copy(tiny())
    with torch.no_grad():
        next(policy.model.parameters()).fill_(math.nan)
    policy.model.requires_grad_(True)
    return train(policy, make_task("sort", digits=2), Settings(steps=1, prompts=1, group=2))


def _problems(text: str, name: str = "problems.jsonl", **options: Any) -> object:
    (folder() / name).write_text(text, encoding="utf-8")
    return make_task("data", **{"path": str(folder() / name), "style": "gsm8k", **options})


def _without_alphabet() -> object:
    path = folder() / "problems.jsonl"
    path.write_text('{"question": "1 + 1", "answer": "#### 2"}\n', encoding="utf-8")
    return pretraining.pretrained("data", steps=1, seed=0, path=str(path), style="gsm8k")


CASES = (
    _settings("a misspelled estimator", estimator="k33"),
    _settings("a misspelled placement", placement="rewards"),
    _settings("an unknown anchor", anchor="moving"),
    _settings("a negative beta", beta=-0.1),
    _settings("half a step", steps=0.5),
    _settings("a clip of one number", clip=0.2),
    _settings("a temperature of 0", temperature=0.0),
    _settings("a head without its size", estimator="top_k_reverse_kl"),
    _settings("a size without a head", estimator="k2", k=8),
    _settings("leaving one out of one", group=1),
    _settings("an exact KL of sequences", estimator="exact_kl", level="sequence"),
    _settings("a ratio on a cost in the reward", placement="reward", importance="token"),
    _settings("more parts than completions", prompts=1, group=2, accumulate=4),
    _settings("a constant without its length", how="constant"),
    Case("llm.settings.expand", "a misspelled setting", lambda: expand({"estimators": ["k2"]})),
    Case("llm.settings.expand", "no value", lambda: expand({"beta": []})),
    Case(
        "llm.distillation.distillation_settings",
        "a misspelled method",
        lambda: distillation.distillation_settings("token_exakt"),
    ),
    Case(
        "llm.distillation.distillation_settings",
        "a misspelled setting",
        lambda: distillation.distillation_settings("token_exact", betas=1.0),
    ),
    Case(_LOAD, "a folder that does not exist", lambda: models.load_model("./missing")),
    Case(_LOAD, "a folder without a configuration", lambda: _load("notes.txt")),
    Case(_LOAD, "a folder without weights", lambda: _load("config.json")),
    Case(_LOAD, "weights as a pickle", lambda: _load("config.json", "pytorch_model.bin")),
    Case(_LOAD, "a folder without a tokenizer", lambda: _load("config.json", "model.safetensors")),
    Case(_LOAD, "an unknown precision", lambda: _load(dtype="fp16")),
    Case(_LOAD, "a device that is not here", lambda: _load(device="tpu:0")),
    Case(
        "llm.models.tiny_model",
        "a width that the heads do not divide",
        lambda: models.tiny_model(tiny().tokenizer, hidden=10, heads=4),
    ),
    Case("llm.models.tiny_model", "no layers", lambda: models.tiny_model(tiny().tokenizer, layers=0)),
    Case(
        "llm.models.same_vocabulary", "two vocabularies", lambda: models.same_vocabulary(tiny(), tiny("abc"))
    ),
    Case(
        "llm.models.chat_prompts",
        "no chat template",
        lambda: models.chat_prompts(tiny().tokenizer, ["1 + 1?"]),
    ),
    Case(
        "llm.tokenizers.character_tokenizer", "an empty alphabet", lambda: tokenizers.character_tokenizer("")
    ),
    Case(
        "llm.tokenizers.character_tokenizer",
        "a character twice",
        lambda: tokenizers.character_tokenizer("aba"),
    ),
    Case(
        "llm.tokenizers.encode",
        "one text instead of a list",
        lambda: tokenizers.encode(tiny().tokenizer, _ONE_TEXT),
    ),
    Case(
        "llm.tokenizers.encode",
        "a character that it does not know",
        lambda: tokenizers.encode(tiny().tokenizer, ["1+2"]),
    ),
    Case(_GENERATE, "a prompt longer than the context", lambda: _generate("1" * 15)),
    Case(_GENERATE, "no prompts", lambda: _generate()),
    Case(_GENERATE, "a character that it does not know", lambda: _generate("1+1")),
    Case(_GENERATE, "a temperature of 0", lambda: _generate("12=", temperature=0.0)),
    Case(_GENERATE, "no completions", lambda: _generate("12=", n=0)),
    Case(_TRAIN, "a reference of another vocabulary", lambda: _train(reference=tiny("abc"))),
    Case(_TRAIN, "an evaluation every 0 steps", lambda: _train(every=0)),
    Case(_TRAIN, "weights that are NaN", _broken),
    Case(_TASK, "a misspelled task", lambda: make_task("sorting")),
    Case(_TASK, "a misspelled option", lambda: make_task("sort", digit=2)),
    Case(_TASK, "a level that does not exist", lambda: make_task("arithmetic", levels=(99,))),
    Case(_TASK, "a file that does not exist", lambda: make_task("data", path="missing.jsonl", style="gsm8k")),
    Case(_TASK, "a file of another kind", lambda: _problems("", "problems.doc")),
    Case(_TASK, "a line that is not JSON", lambda: _problems("question: 1 + 1\n")),
    Case(
        _TASK, "rows without a question", lambda: _problems('{"prompt_text": "1 + 1", "answer": "#### 2"}\n')
    ),
    Case(
        _TASK, "an answer that cannot be read", lambda: _problems('{"question": "1 + 1", "answer": "two"}\n')
    ),
    Case(_TASK, "a misspelled style", lambda: _problems("", style="gsm")),
    Case("llm.evaluation.pass_at", "k larger than n", lambda: evaluation.pass_at(8, 4, torch.tensor([1]))),
    Case(
        "llm.evaluation.pass_at",
        "more right ones than there are",
        lambda: evaluation.pass_at(1, 4, torch.tensor([5])),
    ),
    Case(
        "llm.frontier.kl_at_reward",
        "a reward in percent",
        lambda: frontier.kl_at_reward(torch.tensor([-1.0]), 90.0),
    ),
    Case(
        "llm.frontier.kl_at_reward",
        "probabilities instead of log-probs",
        lambda: frontier.kl_at_reward(torch.tensor([0.3]), 0.5),
    ),
    Case(
        "llm.pretraining.pretrained",
        "a misspelled size",
        lambda: pretraining.pretrained("sort", steps=1, seed=0, size={"width": 8}),
    ),
    Case(
        "llm.pretraining.pretrained",
        "a task without an alphabet",
        _without_alphabet,
    ),
)
