"""Teachers and students: the set-ups of distillation, or two models that the user names.

Four of them are embedded models, and differ in why the student cannot follow at once: it speaks another
language, it is too small for one of two styles, it is sure of the wrong things, or it stops at other times.
In the others it is a real model that was made smaller. Each starts far from its teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from kl_book.lab import variants
from kl_companion.checks import look_up
from kl_companion.eval_mode import evaluating
from kl_companion.llm.generation import generate
from kl_companion.llm.measuring import sequence_kl
from kl_companion.llm.models import LanguageModel, load_model, same_vocabulary
from kl_companion.llm.pretraining import pretrained
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.setups import SETUPS, RealSetUp
from kl_companion.llm.tasks import Example, Task, make_task
from kl_companion.llm.tasks.languages import STYLES, TwoStyles


class Pair(NamedTuple):
    """A student, the teacher it is to follow, and where prompts come from."""

    student: LanguageModel
    teacher: LanguageModel
    task: Task


def distillation_pair(
    name: str, *, seed: int = 0, device: str = "cpu", recipe: dict[str, Any] | None = None
) -> Pair:
    """The student and the teacher of a set-up; embedded ones are trained on the spot the first time.

    Args:
        name: One of `SETUPS`.
        seed: Of all that is embedded: another seed is another language, another teacher and another student.
            A real pair is the same for all seeds.
        device: Where to train them, and where they are returned.
        recipe: Changes to the pretraining of both, see `pretrained`; of embedded models only.

    Raises:
        ValueError: an unknown set-up, a recipe for a real model, and what `pretrained` and `load_model`
            raise.
    """
    s = look_up("set-up", name, SETUPS, {})
    more = recipe or {}
    if isinstance(s, RealSetUp):
        if more:
            raise ValueError(
                f"recipe is {more} for the set-up {name!r}, expected none: {s.model} is pretrained"
            )
        return _real_pair(s, device)
    language, other = {**s.options, "seed": 2 * seed}, {**s.options, "seed": 2 * seed + 1}
    learned = language if s.same_language else other
    teacher = pretrained(s.task, device=device, options=language, **{**s.teacher, "seed": 2 * seed, **more})
    student = pretrained(
        s.task, device=device, options=learned, **{**s.student, "seed": 2 * seed + 1, **more}
    )
    if s.sharpness != 1:
        with torch.no_grad():  # the last norm's gain multiplies every logit
            student.model.model.norm.weight.mul_(s.sharpness)
    teacher.model.requires_grad_(False)
    return Pair(student, teacher, make_task(s.task, **language))


def _real_pair(s: RealSetUp, device: str) -> Pair:
    teacher = load_model(s.model, device=device)
    teacher.model.requires_grad_(False)
    student = getattr(variants, s.student)(teacher, **s.options)
    student.model.requires_grad_(True)
    return Pair(student, teacher, make_task(s.task, **s.task_options))


def loaded_pair(
    student: str, teacher: str, task_name: str, *, device: str = "cpu", dtype: str = "float32", **options: Any
) -> Pair:
    """Two models that the user names, by folder or hub name, of one vocabulary.

    Raises:
        ValueError: vocabularies that differ, an unknown task, and what `load_model` raises.
    """
    pair = Pair(
        load_model(student, device=device, dtype=dtype),
        load_model(teacher, device=device, dtype=dtype),
        make_task(task_name, **options),
    )
    same_vocabulary(pair.student, pair.teacher)
    pair.teacher.model.requires_grad_(False)
    return pair


def by_style(
    policy: LanguageModel, reference: LanguageModel, task: Task, examples: Sequence[Example], *, seed: int = 0
) -> dict[str, float]:
    """Where the KL of a two-style language sits: in the choice of a style, or in what follows it.

    By the chain rule, prompt by prompt, KL = choice + P(A) KL after A + P(B) KL after B, up to what the
    policy puts on characters that are no style.

    Args:
        policy: pi.
        reference: pi_ref.
        task: For any other task there is nothing to say: an empty dict.
        examples: The prompts.
        seed: Of the completions that follow each style.

    Returns:
        ``style_a``, ``style_b``: the policy's probability to begin with that style, mean over prompts, exact.
        ``kl_choice``: the KL of the first token, exact on these prompts. ``kl_after_a``, ``kl_after_b``: the
        KL of the rest, given the style; next-token KLs are exact, completions sampled, and both are there
        even where the policy has given up the style.
    """
    if not isinstance(task.law, TwoStyles):
        return {}
    first, rest = replace(task, max_new_tokens=1), replace(task, max_new_tokens=task.max_new_tokens - 1)
    found = {}
    with evaluating(policy.model):
        samples = generate(policy, first, list(examples), generator=torch.Generator().manual_seed(seed))
        p = completion_logits(policy.model, samples)[:, 0].double().softmax(-1).mean(0)
    for style in STYLES:
        found[f"style_{style.lower()}"] = p[policy.tokenizer.convert_tokens_to_ids(style)].item()
    found["kl_choice"] = _kl(policy, reference, first, examples, seed)
    for style in STYLES:  # a prompt that holds the style already
        begun = [example._replace(prompt=example.prompt + style) for example in examples]
        found[f"kl_after_{style.lower()}"] = _kl(policy, reference, rest, begun, seed)
    return found


def _kl(
    policy: LanguageModel, reference: LanguageModel, task: Task, examples: Sequence[Example], seed: int
) -> float:
    generator = torch.Generator().manual_seed(seed)
    return sequence_kl(policy, reference, task, examples, generator=generator).kl
