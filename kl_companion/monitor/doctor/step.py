"""A training step as a function of a model and a batch: ``step(model, batch)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from kl_companion.auditing.reading.names import Read, read_name
from kl_companion.checks import check_choice
from kl_companion.monitor.doctor.subject import Declared, WorldGradients, scalar_of, seen
from kl_companion.monitor.doctor.tiny_model import TinyModel
from kl_companion.monitor.doctor.tracing import POLICY, REFERENCE, Trace, forget, label
from kl_companion.monitor.doctor.world import Ids, SmallWorld

ALIGNMENTS = ("completion", "full", "shifted")
_MODELS = ("model", "policy", "actor", "student", "net", "policy_model", "actor_model")
_REFERENCES = ("ref_model", "reference", "ref", "ref_policy", "reference_model", "teacher", "teacher_model")
Advantages = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class StepBatch(dict[str, Any]):
    """A batch of the small world by the names that trainers use; masks and log-probs as ``alignment`` says.

    Args:
        world: The answers.
        alignment: ``"completion"``: [batch, seq], as TRL and verl have them; ``"full"``: one entry for every
            input id; ``"shifted"``: one for every input id but the first, which it scores.
        temperature: By which the samplers' logits are divided.
        per_token: Whether advantages are [batch, seq] like the mask, and not [batch].
        advantages: What makes them of rewards [batch] and the completion mask [batch, seq]; minus the mean
            by default.
    """

    def __init__(
        self,
        world: SmallWorld,
        alignment: str,
        temperature: float,
        per_token: bool,
        advantages: Advantages | None,
    ) -> None:
        self.world, self.alignment, self.per_token = world, alignment, per_token
        self.asked: set[str] = set()  # names that were read
        layout = world.layout()
        ids, mask = layout.input_ids, layout.attention_mask
        self.prompt_length = layout.prompt_ids.shape[1]
        super().__init__(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            labels=layout.labels,
            prompt_ids=layout.prompt_ids,
            prompt_mask=layout.prompt_mask,
            prompt_length=self.prompt_length,
            num_items_in_batch=int(layout.completion_mask.sum()),
            answers_in_batch=len(ids),
        )
        rollout = world.rollout
        assert rollout.ref_logits is not None
        assert rollout.rewards is not None
        self._roles: dict[str, Any] = {
            "completion_mask": self._aligned(layout.completion_mask),
            "tokens": layout.completion_ids,
            "behavior_logp": self._aligned(world.scored(world.sampler_logits, temperature)),
            "ref_logp": self._aligned(world.scored(rollout.ref_logits, temperature)),
            "rewards": rollout.rewards[world.batch],
            "lengths": layout.completion_mask.sum(-1),
            "num_tokens": int(layout.completion_mask.sum()),
            "group_size": len(ids),
            "batch_size": len(ids),
            "max_length": layout.completion_ids.shape[1],
            "prompt_index": torch.zeros(len(ids), dtype=torch.int64),
        }
        rewards = self._roles["rewards"]
        if advantages is not None:
            self["advantages"] = advantages(rewards, layout.completion_mask).double()
        else:
            each = rewards - rewards.mean()
            mask = self._roles["completion_mask"]
            self["advantages"] = each.unsqueeze(-1) * mask if per_token else each

    def _aligned(self, x: torch.Tensor) -> torch.Tensor:
        more = {"completion": 0, "full": self.prompt_length, "shifted": self.prompt_length - 1}
        return torch.cat([x.new_zeros(len(x), more[self.alignment]), x], 1)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def __missing__(self, name: str) -> Any:
        found = read_name(name)
        role = found.role if isinstance(found, Read) else ""
        if role not in self._roles:
            known = ", ".join(dict.fromkeys([*self, *self._roles]))
            raise ValueError(
                f"the step asked the batch for {name!r}, which the doctor does not know: expected one of "
                f"{known}, by these names or by those that the audit reads"
            )
        advantages = role == "rewards" and "adv" in name.lower()
        self[name] = self["advantages"] if advantages else self._roles[role]
        return self[name]  # the same tensor when it is asked for again

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name; the default for one that is not known."""
        known = name in self
        return self[name] if known else default

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name) or not isinstance(name, str):
            return super().__contains__(name)
        found = read_name(name)
        return isinstance(found, Read) and found.role in self._roles

    def to(self, *_: Any, **__: Any) -> StepBatch:
        """Itself: it is where it has to be."""
        return self

    def rows(self, rows: list[int]) -> StepBatch:
        """Some of its answers, in the same rectangle: what a micro-batch is."""
        part = StepBatch.__new__(StepBatch)
        part.world, part.alignment, part.per_token = self.world, self.alignment, self.per_token
        part.prompt_length, part.asked = self.prompt_length, set()
        count = len(self._roles["lengths"])

        def cut(given: dict[str, Any]) -> dict[str, Any]:
            return {name: x[rows] if _of_answers(x, count) else x for name, x in given.items()}

        dict.__init__(part, cut(self))  # advantages were made of the whole group
        part._roles = cut(self._roles)
        part._roles |= {"num_tokens": int(part._roles["lengths"].sum()), "batch_size": len(rows)}
        return part


def _is_of_rewards(name: str) -> bool:
    reading = read_name(name)
    return isinstance(reading, Read) and reading.role == "rewards"


def _of_answers(x: Any, count: int) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0 and len(x) == count


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
        self._per_token: bool | None = None
        self.reads_rewards = False

    def run(
        self, world: SmallWorld, *, parts: int = 1, beta: float | None = None, trace: Trace | None = None
    ) -> WorldGradients:
        """See `Examined`; a part's gradient counts by the share of the answers in it."""
        policy, reference = TinyModel(world, POLICY), TinyModel(world, REFERENCE)
        given = {POLICY: policy, REFERENCE: reference}

        def loss() -> torch.Tensor | None:
            return self._called(world, given, parts)

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
        if self._per_token is None:
            try:
                self._per_token = False
                return self._called(world, models, parts)
            except RuntimeError:  # advantages of another shape than the step's
                self._per_token = True
                forget()
                try:
                    return self._called(world, models, parts)
                except RuntimeError:
                    self._per_token = False  # something else is wrong: let the step say it
                    forget()
                    return self._called(world, models, parts)
        made = getattr(self.step, "advantages", None)
        batch = StepBatch(world, self.alignment, self.declared.temperature, self._per_token, made)
        chunks = [list(x) for x in torch.arange(len(world.batch)).chunk(parts)]
        losses = []
        for rows in chunks:
            part = batch if parts == 1 else batch.rows([int(i) for i in rows])
            _label(part)
            given = [{**models, "batch": part}[kind] for kind in self._order]
            part.asked.clear()
            losses.append(scalar_of(self.step(*given), self.title))
            self.reads_rewards |= any(_is_of_rewards(name) for name in part.asked)
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
