"""Tasks by name: what the language-model notebooks train and distill on."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.llm.tasks.base import Example as Example
    from kl_companion.llm.tasks.base import Task as Task
    from kl_companion.llm.tasks.languages import language as language
    from kl_companion.llm.tasks.registry import TASKS as TASKS
    from kl_companion.llm.tasks.registry import make_task as make_task

_NAMES: dict[str, str] = {
    "Example": "kl_companion.llm.tasks.base",
    "Task": "kl_companion.llm.tasks.base",
    "language": "kl_companion.llm.tasks.languages",
    "TASKS": "kl_companion.llm.tasks.registry",
    "make_task": "kl_companion.llm.tasks.registry",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
