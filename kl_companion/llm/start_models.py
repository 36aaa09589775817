"""Where runs begin: the embedded start model of each task, or a model that the user names.

The embedded models are trained on the spot, the first time, in seconds; a folder or a hub name loads a real
one.
"""

from __future__ import annotations

from typing import Any

from kl_companion.checks import look_up
from kl_companion.llm.models import LanguageModel, load_model
from kl_companion.llm.pretraining import pretrained
from kl_companion.llm.tasks import Task, make_task

EMBEDDED = "embedded"
STARTS: dict[str, dict[str, Any]] = {  # how far each task is pretrained: right about one time in five
    "sort": {"steps": 600, "until": 0.22, "seed": 1, "every": 1},
    "arithmetic": {"steps": 1500, "until": 0.3, "seed": 0},
    "look_up": {"steps": 400, "seed": 0},
    "markov": {"steps": 600, "seed": 0},
    "two_styles": {"steps": 600, "seed": 0},
}


def start_model(
    task_name: str,
    *,
    model: str = EMBEDDED,
    device: str = "cpu",
    dtype: str = "float32",
    size: dict[str, int] | None = None,
    recipe: dict[str, Any] | None = None,
    **task_options: Any,
) -> tuple[LanguageModel, Task]:
    """The model that a run starts from, and its task.

    Args:
        task_name: A name of `TASKS`.
        model: ``"embedded"``, or what `load_model` takes: a folder, a hub name, "smollm2".
        device: Where to put it.
        dtype: Of a loaded model's weights; the embedded ones are float32.
        size: Keyword arguments of `tiny_model`, for the embedded one.
        recipe: Changes to the embedded model's pretraining, see `pretrained`.
        **task_options: Of the task.

    Raises:
        ValueError: an unknown task or option; a task in natural language with the embedded model; and what
            `load_model` raises.
    """
    task = make_task(task_name, **task_options)
    if model != EMBEDDED:
        return load_model(model, device=device, dtype=dtype), task
    if task.alphabet is None:
        raise ValueError(
            f"task {task_name!r} is in natural language, and model='embedded' reads characters only; "
            "expected the folder or the hub name of a language model"
        )
    chosen = {**look_up("task", task_name, STARTS, {}), **(recipe or {})}
    return pretrained(task_name, size=size, device=device, options=task_options, **chosen), task
