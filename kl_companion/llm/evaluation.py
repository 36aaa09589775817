"""Measure a policy: reward, pass@n, KL to a reference in both directions, length, entropy.

Every evaluation starts from its own seed, so two models, or one model at two steps, are compared on the same
prompts and from the same random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kl_companion.eval_mode import evaluating
from kl_companion.llm.generation import Samples, answer_samples, generate
from kl_companion.llm.measuring import (
    KLEstimate,
    check_examples,
    check_models,
    measure,
    right_logp,
    sequence_kl,
    summarize,
    teacher_forced,
)
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.tasks import Example, Task

__all__ = [
    "Evaluation",
    "KLEstimate",
    "evaluate",
    "exact_reward",
    "pass_at",
    "rewards_of",
    "right_logp",
    "sequence_kl",
]


def exact_reward(
    lm: LanguageModel,
    task: Task,
    examples: Sequence[Example],
    *,
    temperature: float = 1.0,
    batch: int | None = None,
) -> torch.Tensor:
    """Probability of each example's one right answer, [prompts] float64: its expected reward.

    Arguments and errors as `right_logp`.
    """
    return right_logp(lm, task, examples, temperature=temperature, batch=batch).exp()


def pass_at(k: int, n: int, right: torch.Tensor) -> torch.Tensor:
    """Probability that one of k completions is right, unbiased, from the number of right ones among n.

    It is the share of the k-subsets of the n completions that hold a right one,
    1 - C(n - right, k) / C(n, k).

    Args:
        k: Completions that are allowed, 1 to n.
        n: Completions that were drawn.
        right: How many of them are right, any shape.

    Returns:
        float64, of the shape of ``right``.

    Raises:
        ValueError: k outside 1 to n, or a count that is no whole number from 0 to n.
    """
    for name, value, most in (("n", n, None), ("k", k, n)):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < 1 or (most is not None and value > most):
            raise ValueError(
                f"{name} is {value!r}, expected a whole number from 1" + (f" to n={n}" if most else "")
            )
    count = right.double()
    if not ((count >= 0) & (count <= n) & (count == count.round())).all():
        raise ValueError(f"right is {right.tolist()}, expected whole numbers from 0 to n={n}")
    i = torch.arange(k, dtype=torch.float64, device=count.device)
    # where fewer than k are wrong, one factor is zero: every subset holds a right one
    return 1 - ((n - count.unsqueeze(-1) - i) / (n - i)).prod(-1)


class Evaluation:
    """Everything that the tables record about a policy, of one policy after another against one reference.

    What does not depend on the policy is done once: the reference writes its completions, and right answers
    become tokens. Called with a policy it returns ``kl``, ``kl_se``, ``kl_per_token``, ``length``,
    ``entropy``, ``forward_kl``, ``forward_kl_se`` (see `KLEstimate`; length and entropy are the policy's),
    ``finished`` (share of its completions). With a reward: ``reward``, ``pass_1`` and ``pass_n`` (a right
    completion among n; right is a reward of at least 1). They are exact on these prompts where the task's
    answers are unique, else means over the completions.

    Args:
        reference: pi_ref; both models write ``n`` completions of every prompt, from the same seed.
        task: Prompts and rewards.
        examples: The prompts; the same ones in each call, for comparisons.
        n: Completions of each prompt.
        seed: Of the completions.
        k: Also measure the mass of the k likeliest tokens, a mean over tokens: ``top_k_mass``.
        best_of: Also the chance that one of so many completions is right, where answers are unique; with 8,
            say, ``pass_8``.
        out_examples: Also measure the reward on these, from another domain: ``reward_out``.
        temperature: As in `sequence_kl`.
        batch: As in `sequence_kl`.

    Raises:
        ValueError: as `sequence_kl`; ``out_examples`` of a task without reward, ``best_of`` where answers are
            not unique.
    """

    def __init__(
        self,
        reference: LanguageModel,
        task: Task,
        *,
        examples: Sequence[Example],
        n: int = 4,
        seed: int = 0,
        k: int | None = None,
        best_of: int | None = None,
        out_examples: Sequence[Example] | None = None,
        temperature: float = 1.0,
        batch: int | None = None,
    ) -> None:
        check_examples(examples)
        if out_examples is not None:
            check_examples(out_examples)
            if task.reward is None:
                raise ValueError(f"task {task.name!r} has no reward, expected out_examples=None")
        if best_of is not None and not task.unique:
            raise ValueError(
                f"best_of is {best_of!r} for task {task.name!r}, expected None: the answers are not unique, "
                "so pass@n is estimated from n completions"
            )
        self.reference, self.task, self.examples, self.out_examples = reference, task, examples, out_examples
        self.n, self.seed, self.k, self.best_of = n, seed, k, best_of
        self.options: dict[str, Any] = {"temperature": temperature, "batch": batch}
        self._answers: dict[tuple[bool, torch.device], Samples] = {}
        self._other: Samples | None = None

    def __call__(self, policy: LanguageModel) -> dict[str, float]:
        """The numbers of a policy, by name."""
        check_models(policy, self.reference, self.examples)
        with evaluating(policy.model, self.reference.model):
            return self._of(policy)

    def _of(self, policy: LanguageModel) -> dict[str, float]:
        own = self._write(policy, self.examples)
        if self._other is None:
            self._other = self._write(self.reference, self.examples)
        seen = measure(policy, self.reference, own, k=self.k, **self.options)
        back = measure(policy, self.reference, self._other, direction="forward", **self.options)
        there, forth = summarize(seen, own.prompt_index), summarize(back, self._other.prompt_index)
        found = {
            "kl": there.kl,
            "kl_se": there.se,
            "forward_kl": forth.kl,
            "forward_kl_se": forth.se,
            "kl_per_token": there.per_token,
            "length": there.length,
            "entropy": there.entropy,
            "finished": own.finished.double().mean().item(),
        }
        if seen.mass is not None:
            found["top_k_mass"] = (seen.mass.sum() / seen.length.sum()).item()
        return found | self._rewards(policy, own)

    def _rewards(self, policy: LanguageModel, own: Samples) -> dict[str, float]:
        """Reward and pass@n: exact where answers are unique, else of the completions."""
        n, found = self.n, {}
        if self.task.unique:
            p = self._right(policy, self.examples)

            def one_of(many: int) -> float:
                return -(many * (-p).log1p()).expm1().mean().item()  # 1 - (1 - p)^many

            found = {"reward": p.mean().item(), "pass_1": p.mean().item(), "pass_n": one_of(n)}
            found |= {} if self.best_of is None else {f"pass_{self.best_of}": one_of(self.best_of)}
        elif self.task.reward is not None:
            rewards = rewards_of(self.task, own)
            right = (rewards >= 1).view(-1, n).sum(-1)
            found = {
                "reward": rewards.mean().item(),
                "pass_1": pass_at(1, n, right).mean().item(),
                "pass_n": pass_at(n, n, right).mean().item(),
            }
        if self.out_examples is not None and self.task.unique:
            found["reward_out"] = self._right(policy, self.out_examples).mean().item()
        elif self.out_examples is not None:
            out = self._write(policy, self.out_examples)
            found["reward_out"] = rewards_of(self.task, out).mean().item()
        return found

    def _write(self, lm: LanguageModel, prompts: Sequence[Example]) -> Samples:
        generator, temperature = torch.Generator().manual_seed(self.seed), self.options["temperature"]
        return generate(lm, self.task, list(prompts), n=self.n, temperature=temperature, generator=generator)

    def _right(self, policy: LanguageModel, examples: Sequence[Example]) -> torch.Tensor:
        """Probability of each right answer."""
        key = (examples is self.examples, policy.device)
        if key not in self._answers:
            self._answers[key] = answer_samples(policy, self.task, list(examples))
        return teacher_forced(policy, self._answers[key], **self.options).exp()


def evaluate(
    policy: LanguageModel,
    reference: LanguageModel,
    task: Task,
    *,
    examples: Sequence[Example],
    **options: Any,
) -> dict[str, float]:
    """Return everything that the tables record about a policy, by name; arguments as `Evaluation`."""
    return Evaluation(reference, task, examples=examples, **options)(policy)


def rewards_of(task: Task, samples: Samples) -> torch.Tensor:
    """The task's reward of every completion, [batch] float64. ValueError for a task without rewards."""
    if task.reward is None:
        raise ValueError(f"task {task.name!r} has no reward: it is a language, for distillation")
    pairs = zip(samples.texts, samples.examples, strict=True)
    return torch.tensor([task.reward(text, example) for text, example in pairs], dtype=torch.float64)
