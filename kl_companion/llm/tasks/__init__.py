"""Tasks by name: what the language-model notebooks train and distill on."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.llm.tasks.base import Example as Example
    from kl_companion.llm.tasks.base import Task as Task
    from kl_companion.llm.tasks.languages import language as language
    from kl_companion.llm.tasks.registry import TASKS as TASKS
    from kl_companion.llm.tasks.registry import make_task as make_task

__getattr__, __all__, __dir__ = lazy(__name__)
