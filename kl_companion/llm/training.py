"""The training loop: sample, compare, differentiate, step. One explicit loop for RL and for distillation.

Distillation is the same loop with a teacher as the reference and no reward (`kl_companion.llm.distillation`).
The first five lines of `Run.explore` are what an algorithm box would say; the rest is bookkeeping.

Source: emapg2026, algorithm 3; tang2025pitfalls, section 5.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from kl_companion.checks import check_whole
from kl_companion.host_reads import any_wrong
from kl_companion.kernels.fused import fused_logp
from kl_companion.llm.adapters import add_adapters
from kl_companion.llm.checkpoints import (
    check_same_run,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
)
from kl_companion.llm.generation import Samples, answer_samples, generate
from kl_companion.llm.gradient_steps import Gradients, GradientSteps
from kl_companion.llm.history import History, Record
from kl_companion.llm.models import (
    LanguageModel,
    copy_weights,
    frozen_copy,
    move_weights,
    same_vocabulary,
    weights_of,
)
from kl_companion.llm.objective import Advantages, BatchSize, advantages_of, costs_of, loss_of
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Task
from kl_companion.policy_losses import ppo_mask
from kl_companion.rollout import Rollout

Mean = Callable[[torch.Tensor], torch.Tensor]
Evaluate = Callable[[LanguageModel, int], Record]


class TrainingStopped(RuntimeError):
    """A run met a loss or a gradient that is not finite; the message says where and what is kept."""


def train(
    policy: LanguageModel,
    task: Task,
    settings: Settings,
    *,
    reference: LanguageModel | None = None,
    evaluate: Evaluate | None = None,
    every: int = 50,
    progress: Callable[[Record], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    gradients: Gradients | None = None,
    mean: Mean | None = None,
) -> History:
    """Train ``policy.model`` in place.

    Args:
        policy: The model to train, and its tokenizer.
        task: Prompts and rewards; a task without rewards gives 0.
        settings: Every other choice.
        reference: What the KL is measured to; a frozen copy of the policy at the start by default.
        evaluate: Called with the policy and the number of finished steps, at step 0, every ``every`` steps
            and at the end; what it returns is recorded.
        every: Steps between evaluations and between checkpoints.
        progress: Receives the record of every step, and that of an evaluated start.
        checkpoint: A folder for checkpoints; None keeps none.
        resume: Go on from the folder's checkpoint where there is one.
        gradients: Called with the parameters when their gradients are complete, before they are clipped:
            where data-parallel training averages them.
        mean: Called with the number of tokens of a batch, a scalar tensor: returns its mean over the
            processes whose gradients are averaged. ``how="token_mean"`` divides by it.

    Raises:
        ValueError: models with different vocabularies, ``every`` below 1, a checkpoint of another run, a
            lesson in a task without right answers.
        TrainingStopped: a loss or a gradient that is not finite.
        OSError: a checkpoint that cannot be written.
    """
    check_whole("every", every, 1)
    if reference is not None:
        same_vocabulary(policy, reference)
    run = Run(policy, task, settings, reference, checkpoint, gradients, mean)
    if checkpoint is not None and resume:
        run.resume()
    if run.finished == 0 and evaluate is not None and not run.records:
        run.records.append({"step": 0, "evaluated": 1.0, **evaluate(policy, 0)})
        if progress is not None:
            progress(run.records[0])
    while run.finished < settings.steps:
        record = run.step()
        due = run.finished % every == 0 or run.finished == settings.steps
        if due and evaluate is not None:
            record |= {"evaluated": 1.0, **evaluate(policy, run.finished)}
        run.records.append(record)
        if due and checkpoint is not None:
            run.save()
        if progress is not None:
            progress(record)
    if run.merge is not None:
        run.merge()
    return History(run.records)


class Run:
    """The state of a run: models, optimizer, random generator, records."""

    def __init__(
        self,
        policy: LanguageModel,
        task: Task,
        settings: Settings,
        reference: LanguageModel | None,
        folder: str | os.PathLike[str] | None,
        gradients: Gradients | None,
        mean: Mean | None = None,
    ) -> None:
        self.policy, self.task, self.settings, self.folder = policy, task, settings, folder
        self.mean = mean
        if settings.lesson and not task.unique:
            raise ValueError(
                f"lesson is {settings.lesson} for task {task.name!r}, expected 0: it has no one right answer"
            )
        start = policy if reference is None else reference
        # a given reference that stays as it is needs no copy, and a taught one is copied below
        copied = settings.anchor == "ema" or (settings.anchor == "fixed" and reference is None)
        self.anchor = frozen_copy(start) if copied else start
        # after the anchor was copied, which stays without them
        self.merge = (
            None if settings.lora is None else add_adapters(policy, settings.lora, seed=settings.seed)
        )
        if settings.anchor == "taught":  # where its adapters will be, it needs some too
            self.anchor = frozen_copy(policy)
        self.sampler = policy if settings.lag == 1 else frozen_copy(policy)
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self.steps = GradientSteps(self.parameters, settings.max_grad_norm, gradients, self.check)
        self.optimizer = self.fresh_optimizer()
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.records: list[Record] = []
        self.finished = 0
        self.inner = 0  # optimizer steps of the step that is being taken

    def fresh_optimizer(self) -> torch.optim.Optimizer:
        """An optimizer that has seen nothing."""
        if self.settings.optimizer == "sgd":
            return torch.optim.SGD(self.parameters, lr=self.settings.lr)
        return torch.optim.Adam(self.parameters, lr=self.settings.lr, betas=(0.9, 0.99), fused=True)

    def step(self) -> Record:
        """One step of the lesson or of RL."""
        return self.learn() if self.finished < self.settings.lesson else self.explore()

    def learn(self) -> Record:
        """One supervised step on right answers; the last one leaves a start for RL."""
        s = self.settings
        examples = self.task.draw(s.prompts * s.group, self.generator)
        answers = answer_samples(self.policy, self.task, examples)

        def differentiate() -> list[torch.Tensor]:
            return [self.imitated(answers.select(rows), len(examples)) for rows in self.parts(answers)]

        norm, length, *losses = self.steps.take(self.optimizer, differentiate, [_mean_length(answers)], [])
        self.finished += 1
        if self.finished == s.lesson:
            self.optimizer = self.fresh_optimizer()
            if s.lag > 1:
                copy_weights(self.policy, self.sampler)
            if s.anchor == "taught":
                copy_weights(self.policy, self.anchor)
        return {"step": self.finished, "length": length, "loss": sum(losses), "grad_norm": norm}

    def imitated(self, part: Samples, count: int) -> torch.Tensor:
        """Differentiate the loss of some of ``count`` right answers, and return it."""
        loss = -_sampled(self.logits(self.policy, part), part).sum() / count
        self.check("the loss", loss.detach())
        loss.backward()
        return loss.detach()

    def explore(self) -> Record:
        """One step of RL; the algorithm is its first five lines."""
        samples, rewards = self.sample()
        with self.steps.collecting() as flags:
            advantages = self.compare(samples, rewards)
        for _ in range(self.settings.inner_steps):
            loss, norm, seen = self.descend(samples, rewards, advantages, flags)
            self.inner += 1
        self.follow()
        self.finished, self.inner = self.finished + 1, 0
        record = {"step": self.finished, "reward": rewards.mean().item(), "length": seen.pop("length")}
        return {**record, "loss": loss, "grad_norm": norm, **seen}

    def sample(self) -> tuple[Samples, torch.Tensor]:
        """Completions of the sampler and their rewards, [batch] on the CPU, where they are given."""
        s = self.settings
        if s.lag > 1 and self.finished % s.lag == 0:
            copy_weights(self.policy, self.sampler)
        examples, draw = self.task.draw(s.prompts, self.generator), self.generator
        with torch.no_grad(), self.autocast():
            samples = generate(
                self.sampler, self.task, examples, n=s.group, temperature=s.temperature, generator=draw
            )
        pairs, given = zip(samples.texts, samples.examples, strict=True), self.task.reward
        rewards = [0.0 if given is None else given(text, example) for text, example in pairs]
        on_host = torch.tensor(rewards, dtype=torch.float32)
        self.check("the mean reward", on_host.mean())
        return samples, on_host

    def compare(self, samples: Samples, rewards: torch.Tensor) -> Advantages:
        """Rewards, minus the KL where it is a cost, compared within groups."""
        s, costs = self.settings, None
        rewards = rewards.to(samples.tokens.device)
        if s.charges:
            with torch.no_grad():
                parts = [samples.select(rows) for rows in self.parts(samples)]
                costs = torch.cat([costs_of(self.penalized(part), s) for part in parts])
        return advantages_of(rewards, costs, samples.completion_mask, samples.prompt_index, s)

    def descend(
        self,
        samples: Samples,
        rewards: torch.Tensor,
        advantages: Advantages,
        flags: list[torch.Tensor] | None = None,
    ) -> tuple[float, float, Record]:
        """One optimizer step on the batch, in parts; loss, norm of the gradient, and what else was seen.

        ``flags`` are those of `compare`, where they were collected; reading them empties the list.
        """
        tokens = samples.completion_mask.sum()
        mean = self.mean if self.settings.how == "token_mean" else None
        size = BatchSize(len(samples.tokens), tokens if mean is None else mean(tokens))
        rewards = rewards.to(tokens.device)

        def differentiate() -> list[torch.Tensor]:
            if flags and not self.steps.collects:  # again, for the error
                self.compare(samples, rewards)
            parts = (
                self.differentiated(samples.select(rows), advantages.values[rows], rewards[rows], size)
                for rows in self.parts(samples)
            )
            return [number for part in parts for number in part]

        more = [_mean_length(samples), advantages.equal_groups, tokens]
        flags = [] if flags is None else flags
        norm, length, equal, count, *numbers = self.steps.take(self.optimizer, differentiate, more, flags)
        total, gap, stopped = (sum(x / by for x in numbers[i::3]) for i, by in enumerate((1, count, count)))
        return total, norm, {"length": length, "equal_groups": equal, "clipped": stopped, "log_ratio": gap}

    def differentiated(
        self, part: Samples, a: torch.Tensor, rewards: torch.Tensor, size: BatchSize
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Differentiate the loss of a part; return it, the sum of |log ratio|, and what PPO's clip stops."""
        rollout, inside = self.rollout(part, rewards), part.completion_mask.bool()
        loss = loss_of(rollout, a, self.settings, size)
        self.check("the loss", loss.detach())
        loss.backward()
        log_ratio = rollout.logp.detach() - part.behavior_logp
        return loss.detach(), _under(log_ratio, inside).abs().sum(), self.clipped(log_ratio, a, inside)

    def clipped(self, log_ratio: torch.Tensor, a: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """Number of tokens that PPO's clip stops."""
        if self.settings.clip is None:
            return log_ratio.new_zeros(())
        return ((1 - ppo_mask(a, log_ratio.exp(), *self.settings.clip)) * inside).sum()

    def rollout(self, samples: Samples, rewards: torch.Tensor) -> Rollout:
        """The batch as the policy and, where the loss holds a KL, the anchor see it."""
        s = self.settings
        logits = self.logits(self.policy, samples)
        logp = _sampled(logits, samples)
        if not s.differentiates:
            return self.batch(samples, logp, logp.detach(), rewards=rewards)
        ref_logits = self.logits(self.anchor, samples, detached=True)
        whole = {"logits": logits, "ref_logits": ref_logits} if s.needs_logits else {}
        return self.batch(samples, logp, _sampled(ref_logits, samples), rewards=rewards, **whole)

    def penalized(self, samples: Samples) -> Rollout:
        """The batch whose KL is a cost in the reward, as its source and the anchor see it."""
        s = self.settings
        ref_logits = self.logits(self.anchor, samples, detached=True)
        ref_logp = _sampled(ref_logits, samples)
        if s.penalty_from == "sampler" and not s.needs_logits:
            return self.batch(samples, samples.behavior_logp, ref_logp)
        source = self.sampler if s.penalty_from == "sampler" else self.policy
        logits = self.logits(source, samples, detached=True)
        return self.batch(samples, _sampled(logits, samples), ref_logp, logits=logits, ref_logits=ref_logits)

    def logits(self, lm: LanguageModel, samples: Samples, *, detached: bool = False) -> torch.Tensor:
        """Next-token logits over the completions, [batch, seq, vocab] float32."""
        with self.autocast(), torch.set_grad_enabled(torch.is_grad_enabled() and not detached):
            return completion_logits(lm.model, samples, temperature=self.settings.temperature)

    @staticmethod
    def batch(samples: Samples, logp: torch.Tensor, ref_logp: torch.Tensor, **more: Any) -> Rollout:
        """A rollout of these samples."""
        return Rollout(
            samples.tokens,
            samples.completion_mask,
            logp,
            ref_logp,
            behavior_logp=samples.behavior_logp,
            prompt_index=samples.prompt_index,
            **more,
        )

    def parts(self, samples: Samples) -> Iterator[slice]:
        """Rows of the batch's parts."""
        count = len(samples.tokens)
        size = -(-count // self.settings.accumulate)
        yield from (slice(start, min(start + size, count)) for start in range(0, count, size))

    def follow(self) -> None:
        """Move an averaged anchor towards the policy, every ``period`` steps."""
        s = self.settings
        if s.anchor == "ema" and (self.finished + 1) % s.period == 0:
            move_weights(self.anchor, self.policy, 1 - s.decay)

    def autocast(self) -> torch.autocast:
        """bfloat16 forward passes where the settings ask for them."""
        kind = self.policy.model.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.settings.dtype == "bfloat16")

    def check(self, what: str, x: torch.Tensor) -> None:
        """Stop at a number that is not finite."""
        if any_wrong(~x.isfinite()):
            kept = "no checkpoint was asked for"
            if self.folder is not None:
                kept = f"the last checkpoint is in {self.folder}"
            state = f"those of step {self.finished}"
            if self.inner:
                state = f"those after {self.inner} of the {self.settings.inner_steps} optimizer steps of it"
            raise TrainingStopped(
                f"{what} of step {self.finished + 1} is {x.item()}, expected a finite number; the parameters "
                f"are {state}; {kept}"
            )

    def kept(self) -> dict[str, LanguageModel]:
        """The models that a resumed run could not make again."""
        models = {"policy": self.policy}
        if self.settings.anchor != "fixed":
            models["anchor"] = self.anchor
        if self.settings.lag > 1:
            models["sampler"] = self.sampler
        return models

    def save(self) -> None:
        """Keep all that a resumed run needs."""
        tensors = {f"{m}.{name}": x for m, lm in self.kept().items() for name, x in weights_of(lm).items()}
        tensors |= optimizer_tensors(self.optimizer) | {"generator": self.generator.get_state()}
        state = {"step": self.finished, "run": self.said(), "records": self.records}
        save_checkpoint(self.folder, tensors, state)  # type: ignore[arg-type]

    def resume(self) -> None:
        """Go on from the folder's checkpoint, if it has one."""
        found = load_checkpoint(self.folder, device=self.policy.model.device)  # type: ignore[arg-type]
        if found is None:
            return
        check_same_run(found, self.said(), self.folder)  # type: ignore[arg-type]
        with torch.no_grad():
            for m, lm in self.kept().items():
                for name, x in weights_of(lm).items():
                    x.copy_(found.tensors[f"{m}.{name}"])
        restore_optimizer(self.optimizer, found.tensors)
        self.generator.set_state(found.tensors["generator"].cpu())
        self.records, self.finished = found.state["records"], found.state["step"]

    def said(self) -> dict[str, Any]:
        """What makes two runs the same run, as JSON gives it back."""
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.settings).items()}
        return {"task": self.task.name, **settings}


def _sampled(logits: torch.Tensor, samples: Samples) -> torch.Tensor:
    """Log-probs of the sampled tokens, 0 outside the mask."""
    return fused_logp(logits, samples.tokens).masked_fill(~samples.completion_mask.bool(), 0.0)


def _mean_length(samples: Samples) -> torch.Tensor:
    return samples.completion_mask.bool().sum(-1).float().mean()


def _under(x: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Entries under a mask; on a GPU, whose host would wait for their number, all, zeros elsewhere."""
    return x[inside] if x.device.type == "cpu" else x.masked_fill(~inside, 0.0)
