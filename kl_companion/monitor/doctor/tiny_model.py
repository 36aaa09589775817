"""The model that takes the real one's place: a table of next-token logits, one row for every position.

It reads nothing but token ids, masks and position ids, as any causal language model does, finds out which
answer's prefix a position sees, and gives that row of its table. So gradients by the table say, exactly and
position by position, what a trainer's loss does to which prediction; and a position that sees anything but
an answer's own prompt and tokens (padding, another answer of a packed row) is noted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn

from kl_companion.monitor.doctor.tracing import (
    FROZEN,
    POLICY,
    REFERENCE,
    Forward,
    Line,
    Trace,
    current,
    trainer_lines,
    unnoted,
)
from kl_companion.monitor.doctor.world import SmallWorld

_NEVER = -1e4  # bias of the vocabulary's other tokens: their probability is 0 in every dtype
_HARDLY = {POLICY: -30.0, REFERENCE: -29.0}  # of prompt and padding: a loss that scores them shows it
_COMPLETION, _PROMPT, _BEYOND, _STRAY = range(4)  # the tables
_NO_PROMPT = "an answer without its own prompt"


class Output(OrderedDict[str, Any]):
    """What a causal language model of transformers returns: by name, as an attribute, or by number."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the tiny model's output has no {name}, it has {', '.join(self)}")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | slice):
            return [x for x in self.values() if x is not None][key]
        return super().__getitem__(key)


class Config(SimpleNamespace):
    """What is asked of a model's configuration."""

    def get_text_config(self) -> Config:
        """Itself: it reads text."""
        return self


class _Place(NamedTuple):
    """Which table, row and column a position reads, and what it saw besides."""

    kind: int
    row: int
    column: int
    stray: str


class Body(nn.Module):
    """The table, in the place of a transformer's blocks: hidden states are logits of the world's tokens.

    Args:
        world: Whose answers it knows.
        role: `POLICY` or `REFERENCE`: whose logits it starts with.
    """

    def __init__(self, world: SmallWorld, role: str) -> None:
        super().__init__()
        self.world, self.role = world, role
        rollout = world.rollout
        logits = rollout.logits if role == POLICY else rollout.ref_logits
        assert logits is not None
        assert rollout.ref_logits is not None
        rows, seq, live = logits.shape
        longest = max(len(world.prompt(i)) for i in world.rows)  # all prompts share what they begin with
        size = 0.5 if role == POLICY else 0.8  # where no answer is scored the models differ too
        other = torch.linspace(-size, size, live, dtype=torch.float64)
        self.completion = nn.Parameter(logits.detach().clone().double())
        self.prompt = nn.Parameter(other.repeat(1, longest, 1))
        self.beyond = nn.Parameter((1 + world.outside) * other.flip(0).repeat(rows, seq + 1, 1))
        self.stray = nn.Parameter(0.3 * other.repeat(1, 1, 1))
        self.adapters_off = False
        self.base: torch.Tensor
        self.register_buffer("base", rollout.ref_logits.detach().clone().double())
        self.embed_tokens = nn.Identity()  # asked for by transformers before it gives a model's head

    def get_input_embeddings(self) -> nn.Module:
        """Something, for there are none."""
        return self.embed_tokens

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        **ignored: Any,
    ) -> Output:
        """Hidden states [batch, length, live]."""
        if input_ids is None:
            raise ValueError("the tiny model got no input_ids, expected token ids [batch, length]")
        trace = current()
        with unnoted():
            hidden = self._looked_up(input_ids, attention_mask, position_ids, trace)
        return Output(last_hidden_state=hidden, past_key_values=None, hidden_states=None, attentions=None)

    def _looked_up(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
        trace: Trace | None,
    ) -> torch.Tensor:
        """The rows of the tables that the positions call for; the pass is noted."""
        completion = self.base if self.adapters_off else self.completion
        tables: list[torch.Tensor] = [completion, self.prompt, self.beyond, self.stray]
        starts = torch.tensor([0, *(x.shape[0] * x.shape[1] for x in tables)]).cumsum(0).tolist()
        strays: dict[str, None] = {}
        known: dict[str, list[int]] = {}  # many rows of a large batch are the same
        index = []
        # one conversion of each tensor: to convert row by row takes most of the time of a large batch
        every = input_ids.tolist()
        masks = None if attention_mask is None else attention_mask.tolist()
        positions = None if position_ids is None else position_ids.tolist()
        for i, ids in enumerate(every):
            given = (
                ids,
                None if masks is None else masks[i],
                None if positions is None else positions[i % len(positions)],
            )
            key = str(given)
            if key not in known:
                places = list(self._places(*given))
                strays |= dict.fromkeys(p.stray for p in places if p.stray)
                known[key] = [starts[p.kind] + p.row * tables[p.kind].shape[1] + p.column for p in places]
            index.append(known[key])
        hidden = torch.cat([x.flatten(0, 1) for x in tables])[torch.tensor(index, device=completion.device)]
        if trace is not None:
            gradient = torch.is_grad_enabled() and hidden.requires_grad
            base = self.adapters_off or self.role == REFERENCE
            trace.label(hidden, REFERENCE if base else POLICY if gradient else FROZEN)
            lines: list[Line | None] = [*trainer_lines(through_model=True)] or [None]
            trace.forwards.append(
                Forward(
                    self.role,
                    gradient,
                    self.adapters_off,
                    trace.scoring,
                    lines[0],
                    lines[-1],
                    tuple(strays),
                    self.training,
                )
            )
        return hidden

    def _places(
        self, ids: list[int], mask: list[Any] | None, positions: list[int] | None
    ) -> Iterator[_Place]:
        """For every position: the row that its visible prefix calls for."""
        start, last = 0, self.beyond.shape[1] - 1
        for t in range(len(ids)):
            if mask is not None and isinstance(mask[0], list):  # who sees whom, [length, length] or [1, ...]
                rows = mask[0] if isinstance(mask[0][0], list) else mask
                added = any(x < 0 for row in rows for x in row)  # to scores: 0 lets see, -inf does not
                seen = [x >= 0 if added else bool(x) for x in rows[t][: t + 1]]
            elif mask is not None:
                seen = [bool(x) for x in mask[: t + 1]]
            else:
                if positions is not None and positions[t] == 0:
                    start = t  # positions that begin again separate what is packed into a row
                seen = [s >= start for s in range(t + 1)]
            place = self._place([ids[s] for s in range(t + 1) if seen[s]])
            if not seen[t]:  # padding: what it is scored after is nothing that matters
                after = place.kind in (_COMPLETION, _BEYOND)
                place = _Place(_BEYOND, place.row, last, "") if after else _Place(_STRAY, 0, 0, "")
            yield place

    def _place(self, context: list[int]) -> _Place:
        world, digits = self.world, self.world.ids.digits
        if context and context[0] == world.ids.pad:
            return _Place(_STRAY, 0, 0, "padding")
        if digits[2] not in context:
            inside = all(x in digits for x in context)
            return _Place(_PROMPT, 0, len(context) - 1, "") if inside else _Place(_STRAY, 0, 0, _NO_PROMPT)
        size = context.index(digits[2])
        spelled = context[:size]
        row = (
            int("".join(str(digits.index(x)) for x in spelled), 2) - 1 if set(spelled) <= set(digits) else -1
        )
        if row not in world.rows:
            return _Place(_STRAY, 0, 0, _NO_PROMPT)
        prefix, answer = context[size + 1 :], world.answer(row)
        if prefix == answer[: len(prefix)] and len(prefix) < len(answer):
            return _Place(_COMPLETION, row, len(prefix), "")
        if prefix[: len(answer)] == answer:
            after = prefix[len(answer) :]
            packed = "another answer of the same row" if set(after) & set(digits) else ""
            return _Place(_BEYOND, row, min(len(after), self.beyond.shape[1] - 1), packed)
        return _Place(_STRAY, 0, 0, "tokens that are no prefix of the answer")


def head_of(world: SmallWorld, role: str) -> nn.Linear:
    """The output layer that turns hidden states of a `Body` into logits of the vocabulary; it is not trained.

    Args:
        world: Whose ids they are.
        role: `POLICY` or `REFERENCE`.
    """
    live = world.ids.live[: world.rollout.logits.shape[-1] if world.rollout.logits is not None else None]
    head = nn.Linear(len(live), world.ids.size, dtype=torch.float64)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.fill_(_NEVER)
        head.bias[[world.ids.pad, *world.ids.digits]] = _HARDLY[role]
        for i, token in enumerate(live):
            head.weight[token, i] = 1.0
            head.bias[token] = 0.0
    return head.requires_grad_(False)


class TinyModel(nn.Module):
    """A `Body` and its head behind the interface of a causal language model of transformers, or of peft.

    With its adapters off (`disable_adapter`) the policy is the world's reference; merged, it is what it is.
    """

    def __init__(self, world: SmallWorld, role: str) -> None:
        super().__init__()
        self.model, self.lm_head = Body(world, role), head_of(world, role)
        ids = {"eos_token_id": world.ids.live[0], "pad_token_id": world.ids.pad, "bos_token_id": None}
        self.config = Config(vocab_size=world.ids.size, layer_types=["none"], **ids)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.model.completion.device

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        labels: torch.Tensor | None = None,
        **options: Any,
    ) -> Output:
        """Logits [batch, length, vocab] of the next token.

        Args:
            input_ids: [batch, length].
            attention_mask: [batch, length], or [batch, length, length] of who sees whom.
            position_ids: [batch, length]; without a mask, where they begin again another text does.
            logits_to_keep: How many of the last positions, 0 for all, or which.
            labels: [batch, length] ids, -100 where none counts: for the mean cross-entropy of their tokens.
            **options: Not read.
        """
        hidden = self.model(input_ids, attention_mask, position_ids).last_hidden_state
        last = logits_to_keep if isinstance(logits_to_keep, torch.Tensor) else slice(-logits_to_keep, None)
        logits = self.lm_head(hidden[:, last])  # the last 0 are all
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss=loss, logits=logits, past_key_values=None, hidden_states=(hidden,))

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """The policy without its adapters, which is the reference."""
        before, self.model.adapters_off = self.model.adapters_off, True
        try:
            yield
        finally:
            self.model.adapters_off = before

    def merge_and_unload(self) -> TinyModel:
        """The policy with its adapters in its weights: there is nothing left to turn off."""
        self.merge_adapter()
        return self

    def merge_adapter(self) -> None:
        """Put the adapters into the weights."""
        self.model.base = self.model.completion.detach().clone()
        trace = current()
        if trace is not None:
            trace.merged = next(trainer_lines(through_model=True), None)

    def generate(self, *ignored: Any, **options: Any) -> Any:
        """Refused: the answers are the doctor's."""
        raise ValueError(
            "the step calls model.generate, expected one that takes its answers from the batch: they are "
            "enumerated, not drawn"
        )
