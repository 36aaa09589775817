"""A training step as a function of a model and a batch: ``step(model, batch)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import torch

from kl_companion.auditing.reading.names import Read, read_name
from kl_companion.checks import check_choice
from kl_companion.monitor.doctor.double_precision import DoublePrecision
from kl_companion.monitor.doctor.step_batch import StepBatch, is_known
from kl_companion.monitor.doctor.step_state import StepState, seeded
from kl_companion.monitor.doctor.subject import Declared, WorldGradients, scalar_of, seen
from kl_companion.monitor.doctor.tiny_model import TinyModel
from kl_companion.monitor.doctor.tracing import (
    POLICY,
    REFERENCE,
    WEIGHTS,
    Line,
    Trace,
    current,
    forget,
    label,
)
from kl_companion.monitor.doctor.world import REWARDS, Ids, SmallWorld
from kl_companion.monitor.doctor.world import world as world_of

ALIGNMENTS = ("completion", "full", "shifted")
LIVE_SIZES = (4, 12, 28, 60, 124, 252)  # tokens of the world, up to a vocabulary of 256
NOTHING = 1e-12
_TOO_SMALL = ("out of range", "out of bounds")  # of torch's topk, gather and index
_MODELS = ("model", "policy", "actor", "student", "net", "policy_model", "actor_model")
_REFERENCES = ("ref_model", "reference", "ref", "ref_policy", "reference_model", "teacher", "teacher_model")


def _is_of_rewards(name: str) -> bool:
    reading = read_name(name)
    return isinstance(reading, Read) and reading.role == "rewards"


class ExaminedStep:
    """A function of a model and a batch that gives the loss, or calls ``backward`` on it.

    Args:
        step: ``step(model, batch)``, or with a reference between the two; parameters are told by their names.
        declared: What is known of its sampler.
        alignment: Of masks and log-probs in the batch, one of `ALIGNMENTS`.
        reference: A model that the step uses without being given it: its ``forward`` is lent to the world's
            reference while the step runs.
        ids: Token ids that the step's code expects.
        summed: Whether gradients of micro-batches are added up and not averaged.

    Raises:
        ValueError: a function with other parameters; an unknown alignment.
    """

    sets_beta = False

    def __init__(
        self,
        step: Callable[..., Any],
        declared: Declared = Declared(),  # noqa: B008 (a tuple)
        *,
        alignment: str = "completion",
        reference: torch.nn.Module | None = None,
        ids: Ids = Ids(),  # noqa: B008
        summed: bool = False,
    ) -> None:
        check_choice("alignment", alignment, ALIGNMENTS)
        self.step, self.declared, self.alignment, self.ids = step, declared, alignment, ids
        self.reference, self.summed = reference, summed
        self.title = getattr(step, "__name__", type(step).__name__)
        self._order = [_meaning(name, self.title) for name in _parameters(step)]
        if POLICY not in self._order or "batch" not in self._order:
            raise ValueError(
                f"{self.title} has the parameters {', '.join(_parameters(step)) or '(none)'}, expected a "
                "model and a batch: step(model, batch), or step(model, ref_model, batch)"
            )
        self.reads_rewards = False
        self.state = StepState(step)
        self.seed, self.exact = 0, True
        self.casts: list[Line] = []
        self._per_token = False
        self._names: list[str] = []
        self.keeps_model = self._settled = False

    def settle(self) -> None:
        """Find out what the step needs: advantages of which shape, names, a vocabulary of which size.

        Raises:
            ValueError, RuntimeError: of the step itself, where no choice makes it run.
        """
        failure: Exception | None = None
        self.trace = trace = Trace()
        for live, self._per_token in product(LIVE_SIZES, (False, True)):
            self.ids = self.ids.with_live(live) if live > len(self.ids.live) else self.ids
            trace.forget()
            try:
                self.run(world_of(self.ids, rewards=REWARDS), trace=trace)
                break
            except RuntimeError as error:
                failure = failure or error
                if self._per_token and not any(word in str(failure) for word in _TOO_SMALL):
                    raise failure from None
        else:
            raise failure or RuntimeError("no world is large enough")
        self._settled = True
        self.keeps_model = self.state.holds_module(REFERENCE not in self._order)
        asked = max((op.result[-1] for op in trace.operations if op.name == "topk" and op.result), default=0)
        large = [live for live in LIVE_SIZES if live > asked]
        if asked >= len(self.ids.live) and large:
            self.ids = self.ids.with_live(large[0])

    def run(
        self, world: SmallWorld, *, parts: int = 1, beta: float | None = None, trace: Trace | None = None
    ) -> WorldGradients:
        """See `Examined`; a part's gradient counts by the share of the answers in it."""
        self.state.restore()
        return self._seen(world, self._models(world), parts, trace)

    @property
    def takes_reference(self) -> bool:
        """Whether one of its parameters is a reference."""
        return REFERENCE in self._order

    def in_a_row(self, worlds: Sequence[SmallWorld]) -> list[tuple[WorldGradients, float]]:
        """Call the step several times with the state that it keeps; equal worlds share their models.

        Returns:
            For each call its gradients, and which part of the way to the policy the reference's weights have
            gone after it.
        """
        self.state.restore()
        out: list[tuple[WorldGradients, float]] = []
        before: SmallWorld | None = None
        for world in worlds:
            if world is not before:
                models, before = self._models(world), world
                table = models[REFERENCE].model.completion
                start = table.detach().clone()
                way = (models[POLICY].model.completion.detach() - start).abs().max()
            gradients = self._seen(world, models, 1, None)
            out.append((gradients, ((table.detach() - start).abs().max() / way.clamp(min=NOTHING)).item()))
        return out

    def _models(self, world: SmallWorld) -> dict[str, TinyModel]:
        """Return the models of a run; where the step keeps a copy of its first one, that is the reference."""
        models = {POLICY: TinyModel(world, POLICY), REFERENCE: TinyModel(world, REFERENCE).eval()}
        if self.keeps_model:
            with seeded(self.seed):
                self._called(world, {POLICY: TinyModel(world, REFERENCE)}, 1)
        return models

    def _seen(
        self, world: SmallWorld, models: dict[str, TinyModel], parts: int, trace: Trace | None
    ) -> WorldGradients:
        policy, reference = models[POLICY], models[REFERENCE]

        narrow = DoublePrecision(self.casts) if self.casts or not self._settled else nullcontext()

        def loss() -> torch.Tensor | None:
            for x in reference.model.parameters():
                label(x, WEIGHTS)
            with seeded(self.seed), narrow if self.exact else nullcontext():
                return self._called(world, models, parts)

        before = None if self.reference is None else self.reference.forward
        if self.reference is not None:
            self.reference.forward = reference.forward
        try:
            return seen(loss, policy.model, reference.model, trace)
        finally:
            if self.reference is not None:
                self.reference.__dict__.pop("forward", None)
                if self.reference.forward != before:
                    self.reference.forward = before  # type: ignore[assignment]

    def _called(self, world: SmallWorld, models: dict[str, Any], parts: int) -> torch.Tensor | None:
        """Call the step; a name that it misses in a copy of the batch is in the next one."""
        while True:
            try:
                return self._loss(world, models, parts)
            except KeyError as error:
                name = error.args[0] if error.args else None
                if not isinstance(name, str) or name in self._names or not is_known(name):
                    raise
                self._names.append(name)
                forget()

    def _loss(self, world: SmallWorld, models: dict[str, Any], parts: int) -> torch.Tensor | None:
        made = getattr(self.step, "advantages", None)
        batch = StepBatch(
            world, self.alignment, self.declared.temperature, self._per_token, made, self._names
        )
        losses: list[torch.Tensor | None] = []
        for rows in torch.arange(len(world.batch)).chunk(parts):
            if losses and not self.keeps_model:
                self.state.restore()
            part = batch if parts == 1 else batch.rows(rows.tolist())
            _label(part)
            given = [{**models, "batch": part}[kind] for kind in self._order]
            part.asked.clear()
            losses.append(scalar_of(self.step(*given), self.title))
            trace = current()
            self.reads_rewards |= any(_is_of_rewards(name) for name in part.asked)
            self.reads_rewards |= trace is not None and trace.reads("advantages")
        kept = [x for x in losses if x is not None]
        if not kept:
            return None
        return torch.stack(kept).sum() if self.summed else torch.stack(kept).mean()


def _label(batch: StepBatch) -> None:
    """Tell a trace what the tensors of a batch are; those that are read later are made first."""
    names = {
        "completion_mask": "mask",
        "attention_mask": "attention mask",
        "labels": "labels",
        "old_log_probs": "old log-probs",
        "ref_log_probs": REFERENCE,
        "advantages": "advantages",
        "rewards": "advantages",
    }
    for name, origin in names.items():
        label(batch[name], origin)
    for role, origin in (
        ("behavior_logp", "old log-probs"),
        ("ref_logp", REFERENCE),
        ("completion_mask", "mask"),
    ):
        label(batch._roles[role], origin)


def _parameters(step: Callable[..., Any]) -> list[str]:
    empty = inspect.Parameter.empty
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        p.name
        for p in inspect.signature(step).parameters.values()
        if p.default is empty and p.kind not in kinds
    ]


def is_step(parameters: list[str]) -> bool:
    """Whether parameters of these names are a model, a batch, and perhaps a reference."""
    try:
        kinds = [_meaning(name, "") for name in parameters]
    except ValueError:
        return False
    return POLICY in kinds and "batch" in kinds


def _meaning(name: str, title: str) -> str:
    lower = name.lower()
    if lower in _REFERENCES:
        return REFERENCE
    if lower in _MODELS:
        return POLICY
    found = read_name(name)
    if (isinstance(found, Read) and found.role in ("batch", "rollout")) or lower == "inputs":
        return "batch"
    raise ValueError(
        f"{title} has the parameter {name!r}, expected a model ({', '.join(_MODELS[:3])}), a reference "
        f"({', '.join(_REFERENCES[:3])}) or a batch (batch, inputs, data)"
    )
