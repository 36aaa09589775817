"""Pretrain the embedded models in seconds, with the same result each time.

The bytes of a model depend on its recipe only, not on the caller's threads or random state: training runs on
one thread, because sums over several are rounded in another order.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from kl_companion.llm.cache import cached
from kl_companion.llm.generation import prompt_ids
from kl_companion.llm.models import LanguageModel, load_model, save_model, tiny_model
from kl_companion.llm.optional import llm_extra
from kl_companion.llm.tasks import Example, Task, make_task
from kl_companion.llm.tokenizers import character_tokenizer, encode

HELD_OUT = 512  # examples that `until` looks at
_HELD_OUT_SEED = 20_001
_HERE = Path(__file__).resolve().parent


def pretrain(
    lm: LanguageModel,
    task: Task,
    *,
    steps: int,
    batch: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    until: float | None = None,
    every: int = 5,
) -> int:
    """Train on the task's corpus by next-token prediction, in place.

    Only completions count, end-of-sequence included; prompts and what an environment inserts do not. AdamW
    without weight decay, gradient norm clipped at 1. The learning rate is constant with `until`; without, it
    falls linearly to zero over `steps`.

    Args:
        lm: the model to train.
        task: needs a `corpus`.
        steps: optimizer steps, at most.
        batch: pairs of prompt and completion per step.
        lr: learning rate at the start.
        seed: of the corpus.
        until: stop when the expected reward, exact and averaged over fixed held-out examples, is this high.
            Only for a task whose answers are unique.
        every: steps between two looks at `until`.

    Returns:
        The number of steps taken, which is `steps` if `until` was not reached before.

    Raises:
        ValueError: no corpus; `until` for a task whose answers are not unique; a number out of range; a text
            that is longer than the model's context.
        RuntimeError: the loss became NaN or infinite.
    """
    if task.corpus is None:
        raise ValueError(f"task {task.name!r} has no corpus to pretrain on")
    if min(steps, batch, every) < 1 or not lr > 0:
        raise ValueError(f"steps, batch, every and lr must be positive, got {steps}, {batch}, {every}, {lr}")
    if until is not None and not task.unique:
        raise ValueError(f"until needs a task whose answers are unique; {task.name!r} has no exact reward")
    if until is not None and not 0 < until < 1:
        raise ValueError(f"until is {until}, expected a probability between 0 and 1")
    generator = torch.Generator().manual_seed(seed)
    held_out = task.draw(HELD_OUT, torch.Generator().manual_seed(_HELD_OUT_SEED))
    pairs = [(example.prompt, example.answer) for example in held_out]
    optimizer = torch.optim.AdamW(
        lm.model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True
    )
    with _one_thread(), torch.enable_grad():
        for step in range(1, steps + 1):
            logp, counted = _completion_logp(lm, task, task.corpus(batch, generator))
            loss = -logp.sum() / counted.sum()
            if not math.isfinite(loss.item()):
                raise RuntimeError(f"pretraining stopped at step {step}: the loss is {loss.item()}")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(lm.model.parameters(), 1.0)
            if until is None:
                optimizer.param_groups[0]["lr"] = lr * (1 - (step - 1) / steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if until is not None and step % every == 0:
                with torch.no_grad():
                    right = _completion_logp(lm, task, pairs)[0].sum(-1)
                if right.exp().mean().item() >= until:
                    return step
    return steps


def pretrained(
    task_name: str,
    *,
    size: dict[str, int] | None = None,
    steps: int,
    seed: int,
    until: float | None = None,
    batch: int = 128,
    lr: float = 1e-3,
    every: int = 5,
    device: str = "cpu",
    options: dict[str, Any] | None = None,
    **task_options: Any,
) -> LanguageModel:
    """The embedded model of a task, trained on the spot the first time and kept on disk.

    What is kept is found again by a hash of the recipe, the versions of torch and transformers and the code
    that makes it. See `kl_companion.llm.cache` for where it lies.

    Args:
        task_name: a name of `TASKS` whose task has an alphabet and a corpus.
        size: keyword arguments of `tiny_model`, such as `{"hidden": 16, "layers": 1}`.
        steps: see `pretrain`, as are `until`, `every`, `batch` and `lr`.
        seed: of the weights and of the corpus.
        until: stop at this expected reward.
        batch: pairs per step.
        lr: learning rate.
        every: steps between two looks at `until`.
        device: where to train, and where the model is returned. On "cpu" the bytes are the same on each run.
        options: of the task, where one has a name of this function's own, such as `seed`.
        **task_options: of the task.

    Raises:
        ValueError: the task is in natural language; unknown task, option or size; and what `pretrain` raises.
        OSError: the cache cannot be written.
    """
    task_options = {**(options or {}), **task_options}
    task = make_task(task_name, **task_options)
    if task.alphabet is None:
        raise ValueError(
            f"task {task_name!r} has no alphabet: load a model of natural language with load_model"
        )
    sizes: dict[str, Any] = dict(size or {})
    known = set(inspect.signature(tiny_model).parameters) - {"tokenizer", "seed", "dtype"}
    if not sizes.keys() <= known:
        raise ValueError(
            f"size has {sorted(sizes.keys() - known)}, expected some of: {', '.join(sorted(known))}"
        )
    training: dict[str, Any] = {
        "steps": steps,
        "seed": seed,
        "until": until,
        "batch": batch,
        "lr": lr,
        "every": every,
    }
    recipe = {
        "task": task_name,
        "options": task_options,
        "size": sizes,
        "training": training,
        "device": torch.device(device).type,
        "torch": str(torch.__version__),
        "transformers": llm_extra("transformers").__version__,
        "source": source_digest(),
    }

    def make(folder: Path) -> None:
        tokenizer = character_tokenizer(str(task.alphabet))
        lm = tiny_model(tokenizer, seed=seed, **sizes)
        lm.model.to(device)
        taken = pretrain(lm, task, **training)
        save_model(lm, folder)
        (folder / "pretraining.json").write_text(json.dumps({"steps_taken": taken}) + "\n", encoding="utf-8")

    return load_model(cached(recipe, make), device=device)


@cache
def source_digest() -> str:
    """SHA-256 of the code that decides how a pretrained model comes out, without comments and docstrings.

    It is taken once: a file that is edited later is not the code that runs.
    """
    files = [_HERE / f"{name}.py" for name in ("models", "pretraining", "tokenizers")]
    sources = {path.name: path.read_text(encoding="utf-8") for path in files}
    for path in sorted((_HERE / "tasks").glob("*.py")):
        sources[f"tasks/{path.name}"] = path.read_text(encoding="utf-8")
    sources["prompt_ids"] = textwrap.dedent(inspect.getsource(prompt_ids))
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(f"{name}\n{_bare(source)}\n".encode())
    return digest.hexdigest()


def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _completion_logp(
    lm: LanguageModel, task: Task, pairs: list[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the tokens, 0 where none counts, and which of them count; both [batch, seq]."""
    prompts = prompt_ids(lm, task, [Example(prompt, completion) for prompt, completion in pairs])
    rows, counts = [], []
    for prompt, ids, (_, text) in zip(
        prompts, encode(lm.tokenizer, [c for _, c in pairs]), pairs, strict=True
    ):
        inserted = task.observed(text) if task.observed is not None else [False] * len(ids)
        if len(inserted) != len(ids):
            raise ValueError("a task with an environment is pretrained with one token per character only")
        if task.ends and len(ids) < task.max_new_tokens:
            ids, inserted = [*ids, lm.tokenizer.eos_token_id], [*inserted, False]
        rows.append([*prompt, *ids])
        counts.append([False] * len(prompt) + [not written for written in inserted])
    longest, context = max(map(len, rows)), lm.model.config.get_text_config().max_position_embeddings
    if longest > context:
        prompt_text, completion = pairs[max(range(len(rows)), key=lambda i: len(rows[i]))]
        text = f"{prompt_text}{completion}"[:40]
        raise ValueError(f"{text!r} has {longest} tokens, more than the model's context of {context}")
    # Padding goes to the right, where no token before it sees it, so that no attention mask is needed.
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=lm.device)
    counted = torch.tensor([row + [False] * (longest - len(row)) for row in counts], device=lm.device)
    kept = longest - min(map(len, prompts))
    logits = lm.model(input_ids=tokens, use_cache=False, logits_to_keep=kept + 1).logits[:, :-1]
    counted = counted[:, -kept:]
    nll = torch.nn.functional.cross_entropy(
        logits.float().transpose(1, 2), tokens[:, -kept:], reduction="none"
    )
    return -nll * counted, counted


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
