"""On-policy distillation: the student samples, the teacher is the reference, and the KL is the whole loss.

Every method is the training loop with other settings, so what separates two methods stands in one line.
Token-level methods hold the visited prefixes fixed; sequence-level ones also pay for what a choice leads to.

Source: tang2025pitfalls, sections 4 and 5.2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kl_companion.checks import look_up
from kl_companion.llm.history import History
from kl_companion.llm.models import LanguageModel, same_vocabulary
from kl_companion.llm.settings import Settings
from kl_companion.llm.setups import METHODS
from kl_companion.llm.tasks import Task
from kl_companion.llm.training import train


def distillation_settings(method: str, **changes: Any) -> Settings:
    """The settings of a method, with beta = 1 and any of them changed.

    Raises:
        ValueError: unknown method or setting, or settings that do not go together.
    """
    chosen = look_up("method", method, METHODS, {})
    unknown = sorted(set(changes) - set(Settings.__dataclass_fields__))
    if unknown:
        known = ", ".join(Settings.__dataclass_fields__)
        raise ValueError(f"got the setting {unknown[0]!r}, expected one of: {known}")
    return replace(Settings(beta=1.0), **{**chosen, **changes})


def distill(
    student: LanguageModel,
    teacher: LanguageModel,
    task: Task,
    method: str | Settings = "token_exact",
    *,
    train_options: dict[str, Any] | None = None,
    **changes: Any,
) -> History:
    """Train ``student.model`` in place towards the teacher on its own samples; arguments as `train`.

    Args:
        student: The model to train.
        teacher: The reference of the KL, of the same vocabulary.
        task: Where prompts come from; its rewards are not asked for.
        method: A name of `METHODS`, or settings.
        train_options: Passed on to `train`: ``evaluate``, ``every``, ``progress``, ``checkpoint``, ...
        **changes: Settings to change.

    Raises:
        ValueError: unknown method, or two models with different vocabularies.
    """
    same_vocabulary(student, teacher)
    settings = (
        replace(method, **changes)
        if isinstance(method, Settings)
        else distillation_settings(method, **changes)
    )
    return train(student, replace(task, reward=None), settings, reference=teacher, **(train_options or {}))
