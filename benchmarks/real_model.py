"""Sampling and scoring of a real model, against what transformers offers for the same work: limit 1.3.

Without the model (see `kl_companion.llm.packaged`) a Llama of the same shape with random weights is timed:
the work is the same, and only the texts mean nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from kl_companion.llm.generation import generate
from kl_companion.llm.models import LanguageModel, load_model
from kl_companion.llm.packaged import missing
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.tasks import Task, make_task

PROMPTS, GROUP, LENGTH = 8, 2, 24


def model() -> tuple[LanguageModel, Task]:
    """The model, and prompts whose answers never end, so that both sides write as many tokens."""
    lm = _random() if missing("smollm2") else load_model("smollm2")
    task = make_task("questions", max_new_tokens=LENGTH)
    return lm, Task(**{**vars(task), "ends": False})


def sampling(lm: LanguageModel, task: Task) -> tuple[Any, Any]:
    """Ours and `model.generate`, both from the whole vocabulary."""
    examples = task.draw(PROMPTS, torch.Generator().manual_seed(0))
    first = generate(lm, task, examples, generator=torch.Generator().manual_seed(0), max_new_tokens=1)

    def ours() -> None:
        generate(lm, task, examples, n=GROUP, generator=torch.Generator().manual_seed(0))

    def theirs() -> None:
        with torch.no_grad():
            lm.model.generate(
                first.prompt_tokens,
                attention_mask=first.prompt_mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                num_return_sequences=GROUP,
                max_new_tokens=LENGTH,
                min_new_tokens=LENGTH,
            )

    return ours, theirs


def scoring(lm: LanguageModel, task: Task) -> tuple[Any, Any]:
    """Ours and a plain forward that keeps the completion's logits."""
    examples = task.draw(PROMPTS, torch.Generator().manual_seed(0))
    samples = generate(lm, task, examples, n=GROUP, generator=torch.Generator().manual_seed(0))
    tokens = torch.cat([samples.prompt_tokens, samples.tokens], -1)
    mask = torch.cat([samples.prompt_mask, samples.attention_mask], -1)

    def ours() -> None:
        with torch.no_grad():
            completion_logits(lm.model, samples)

    def theirs() -> None:
        with torch.no_grad():
            lm.model(tokens, attention_mask=mask, use_cache=False, logits_to_keep=LENGTH + 1)

    return ours, theirs


def _random() -> LanguageModel:
    """A Llama of the sizes of SmolLM2-135M, that reads characters."""
    import transformers

    from kl_companion.llm.tokenizers import character_tokenizer

    letters = "".join(
        sorted({c for e in make_task("questions").draw(32, torch.Generator()) for c in e.prompt})
    )
    config = transformers.LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    tokenizer = character_tokenizer(letters)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LanguageModel(transformers.LlamaForCausalLM(config).eval(), tokenizer)
