"""Prompts as people write them to an assistant, without a reward: for distillation and for measurements."""

from __future__ import annotations

from kl_companion.llm.tasks.base import Example, Task, drawing, whole

QUESTIONS = (
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about rain.",
    "What should I see in Rome in one day?",
    "Give me three tips for sleeping better.",
    "How do I boil an egg so that the yolk stays soft?",
    "Summarize the story of Cinderella in three sentences.",
    "What is the difference between a virus and a bacterium?",
    "Write a polite email that asks for a day off.",
    "Why do cats purr?",
    "Name five animals that live in the desert.",
    "How does a bicycle stay upright?",
    "What can I cook with rice, tomatoes and cheese?",
    "Explain what a black hole is to a child.",
    "Write a Python function that reverses a string.",
    "What are the advantages of reading every day?",
    "Describe a sunset at the sea.",
    "How do vaccines work?",
    "Suggest a name for a small bakery and say why.",
    "What is inflation?",
    "How can I learn a new language faster?",
    "Tell me a joke about computers.",
    "What happens to water when it freezes?",
    "Write the first sentence of a mystery novel.",
    "Which planets have rings?",
    "How do I remove a coffee stain from a shirt?",
    "What is the capital of Australia, and why is it not Sydney?",
    "Compare tea and coffee.",
    "Explain the rules of chess in a few sentences.",
    "What makes bread rise?",
    "Write a birthday message for a friend.",
    "How far away is the moon?",
    "What should I pack for a week in the mountains?",
)


def questions(max_new_tokens: int = 48) -> Task:
    """Questions and requests of everyday life; answers end with end-of-sequence.

    Args:
        max_new_tokens: Of an answer, at most.

    Raises:
        ValueError: ``max_new_tokens`` below 1.
    """
    return Task(
        name="questions",
        alphabet=None,
        max_new_tokens=whole("max_new_tokens", max_new_tokens, 1),
        draw=drawing([Example(text, "") for text in QUESTIONS]),
        reward=None,
        ends=True,
        chat=True,
    )
