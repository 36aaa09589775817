"""The batch of a small world by the names that trainers use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from kl_companion.auditing.reading.names import Read, read_name
from kl_companion.monitor.doctor.world import SmallWorld

Advantages = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


_ROLES = frozenset(
    [
        "completion_mask",
        "tokens",
        "behavior_logp",
        "ref_logp",
        "rewards",
        "lengths",
        "num_tokens",
        "group_size",
        "batch_size",
        "max_length",
        "prompt_index",
    ]
)


class Count(int):
    """A number in a batch, which a loop over its values may move to a device, as it does with tensors."""

    def to(self, *_: Any, **__: Any) -> Count:
        """Return the same number."""
        return self

    def item(self) -> int:
        """Return it as an int."""
        return int(self)


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
        names: Further names under which its tensors are found by who copies it into a dictionary of his own.
    """

    def __init__(
        self,
        world: SmallWorld,
        alignment: str,
        temperature: float,
        per_token: bool,
        advantages: Advantages | None,
        names: Iterable[str] = (),
    ) -> None:
        self.world, self.alignment, self.per_token = world, alignment, per_token
        self.asked: set[str] = set()  # names that were read
        layout = world.layout()
        ids, mask = layout.input_ids, layout.attention_mask
        self.prompt_length = Count(layout.prompt_ids.shape[1])
        super().__init__(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            labels=layout.labels,
            prompt_ids=layout.prompt_ids,
            prompt_mask=layout.prompt_mask,
            prompt_length=self.prompt_length,
            num_items_in_batch=Count(layout.completion_mask.sum()),
            answers_in_batch=Count(len(ids)),
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
            "num_tokens": Count(layout.completion_mask.sum()),
            "group_size": Count(len(ids)),
            "batch_size": Count(len(ids)),
            "max_length": Count(rollout.tokens.shape[1]),
            "prompt_index": torch.zeros(len(ids), dtype=torch.int64),
        }
        rewards = self._roles["rewards"]
        if advantages is not None:
            self["advantages"] = advantages(rewards, layout.completion_mask).double()
        else:
            each = rewards - rewards.mean()
            mask = self._roles["completion_mask"]
            self["advantages"] = each.unsqueeze(-1) * mask if per_token else each
        for name in names:
            _ = self[name]
        self.asked.clear()

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


def is_known(name: str) -> bool:
    """Whether a name is one that trainers use for what a batch of the small world has."""
    reading = read_name(name)
    return isinstance(reading, Read) and reading.role in _ROLES


def _of_answers(x: Any, count: int) -> bool:
    return isinstance(x, torch.Tensor) and x.ndim > 0 and len(x) == count
