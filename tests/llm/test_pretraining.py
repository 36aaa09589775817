"""Pretraining: what is trained on, and that the same recipe gives the same bytes whoever asks."""

from __future__ import annotations

import copy
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kl_companion.llm import pretraining
from kl_companion.llm.models import LanguageModel, tiny_model
from kl_companion.llm.pretraining import pretrain, pretrained, source_digest
from kl_companion.llm.tasks import language, make_task
from kl_companion.llm.tokenizers import character_tokenizer
from tests.support.data import data

DATA = data(__file__)


SMALL = {"hidden": 16, "layers": 1}

# Two processes train, one a fork of the other, but wait half-way (one file written) until the word is given.
TRAINERS = """
import os, pathlib, sys, time
import kl_companion.llm.distillation, kl_companion.llm.training
import kl_companion.llm.pretraining as module
print(sorted({"transformers", "tokenizers", "safetensors", "datasets"} & set(sys.modules)), flush=True)
folder = pathlib.Path(sys.argv[1])
word, save = folder / "word", module.save_model
import transformers.models.qwen2.modeling_qwen2
child = os.fork()
begun = folder / ("begun-slow" if child else "begun-killed")
def slowly(lm, folder):
    (folder / "config.json").write_text("{}")
    begun.touch()
    while not word.exists():
        time.sleep(.01)
    save(lm, folder)
module.save_model = slowly
if child:
    (folder / "pid").write_text(str(child))
lm = module.pretrained("sort", size={"hidden": 16, "layers": 1}, steps=2, seed=0, digits=2)
print(sum(p.double().sum().item() for p in lm.model.parameters()))
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


def small(task_name: str, **options: object) -> tuple[LanguageModel, object]:
    task = make_task(task_name, **options)
    return tiny_model(character_tokenizer(task.alphabet), **SMALL), task


def one_by_one(lm: LanguageModel, rows: list[tuple[str, list[tuple[str, bool]]]]) -> list[float]:
    """Log-prob of each completion, one forward per token; (token, whether it counts) is spelled out."""
    vocabulary, totals = lm.tokenizer.get_vocab(), []
    for prompt, completion in rows:
        past, total = [vocabulary["<bos>"], *(vocabulary[c] for c in prompt)], 0.0
        for token, counts in completion:
            with torch.no_grad():
                logits = lm.model(torch.tensor([past])).logits[0, -1].double()
            total += (logits[vocabulary[token]] - logits.exp().sum().log()).item() * counts
            past.append(vocabulary[token])
        totals.append(total)
    return totals


def chosen(text: str) -> list[tuple[str, bool]]:
    return [(c, True) for c in text]


def test_only_the_completion_counts_and_it_ends() -> None:
    lm, task = small("arithmetic")
    room = task.max_new_tokens
    full = "1" * room  # as long as it may be: cut off, not ended
    pairs = [("1+2=", "3"), ("12+34=", "46"), ("7=", full)]
    logp, counted = pretraining._completion_logp(lm, task, pairs)
    wanted = [(p, chosen(c) + [("<eos>", True)] * (len(c) < room)) for p, c in pairs]
    torch.testing.assert_close(logp.sum(-1).tolist(), one_by_one(lm, wanted), rtol=1e-5, atol=1e-5)
    assert counted.sum(-1).tolist() == [2, 3, room]
    unending = replace(task, ends=False)
    logp, _ = pretraining._completion_logp(lm, unending, pairs)
    wanted = [(p, chosen(c)) for p, c in pairs]
    torch.testing.assert_close(logp.sum(-1).tolist(), one_by_one(lm, wanted), rtol=1e-5, atol=1e-5)


def test_what_the_environment_wrote_does_not_count() -> None:
    lm, task = small("look_up")
    asked, heard = chosen("?b"), [(c, False) for c in "=7;"]
    rest = [*chosen("?d"), *((c, False) for c in "=4;"), *chosen("!1"), ("<eos>", True)]
    logp, counted = pretraining._completion_logp(lm, task, [("bd:", "?b=7;?d=4;!1")])
    torch.testing.assert_close(
        logp.sum(-1).tolist(), one_by_one(lm, [("bd:", asked + heard + rest)]), rtol=1e-5, atol=1e-5
    )
    assert counted.sum().item() == 7


def test_an_empty_prompt_and_an_empty_completion() -> None:
    lm, task = small("markov", letters=3, length=4, hazard=0.3)
    logp, _ = pretraining._completion_logp(lm, task, [("", ""), ("", task.alphabet[:2])])
    wanted = [("", [("<eos>", True)]), ("", [*chosen(task.alphabet[:2]), ("<eos>", True)])]
    torch.testing.assert_close(logp.sum(-1).tolist(), one_by_one(lm, wanted), rtol=1e-5, atol=1e-5)


def test_a_short_language_is_learnt() -> None:
    lm, task = small("markov", letters=3, order=1, length=6)
    assert pretrain(lm, task, steps=150, batch=64, lr=1e-2) == 150
    law = language(task)
    with torch.no_grad():
        pairs = task.corpus(256, torch.Generator().manual_seed(5))
        logp = pretraining._completion_logp(lm, task, pairs)[0].sum(-1).double()
    exact = torch.tensor([float(law.logp(text)) for _, text in pairs], dtype=torch.float64)
    gap = (exact - logp).mean().item()  # an estimate of KL(language || model)
    assert abs(gap) < 0.15
    assert (exact.mean() + 6 * math.log(3)).item() > 1  # which is not how a uniform model would do


def test_it_stops_at_the_expected_reward() -> None:
    lm, task = small("sort", digits=1)
    taken = pretrain(lm, task, steps=400, batch=32, lr=1e-2, until=0.6, every=4)
    assert taken < 400
    assert taken % 4 == 0

    def reward(lm: LanguageModel) -> float:
        prompts = [(f"{d}=", str(d)) for d in range(10)]
        return sum(math.exp(x) for x in one_by_one(lm, [(p, chosen(a)) for p, a in prompts])) / 10

    assert 0.5 < reward(lm) < 0.95  # the same as on the held-out examples but for their draw
    assert reward(small("sort", digits=1)[0]) < 0.3
    assert pretrain(small("sort", digits=1)[0], task, steps=3, batch=4, until=0.6) == 3


def test_the_callers_threads_and_random_state_stay(tiny: LanguageModel) -> None:
    lm, task = LanguageModel(copy.deepcopy(tiny.model), tiny.tokenizer), make_task("sort", digits=2)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        pretrain(lm, task, steps=1, batch=4)
        assert torch.get_num_threads() == 2
        poisoned = copy.deepcopy(lm.model)
        poisoned.model.norm.weight.data.fill_(float("nan"))
        with pytest.raises(RuntimeError, match="pretraining stopped at step 1: the loss is nan"):
            pretrain(LanguageModel(poisoned, lm.tokenizer), task, steps=2, batch=4)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in lm.model.parameters())


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"corpus": None}, {}, "task 'sort' has no corpus to pretrain on"),
        ({"unique": False}, {"until": 0.5}, "until needs a task whose answers are unique; 'sort' has no"),
        ({}, {"until": 1.5}, "until is 1.5, expected a probability between 0 and 1"),
        ({}, {"steps": 0}, "steps, batch, every and lr must be positive, got 0, 128, 5, 0.001"),
        ({}, {"lr": float("nan")}, "must be positive"),
    ],
)
def test_what_cannot_be_pretrained(
    change: dict[str, object], options: dict[str, float], message: str, tiny: LanguageModel
) -> None:
    task = replace(make_task("sort", digits=2), **change)
    with pytest.raises(ValueError, match=message):
        pretrain(tiny, task, **{"steps": 1, **options})


def test_a_text_longer_than_the_context() -> None:
    task = make_task("sort", digits=8)
    lm = tiny_model(character_tokenizer(task.alphabet), context=17, **SMALL)
    with pytest.raises(ValueError, match="has 18 tokens, more than the model's context of 17"):
        pretrain(lm, task, steps=1)


def test_bytes_do_not_depend_on_threads_or_random_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files, threads = [], torch.get_num_threads()
    for count in (1, 2):
        monkeypatch.setenv("KL_COMPANION_CACHE", str(tmp_path / str(count)))
        torch.manual_seed(count)
        torch.set_num_threads(count)
        try:
            pretrained("sort", steps=2, seed=0)  # the default size: large enough for two threads
        finally:
            torch.set_num_threads(threads)
        (folder,) = (tmp_path / str(count)).iterdir()
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert files[0] == files[1]
    assert "model.safetensors" in files[0]


def test_a_recipe_is_found_again_and_another_is_not(
    model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(**changed: object) -> int:
        pretrained("sort", **{"size": SMALL, "steps": 1, "seed": 0, "digits": 2, "batch": 2, **changed})
        return len(list(model_cache.iterdir()))

    assert [ask(), ask()] == [1, 1]
    assert [ask(seed=1), ask(steps=2), ask(digits=3), ask(lr=0.1), ask(size={**SMALL, "layers": 2})] == [
        *range(2, 7)
    ]
    monkeypatch.setattr(pretraining, "source_digest", lambda: "another")
    assert ask() == 7
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    assert ask() == 8


def test_the_digest_follows_the_code_and_not_the_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    before, read = source_digest(), Path.read_text

    def edited(old: str, new: str) -> str:
        def changed(path: Path, *args: object, **kwargs: object) -> str:
            text = read(path, *args, **kwargs)
            return text.replace(old, new) if path.name == "pretraining.py" else text

        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_text", changed)
            return source_digest.__wrapped__()

    assert edited("betas=(0.9, 0.99)", "betas=(0.9, 0.999)") != before
    assert edited('"""Train on the task', '"""# Train on the task') == before
    assert edited("# Padding goes", "# PADDING goes") == before


@pytest.mark.parametrize(("name", "options", "message"), DATA["recipes_that_make_no_model"])
def test_recipes_that_make_no_model(
    name: str, options: dict[str, object], message: str, model_cache: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        pretrained(name, **{"steps": 1, "seed": 0, **options})
    assert not model_cache.exists()


def test_a_language_without_alphabet_is_loaded_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    natural = replace(make_task("sort"), alphabet=None)
    monkeypatch.setattr(pretraining, "make_task", lambda name, **options: natural)
    with pytest.raises(ValueError, match="task 'sort' has no alphabet: load a model of natural language"):
        pretrained("sort", steps=1, seed=0)


@pytest.mark.interruption
def test_processes_that_race_and_one_that_is_killed(model_cache: Path, tmp_path: Path) -> None:
    trainers = subprocess.Popen(
        [sys.executable, "-c", TRAINERS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 120
    while not all((tmp_path / f"begun-{name}").exists() for name in ("slow", "killed")):
        assert trainers.poll() is None, "it ended before it began"
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # both are half-way
    assert [path.name[:12] for path in model_cache.iterdir()] == [".unfinished-"] * 2

    def ask() -> LanguageModel:
        return pretrained("sort", size=SMALL, steps=2, seed=0, digits=2)

    total = sum(p.double().sum().item() for p in ask().model.parameters())  # overtakes the slow one
    (folder,) = (path for path in model_cache.iterdir() if not path.name.startswith("."))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    (tmp_path / "word").touch()
    modules, its_total, killed = trainers.communicate(timeout=120)[0].splitlines()
    assert modules == "[]"  # importing what trains is light
    assert float(its_total) == total
    assert int(killed) == signal.SIGKILL
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    (left,) = (path for path in model_cache.iterdir() if path != folder)  # what the killed one had
    assert [path.name for path in left.iterdir()] == ["config.json"]

    weights = folder / "model.safetensors"
    weights.write_bytes(files[weights.name][:5000])
    ask()
    assert weights.read_bytes() == files[weights.name]
