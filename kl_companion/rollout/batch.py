"""The batch that a loss reads: sampled sequences with their log-probabilities, checked when it is made.

Columns are aligned: position t of ``logp`` scores ``tokens[:, t]``; there is no shift inside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import InitVar, dataclass, field, fields
from typing import Any, ClassVar

import torch

from kl_companion import checks
from kl_companion.checks import may_read
from kl_companion.host_reads import any_wrong, collected
from kl_companion.rollout.masks import finite_rows

_LOGP = ("logp", "ref_logp", "behavior_logp")
_LOGITS = ("logits", "ref_logits", "behavior_logits")
_FIXED = ("ref_logp", "behavior_logp", "ref_logits", "behavior_logits")


@dataclass(frozen=True, eq=False, repr=False)
class Rollout:
    """A batch of sampled completions.

    Sampled log-probs are required, whole distributions optional: many trainers give no logits, and
    three float32 tensors of 8k tokens by 152k entries are 15 GB.

    Only ``logp`` and ``logits`` carry a gradient. Reference and sampler are detached here: a KL term never
    trains them, even where the caller forgot ``torch.no_grad()``.

    Values are checked once, by one read on the host (on a GPU it waits for the queue). They are checked again
    before a loss if a tensor was changed in place since then. Under `torch.func.vmap`, in compiled graphs and
    on the device "meta" there are no values to check.

    Attributes:
        tokens: [batch, seq] int64, the sampled ids.
        completion_mask: [batch, seq], 1 on completion tokens including end-of-sequence, 0 on prompt,
            padding and tokens that an environment inserted.
        logp: [batch, seq], log-prob of the sampled token under the policy; carries the gradient.
        ref_logp: [batch, seq], under the reference.
        behavior_logp: [batch, seq], under the policy that sampled; None means the policy itself.
        rewards: [batch], one per sequence, or None.
        prompt_index: [batch] int64, which prompt a sequence answers; None means one prompt for all.
        logits, ref_logits, behavior_logits: [batch, seq, vocab] or None.
        validate: False trusts the values and reads none; types, dtypes and shapes are always checked.

    Raises:
        ValueError: shapes or dtypes that do not agree, a mask row without a token, NaN in rewards, or under
            the mask: a log-prob that is NaN, infinite or above 0, logits with NaN or +inf, a row of logits
            that is -inf throughout, a token id outside the vocabulary of the logits. Values outside the
            mask are never used by this package.
    """

    tokens: torch.Tensor
    completion_mask: torch.Tensor
    logp: torch.Tensor
    ref_logp: torch.Tensor
    behavior_logp: torch.Tensor | None = None
    rewards: torch.Tensor | None = None
    prompt_index: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    ref_logits: torch.Tensor | None = None
    behavior_logits: torch.Tensor | None = None

    validate: InitVar[bool] = field(default=True, kw_only=True)
    # Not fields: what is known about the values, and what was computed from them.
    _validates, _masks, _stray = True, True, False
    _checked: ClassVar[tuple[object, ...] | None] = None
    _distributions: ClassVar[dict[str, torch.Tensor]]

    def __post_init__(self, validate: bool) -> None:
        checks.check_mask_shape(self.completion_mask)
        shape = self.completion_mask.shape
        checks.check_shape("tokens", self.tokens, shape, "completion_mask [batch, seq]")
        _check_ids(self.tokens)
        for name in _LOGP:
            x = getattr(self, name)
            if x is not None or name != "behavior_logp":
                checks.check_shape(name, x, shape, "completion_mask [batch, seq]")
                checks.check_floating(name, x)
        for name in ("rewards", "prompt_index"):
            x = getattr(self, name)
            if x is not None:
                checks.check_shape(name, x, shape[:1], "one per sequence [batch]")
        if self.prompt_index is not None and self.prompt_index.is_floating_point():
            raise ValueError(f"prompt_index has dtype {self.prompt_index.dtype}, expected whole numbers")
        self._check_logits(shape)
        for name in _FIXED:
            if (x := getattr(self, name)) is not None:
                self._note(**{name: x.detach()})
        self._note(_validates=bool(validate))
        self._read_values()

    def _check_logits(self, shape: torch.Size) -> None:
        names = [n for n in _LOGITS if getattr(self, n) is not None]
        for name in names:
            x, first = getattr(self, name), getattr(self, names[0])
            checks.check_floating(name, x)
            if x.ndim != 3 or x.shape[:2] != shape or x.shape[2] == 0:
                raise ValueError(
                    f"{name} has shape {list(x.shape)}, expected [{shape[0]}, {shape[1]}, vocab] "
                    "like completion_mask [batch, seq]"
                )
            checks.check_shape(name, x, first.shape, f"{names[0]} [batch, seq, vocab]")

    def _read_values(self) -> None:
        """Check all values by one read on the host, and note whether any token is outside the mask."""
        bits = 2  # without a read there may be tokens outside the mask
        if self._validates and not torch.compiler.is_compiling():
            with torch.no_grad():
                flags = self._flags()
            if may_read(flags):
                bits = 6 if collected(flags % 2 == 1) else int(flags.item())
            if bits & 1:
                self._name_the_wrong_value()
        self._note(_checked=self._versions(), _distributions={}, _masks=bool(bits & 2), _stray=bool(bits & 4))

    def _note(self, **notes: Any) -> None:
        for name, note in notes.items():
            object.__setattr__(self, name, note)

    def _flags(self) -> torch.Tensor:
        """Return 1 for wrong values, plus 2 for tokens outside the mask, plus 4 for NaN in ``logp`` there."""
        mask, inside = self.completion_mask, self.completion_mask.bool()
        wrong = (inside != mask).any() | ~inside.any(-1).all()
        for name in _LOGP:
            if (x := getattr(self, name)) is not None:
                wrong = wrong | (~((x <= checks.slack(x)) & (x > -torch.inf)) & inside).any()
        if self.rewards is not None:
            wrong = wrong | self.rewards.isnan().any()
        for name in _LOGITS:
            if (x := getattr(self, name)) is not None:
                # The largest entry of a row is NaN, +inf or -inf exactly if the row has no distribution.
                wrong = wrong | (~x.amax(-1).isfinite() & inside).any()
                wrong = wrong | (((self.tokens < 0) | (self.tokens >= x.shape[-1])) & inside).any()
        return 1 * wrong + 2 * ~inside.all() + 4 * (self.logp.isnan() & ~inside).any()

    def _name_the_wrong_value(self) -> None:
        """Raise ValueError with the name and the place of the first wrong value."""
        checks.check_mask(self.completion_mask)
        inside = self.completion_mask.bool()
        for name in _LOGITS:
            if (x := getattr(self, name)) is not None:
                checks.check_scores(name, x, inside)
                _check_range(self.tokens, inside, x.shape[-1])
        for name in _LOGP:
            if (x := getattr(self, name)) is not None:
                checks.check_log_probabilities(name, x, inside)
        if self.rewards is not None:
            checks.check_no_nan("rewards", self.rewards)

    def _versions(self) -> tuple[object, ...]:
        """Return one value per tensor, which differs after a change in place: then values are read again."""
        if torch.compiler.is_compiling():
            return ()
        tensors = [getattr(self, f.name) for f in fields(self)]
        # Tensors of inference mode do not count changes: a new object() counts as changed each time.
        return tuple(x if x is None else object() if x.is_inference() else x._version for x in tensors)

    @classmethod
    def from_logits(
        cls,
        tokens: torch.Tensor,
        completion_mask: torch.Tensor,
        logits: torch.Tensor,
        ref_logits: torch.Tensor,
        *,
        behavior_logits: torch.Tensor | None = None,
        rewards: torch.Tensor | None = None,
        prompt_index: torch.Tensor | None = None,
        validate: bool = True,
    ) -> Rollout:
        """Return a rollout whose log-probs are computed from aligned logits [batch, seq, vocab].

        ``logits[:, t]`` scores ``tokens[:, t]``.

        Raises:
            ValueError: as the class.
        """
        checks.check_mask_shape(completion_mask)
        checks.check_shape("tokens", tokens, completion_mask.shape, "completion_mask [batch, seq]")
        _check_ids(tokens)
        checks.check_floating("logits", logits)
        expected = (*tokens.shape, logits.shape[-1])
        checks.check_shape("logits", logits, expected, "tokens [batch, seq] with a last axis [vocab]")
        if logits.shape[-1] == 0:
            raise ValueError(f"logits has shape {list(logits.shape)}, expected a vocab of at least 1")
        checks.check_shape("ref_logits", ref_logits, logits.shape, "logits [batch, seq, vocab]")
        checks.check_floating("ref_logits", ref_logits)
        if behavior_logits is not None:
            checks.check_shape("behavior_logits", behavior_logits, logits.shape, "logits [batch, seq, vocab]")
            checks.check_floating("behavior_logits", behavior_logits)
        inside = completion_mask.bool()
        # Where values are read, rows outside the mask are copied only if one of them is NaN.
        copies = not (validate and may_read(logits) and may_read(tokens) and may_read(completion_mask))
        fixed = None if behavior_logits is None else behavior_logits.detach()
        rollout = cls(
            tokens,
            completion_mask,
            _of_sampled(finite_rows(logits, inside) if copies else logits, tokens),
            _of_sampled(ref_logits.detach(), tokens),
            None if fixed is None else _of_sampled(fixed, tokens),
            rewards,
            prompt_index,
            logits,
            ref_logits,
            fixed,
            validate=validate,
        )
        if not rollout._stray:
            return rollout
        return rollout.unchecked(logp=_of_sampled(finite_rows(logits, inside), tokens))

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self.tokens.shape[0]

    def __getitem__(self, rows: int | slice | Sequence[int] | torch.Tensor) -> Rollout:
        """Return the sequences ``rows`` as one batch: a number, a slice, or numbers or truth values [batch].

        Nothing is checked a second time.
        """
        index: Any = slice(rows, rows + 1 or None) if isinstance(rows, int) else rows
        if isinstance(rows, torch.Tensor) and rows.dtype == torch.bool:
            index = rows.nonzero().squeeze(-1)  # once, and not for every tensor: the host reads how many
        if isinstance(rows, int) and not -len(self) <= rows < len(self):
            raise IndexError(f"sequence {rows} of {len(self)}")
        return self._changed(lambda x: x[index])

    def to(self, device: torch.device | str) -> Rollout:
        """Return the batch with every tensor on ``device``; nothing is checked a second time."""
        return self._changed(lambda x: x.to(device))

    def _changed(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> Rollout:
        """Return the batch of ``fn`` of every tensor."""
        return self.unchecked(
            **{f.name: fn(x) for f in fields(self) if (x := getattr(self, f.name)) is not None}
        )

    def __repr__(self) -> str:
        """Return shapes, dtypes and devices; three tensors of a batch would be pages of numbers."""
        tensors = {f.name: x for f in fields(self) if (x := getattr(self, f.name)) is not None}
        each = (f"{name}={str(x.dtype)[6:]}{list(x.shape)}" for name, x in tensors.items())
        devices = ", ".join(sorted({str(x.device) for x in tensors.values()}))
        return f"Rollout({', '.join(each)}, device={devices})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the tensors and ``validate``; their distributions are computed again."""
        return {name: getattr(self, name) for name in (*(f.name for f in fields(self)), "_validates")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the tensors; their values are read before the next loss."""
        self._note(**state, _distributions={})

    def unchecked(self, **tensors: torch.Tensor | None) -> Rollout:
        """Return the batch with these tensors in place of some of its own; nothing is checked again."""
        batch = object.__new__(Rollout)
        batch._note(**{f.name: tensors.get(f.name, getattr(self, f.name)) for f in fields(self)})
        masks = self._masks or "completion_mask" in tensors
        batch._note(_validates=self._validates, _checked=batch._versions(), _distributions={}, _masks=masks)
        return batch

    def batches(self, groups: Iterable[Sequence[int]]) -> Iterator[Rollout]:
        """Yield one batch per group of sequences, listed by their numbers; nothing is checked again."""
        tensors = {f.name: x.unbind() for f in fields(self) if (x := getattr(self, f.name)) is not None}
        for group in groups:
            yield self.unchecked(**{name: torch.stack([x[i] for i in group]) for name, x in tensors.items()})

    def repeated(self, index: torch.Tensor) -> Rollout:
        """Return the sequences ``index`` [n] as one batch of new tensors; nothing is checked again.

        The logits are a leaf that requires grad, from which ``logp`` is computed.

        Raises:
            ValueError: without logits.
        """
        if self.logits is None:
            raise ValueError("logits is needed; this Rollout holds sampled log-probs only")
        tensors = {
            f.name: x.detach().index_select(0, index)
            for f in fields(self)
            if f.name != "logp" and (x := getattr(self, f.name)) is not None
        }
        scores, inside = tensors["logits"].requires_grad_(), tensors["completion_mask"].bool()
        return self.unchecked(**tensors, logp=_of_sampled(finite_rows(scores, inside), tensors["tokens"]))

    @property
    def logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the policy, [batch, seq, vocab]. ValueError without logits."""
        return self._distribution("logits")

    @property
    def ref_logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the reference, [batch, seq, vocab]. ValueError without ref_logits."""
        return self._distribution("ref_logits")

    @property
    def behavior_logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the sampler, [batch, seq, vocab]. ValueError without behavior_logits."""
        return self._distribution("behavior_logits")

    def _distribution(self, name: str) -> torch.Tensor:
        """Return the log-softmax, computed once as long as no tensor is changed in place."""
        scores = getattr(self, name)
        if scores is None:
            raise ValueError(f"{name} is needed; this Rollout holds sampled log-probs only")
        check_rollout(self)
        cache = self._distributions
        if name not in cache:
            # Whoever asks first under no_grad must not take the gradient away from those who ask later.
            with torch.enable_grad():
                rows = finite_rows(scores, self.completion_mask.bool()) if self._masks else scores
                cache[name] = rows.log_softmax(-1)
        return cache[name]

    @property
    def sampled_from(self) -> torch.Tensor:
        """Log-probs under the policy that sampled, detached: ``behavior_logp``, or ``logp`` on-policy."""
        return (self.logp if self.behavior_logp is None else self.behavior_logp).detach()

    @property
    def group_index(self) -> torch.Tensor:
        """[batch] int64: ``prompt_index``, or zeros where there is one prompt for all."""
        if self.prompt_index is not None:
            return self.prompt_index
        return torch.zeros(self.tokens.shape[0], dtype=torch.long, device=self.tokens.device)


def _check_ids(tokens: torch.Tensor) -> None:
    if tokens.dtype != torch.int64:
        raise ValueError(f"tokens has dtype {tokens.dtype}, expected torch.int64: the sampled ids")


def _check_range(tokens: torch.Tensor, inside: torch.Tensor, vocab: int) -> None:
    outside = ((tokens < 0) | (tokens >= vocab)) & inside
    if any_wrong(outside):
        raise ValueError(f"tokens holds the id {tokens[outside][0].item()}, expected 0 to {vocab - 1}")


def check_rollout(rollout: Rollout) -> None:
    """Raise ValueError for a dict or a tensor where a `Rollout` is wanted.

    Its values were checked when it was made; they are checked again if a tensor was changed in place.
    """
    if not isinstance(rollout, Rollout):
        raise ValueError(f"rollout is a {type(rollout).__name__}, expected a kl_companion.Rollout")
    if not torch.compiler.is_compiling() and rollout._checked != rollout._versions():
        rollout._read_values()


def _of_sampled(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return log-probs of ids [batch, seq] from logits [batch, seq, vocab]; [batch, seq].

    Padding may contain any id.
    """
    index = tokens.clamp(0, scores.shape[-1] - 1).unsqueeze(-1)
    return scores.log_softmax(-1).gather(-1, index).squeeze(-1)
