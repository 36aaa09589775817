"""The fixtures of all tests of language models."""

from tests.support.llm.fixtures import model_cache, sharp, task, tiny

__all__ = ["model_cache", "sharp", "task", "tiny"]
