"""TRL's trainers on the small world: their own scoring, advantages and loss of enumerated answers.

Generation, tokenization and reward functions are the only methods that are replaced: they give the world's
answers, prompts and rewards. Everything else is the trainer's, subclasses and patches included.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from typing import Any

import torch

from kl_companion.monitor.doctor.in_place import changed, ids_of, lent
from kl_companion.monitor.doctor.subject import Declared, WorldGradients, seen
from kl_companion.monitor.doctor.tiny_model import Body
from kl_companion.monitor.doctor.tracing import POLICY, REFERENCE, Trace, label, scoring, unnoted
from kl_companion.monitor.doctor.world import SmallWorld

_LABELS = {
    "completion_mask": "mask",
    "tool_mask": "mask",
    "labels": "labels",
    "advantages": "advantages",
    "old_per_token_logps": "old log-probs",
    "old_logps": "old log-probs",
    "sampling_per_token_logps": "old log-probs",
    "ref_per_token_logps": REFERENCE,
}
TRIED = (1, 2, 3, 1000)  # steps of a callback: the first ones, and the last one of training
_RL = ("_generate_and_score_completions", "_compute_loss", "_calculate_rewards", "_generate")


def is_trainer(x: Any) -> bool:
    """Whether it is a trainer of the kind that `ExaminedTrainer` takes: by its methods."""
    return hasattr(x, "compute_loss") and hasattr(x, "args") and hasattr(x, "model")


class ExaminedTrainer:
    """A trainer object of TRL: GRPO, RLOO, distillation, GKD, or derived from them.

    Of another trainer that generates answers, as online DPO, nothing but sampler and state is examined.

    Args:
        trainer: Made as for training; nothing of it is changed in the end.

    Raises:
        ValueError: a trainer of another kind; when it is run, reward weights that sum to 0.
    """

    sets_beta = True

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.title = trainer, type(trainer).__name__
        self.rl = all(hasattr(trainer, name) for name in _RL)
        self.teacher = getattr(trainer, "teacher_model", None)
        self.runs = self.rl or self.teacher is not None
        if not self.runs and getattr(trainer, "generation_config", None) is None:
            raise ValueError(
                f"{self.title} is no trainer that the doctor knows, expected TRL's GRPO, RLOO, distillation "
                "or GKD trainer, one derived from them, or a function step(model, batch)"
            )
        self.ids = ids_of(trainer.processing_class)
        self.declared = _declared(trainer, self.rl)
        self.beta_before, self.moved = getattr(trainer, "beta", None), 0.0

    def run(
        self, world: SmallWorld, *, parts: int = 1, beta: float | None = None, trace: Trace | None = None
    ) -> WorldGradients:
        """See `Examined`."""
        with self._lent(world) as (policy, reference):
            before = reference.completion.detach().clone()
            with _on_world(self.trainer, world, parts, self.rl, beta):
                gradients = seen(lambda: self._loss(world, policy, parts), policy, reference, trace)
            if reference is not policy:
                self.moved = max(self.moved, (reference.completion - before).abs().max().item())
        return gradients

    def after_steps(self, world: SmallWorld, callback: Any) -> tuple[float, Any]:
        """Call what a callback does in the first steps of training, and in its last one.

        Returns:
            The share of the way to the policy that the reference has gone after the first steps, and the
            trainer's beta in the end.
        """
        trainer, share = self.trainer, 0.0
        state, control = copy.deepcopy(trainer.state), copy.deepcopy(getattr(trainer, "control", None))
        attributes, settings = dict(vars(trainer)), dict(vars(trainer.args))
        options = {"model": trainer.model, "optimizer": None, "lr_scheduler": None, "logs": {}}
        with self._lent(world) as (policy, reference), redirect_stdout(io.StringIO()):
            before = reference.completion.detach().clone()
            way = policy.completion.detach() - before
            try:
                state.max_steps = TRIED[-1]
                callback.on_train_begin(trainer.args, state, control, **options)
                for number in TRIED:
                    for done, event in ((number - 1, "on_step_begin"), (number, "on_step_end")):
                        state.global_step, state.epoch = done, done / TRIED[-1]
                        getattr(callback, event)(trainer.args, state, control, **options)
                    if number == TRIED[-2]:
                        change = reference.completion.detach() - before
                        share = ((change * way).sum() / (way * way).sum()).item()
                beta = getattr(trainer, "beta", None)
            finally:
                vars(trainer).update(attributes)
                vars(trainer.args).update(settings)
        return share, beta

    @contextmanager
    def _lent(self, world: SmallWorld) -> Iterator[tuple[Body, Body]]:
        """Lend the trainer's models the world's policy and reference."""
        trainer = self.trainer
        policy, reference = Body(world, POLICY), Body(world, REFERENCE)
        ref_model = self.teacher if self.teacher is not None else getattr(trainer, "ref_model", None)
        model = trainer.accelerator.unwrap_model(trainer.model)
        if ref_model is model:
            reference = policy
        with ExitStack() as stack:
            stack.enter_context(lent(model, policy))
            if ref_model is not None and ref_model is not model:
                stack.enter_context(lent(trainer.accelerator.unwrap_model(ref_model), reference))
            yield policy, reference

    def _loss(self, world: SmallWorld, policy: Body, parts: int) -> torch.Tensor:
        trainer = self.trainer
        if not hasattr(trainer, "_generate_and_score_completions"):
            return _distilled(trainer, world, parts)
        sampler = world.rollout.behavior_logits
        now = policy.completion.detach().clone()
        with unnoted(), torch.no_grad():
            if sampler is not None:
                policy.completion.copy_(sampler)
        with scoring():
            scored = trainer._generate_and_score_completions([{"prompt": "-"} for _ in world.batch])
        with unnoted(), torch.no_grad():
            if sampler is not None:
                policy.completion.copy_(now)
        losses = []
        for rows in torch.arange(len(world.batch)).chunk(parts):
            part = {n: x[rows] if _by_answer(x, world) else x for n, x in scored.items()}
            for name, x in part.items():
                if name in _LABELS:
                    label(x, _LABELS[name])
            losses.append(trainer.compute_loss(trainer.model, part))
        total = torch.stack(losses).sum()
        return total if not self._is_mean else total / parts

    @property
    def _is_mean(self) -> bool:
        """Whether the trainer's own training step divides the loss by the number of micro-batches."""
        return not (hasattr(self.trainer, "loss_type") or self.teacher is not None)


def _declared(trainer: Any, rl: bool) -> Declared:
    """What a trainer's settings say."""
    args = trainer.args
    kind = type(args).__name__
    top_k = getattr(args, "top_k", 0)
    updates = 1
    if rl:
        every = getattr(args, "steps_per_generation", 1) * getattr(trainer, "num_iterations", 1)
        updates = max(1, -(-every // args.gradient_accumulation_steps))
    loss_type = getattr(trainer, "loss_type", "")
    temperature = getattr(trainer, "temperature", getattr(args, "temperature", 1.0))
    if "temperature" not in (getattr(args, "generation_kwargs", None) or {}):  # else see `sampler`
        config = None if getattr(trainer, "use_vllm", False) else getattr(trainer, "generation_config", None)
        temperature = getattr(config, "temperature", None) or temperature
    return Declared(
        temperature=float(temperature),
        top_p=float(getattr(args, "top_p", None) or 1.0),
        top_k=int(top_k) if isinstance(top_k, int) and top_k > 0 else 0,
        updates=updates,
        beta=getattr(trainer, "beta", None),
        engine=bool(
            getattr(trainer, "use_vllm", False)
            and getattr(trainer, "vllm_importance_sampling_correction", False)
        ),
        names={
            "temperature": f"{kind}(temperature=...)",
            "beta": f"{kind}(beta=...) above 0 adds one",
            "same": "trainer.ref_model is trainer.model: ",
        },
        teacher=not rl and getattr(trainer, "teacher_model", None) is not None,
        token_mean_of="micro-batch" if loss_type == "bnpo" else "",
        accumulate=int(args.gradient_accumulation_steps),
    )


@contextmanager
def _on_world(trainer: Any, world: SmallWorld, parts: int, rl: bool, beta: float | None) -> Iterator[None]:
    """Answers, prompts and rewards are the world's; what a step logs and counts is put back in the end."""
    answers = [world.answer(i) for i in world.batch]
    prompts = [world.prompt(i) for i in world.batch]
    kept = {n: copy.deepcopy(vars(trainer)[n]) for n in ("_metrics", "_logs") if n in vars(trainer)}
    seen_tokens = trainer.state.num_input_tokens_seen
    engine = _engine_logps(trainer, world) if getattr(trainer, "use_vllm", False) else None
    changes: dict[str, Any] = {
        "_tokenize_prompts": lambda *_: (prompts, None, {}),
        "_generate_single_turn": lambda *_, **__: (answers, engine) if _two(trainer) else answers,
        "current_gradient_accumulation_steps": parts,
        # answers come from the world, whoever makes them in training
        **{n: x for n, x in (("rollout_func", None), ("environment_factories", None)) if hasattr(trainer, n)},
        **({"tools": []} if hasattr(trainer, "tools") else {}),
    }
    settings: dict[str, Any] = {
        "steps_per_generation": parts,
        "per_device_train_batch_size": len(answers),  # the world is scored in one pass
    }
    if rl:
        rewards = world.rollout.rewards
        assert rewards is not None
        total = trainer.reward_weights.sum().item()
        if total == 0:
            raise ValueError(
                "the trainer's reward_weights sum to 0, expected a sum that is not: rewards would be 0"
            )
        each = (rewards[world.batch] / total).float().unsqueeze(-1).expand(-1, len(trainer.reward_funcs))
        changes |= {"num_generations": len(answers), "_calculate_rewards": lambda *_: each.clone()}
        # whether samples are stale is decided by how often answers are generated: keep what it decides now
        args = trainer.args
        every = args.steps_per_generation * getattr(trainer, "num_iterations", 1)
        stale = args.gradient_accumulation_steps % every != 0
        changes["num_iterations"] = 2 if stale else 1
        settings["gradient_accumulation_steps"] = 1 if stale else parts
    if beta is not None:
        changes["beta"] = beta
    training = trainer.model.training
    trainer.model.train()
    try:
        with (
            warnings.catch_warnings(action="ignore", category=FutureWarning),
            changed(trainer, **{n: x for n, x in changes.items() if hasattr(trainer, n) or "_steps" in n}),
            changed(trainer.args, **{n: x for n, x in settings.items() if hasattr(trainer.args, n)}),
            changed(trainer.accelerator, autocast=lambda *_, **__: nullcontext()),
        ):
            yield
    finally:
        trainer.model.train(training)
        vars(trainer).update(kept)
        trainer.state.num_input_tokens_seen = seen_tokens


def _engine_logps(trainer: Any, world: SmallWorld) -> list[list[float]]:
    """Log-probs of the answers' tokens as the sampling engine gives them, at its temperature."""
    scored = world.scored(world.sampler_logits, trainer.temperature).tolist()
    return [row[: len(world.answer(i))] for row, i in zip(scored, world.batch, strict=True)]


def _two(trainer: Any) -> bool:
    """Whether generation gives the sampler's log-probs beside the answers."""
    return hasattr(trainer, "num_iterations") and hasattr(trainer, "rollout_func")


def _by_answer(x: Any, world: SmallWorld) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0 and len(x) == len(world.batch)


def _distilled(trainer: Any, world: SmallWorld, parts: int) -> torch.Tensor:
    """The loss of a trainer that is given finished texts: ids, attention mask and labels."""
    layout = world.layout()
    ids, mask = layout.input_ids, layout.attention_mask
    labels = layout.labels
    count = (labels != -100).sum()
    losses = []
    for rows in torch.arange(len(ids)).chunk(parts):
        part = {
            "input_ids": ids[rows],
            "attention_mask": mask[rows],
            "labels": labels[rows],
            "prompts": layout.prompt_ids[rows],
            "prompt_attention_mask": layout.prompt_mask[rows],
        }
        label(part["labels"], "labels")
        losses.append(trainer.compute_loss(trainer.model, part, num_items_in_batch=count))
    return torch.stack(losses).sum()
