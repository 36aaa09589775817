"""How much of a batch's gradient is signal: its mean against its scatter, over independent batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from kl_companion.eval_mode import eval_mode
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Task
from kl_companion.llm.training import train


def gradient_noise(
    policy: LanguageModel,
    task: Task,
    settings: Settings,
    *,
    batches: int = 8,
    reference: LanguageModel | None = None,
) -> dict[str, float]:
    """How much of a batch's gradient is signal, for the whole loss of the settings.

    Nothing is trained: the batches are those of an on-policy run at the policy's present parameters, before
    any clipping of the norm. Gradients that the parameters hold are dropped.

    Args:
        policy: Where the gradient is taken.
        task: Prompts and rewards.
        settings: The loss, the size of a batch, and the seed. ``lag``, ``inner_steps``, a moving anchor
            and a lesson would make batches depend on each other and are set aside.
        batches: How many, at least 2.
        reference: What the KL is measured to; the policy itself by default.

    Returns:
        ``signal``, the norm of the mean gradient: root of an unbiased estimate of its square, 0 where that is
        negative; ``noise``, the root of the trace of a batch's covariance; ``signal_to_noise``, their ratio.

    Raises:
        ValueError: fewer than 2 batches.
    """
    if isinstance(batches, bool) or not isinstance(batches, int) or batches < 2:
        raise ValueError(f"batches is {batches!r}, expected a whole number of at least 2")
    spread = Spread()

    def take(parameters: list[torch.nn.Parameter]) -> None:
        spread.add([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
        for p in parameters:  # the optimizer's step that follows must move nothing
            if p.grad is not None:
                p.grad.zero_()

    still = replace(
        settings,
        steps=batches,
        optimizer="sgd",
        inner_steps=1,
        lag=1,
        anchor="fixed",
        lesson=0,
        max_grad_norm=None,
    )
    with eval_mode(policy.model):
        train(policy, task, still, reference=reference, gradients=take)
    policy.model.zero_grad(set_to_none=True)
    return spread.summary()


class Spread:
    """Mean and scatter of vectors that come one after another, each given as a list of tensors (Welford)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: list[torch.Tensor] = []
        self.scatter = 0.0

    def add(self, vector: Sequence[torch.Tensor]) -> None:
        """Take one vector; all have the same shapes."""
        self.count += 1
        if not self.mean:
            self.mean = [torch.zeros_like(x, dtype=torch.float64) for x in vector]
        for mean, x in zip(self.mean, vector, strict=True):
            ahead = x.double() - mean
            mean += ahead / self.count
            self.scatter += (ahead * (x.double() - mean)).sum().item()

    @property
    def trace(self) -> float:
        """Of the covariance of one vector, unbiased."""
        return self.scatter / (self.count - 1)

    @property
    def squared_signal(self) -> float:
        """Squared norm of the expected vector, unbiased: the mean's minus its scatter; perhaps negative."""
        return sum(mean.square().sum().item() for mean in self.mean) - self.trace / self.count

    def summary(self) -> dict[str, float]:
        """``signal``, ``noise`` and ``signal_to_noise``, as `gradient_noise`."""
        signal, noise = max(self.squared_signal, 0.0) ** 0.5, self.trace**0.5
        ratio = signal / noise if noise > 0 else float("inf" if signal > 0 else "nan")
        return {"signal": signal, "noise": noise, "signal_to_noise": ratio}
