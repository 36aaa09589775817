"""The batch that a loss reads: sampled sequences with their log-probabilities, checked when it is made.

Columns are aligned: position t of ``logp`` scores ``tokens[:, t]``; there is no shift inside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import torch

from kl_companion import checks
from kl_companion.estimators.registry import Estimator, as_estimator


@dataclass(frozen=True)
class Rollout:
    """A batch of sampled completions.

    Sampled log-probs are required, whole distributions optional: many trainers give no logits, and
    three float32 tensors of 8k tokens by 152k entries are 15 GB.

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

    Raises:
        ValueError: shapes or dtypes that do not agree, a mask row without a token, NaN, a log-prob above 0 or
            -inf under the mask. What stands outside the mask is kept, and never used by this package.
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

    def __post_init__(self) -> None:
        checks.check_mask(self.completion_mask)
        shape, inside = self.completion_mask.shape, self.completion_mask.bool()
        checks.check_shape("tokens", self.tokens, shape, "completion_mask [batch, seq]")
        _check_ids(self.tokens)
        for name in ("logp", "ref_logp", "behavior_logp"):
            x = getattr(self, name)
            if x is not None or name != "behavior_logp":
                checks.check_shape(name, x, shape, "completion_mask [batch, seq]")
                checks.check_log_probabilities(name, x, inside)
        for name in ("rewards", "prompt_index"):
            x = getattr(self, name)
            if x is not None:
                checks.check_shape(name, x, shape[:1], "one per sequence [batch]")
        if self.prompt_index is not None and self.prompt_index.is_floating_point():
            raise ValueError(f"prompt_index has dtype {self.prompt_index.dtype}, expected whole numbers")
        if self.rewards is not None and self.rewards.is_floating_point():
            checks.check_no_nan("rewards", self.rewards)
        self._check_logits(shape)
        object.__setattr__(self, "_checked", self._versions())

    def _versions(self) -> tuple[object, ...]:
        """One value per tensor, another one after a change in place: then the checks are repeated."""
        # tensors of inference mode do not count changes: a new object() counts as changed each time
        names = ("completion_mask", "tokens", "logp", "ref_logp", "behavior_logp", "rewards")
        given = [getattr(self, name) for name in names]
        return tuple(x if x is None else object() if x.is_inference() else x._version for x in given)

    def _check_logits(self, shape: torch.Size) -> None:
        given = [n for n in ("logits", "ref_logits", "behavior_logits") if getattr(self, n) is not None]
        for name in given:
            x, first = getattr(self, name), getattr(self, given[0])
            checks.check_floating(name, x)
            if x.ndim != 3 or x.shape[:2] != shape:
                raise ValueError(
                    f"{name} has shape {list(x.shape)}, expected [{shape[0]}, {shape[1]}, vocab] "
                    "like completion_mask [batch, seq]"
                )
            checks.check_shape(name, x, first.shape, f"{given[0]} [batch, seq, vocab]")

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
    ) -> Rollout:
        """A rollout whose log-probs are computed from aligned logits [batch, seq, vocab].

        ``logits[:, t]`` scores ``tokens[:, t]``. Reference and behavior are detached.

        Raises:
            ValueError: as the class; also a token id outside the vocabulary.
        """
        checks.check_mask(completion_mask)
        checks.check_shape("tokens", tokens, completion_mask.shape, "completion_mask [batch, seq]")
        _check_ids(tokens)
        checks.check_floating("logits", logits)
        wanted = (*tokens.shape, logits.shape[-1])
        checks.check_shape("logits", logits, wanted, "tokens [batch, seq] with a last axis [vocab]")
        checks.check_shape("ref_logits", ref_logits, logits.shape, "logits [batch, seq, vocab]")
        checks.check_floating("ref_logits", ref_logits)
        if behavior_logits is not None:
            checks.check_shape("behavior_logits", behavior_logits, logits.shape, "logits [batch, seq, vocab]")
        outside = ((tokens < 0) | (tokens >= logits.shape[-1])) & completion_mask.bool()
        if outside.any():
            raise ValueError(
                f"tokens holds the id {tokens[outside][0].item()}, expected 0 to {logits.shape[-1] - 1}"
            )
        index = tokens.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
        sampled = partial(_of_sampled, index=index, completion_mask=completion_mask)
        return cls(
            tokens,
            completion_mask,
            sampled(logits),
            sampled(ref_logits).detach(),
            None if behavior_logits is None else sampled(behavior_logits).detach(),
            rewards,
            prompt_index,
            logits,
            ref_logits.detach(),
            None if behavior_logits is None else behavior_logits.detach(),
        )

    def unchecked(self, **tensors: torch.Tensor | None) -> Rollout:
        """The same batch with these tensors in place of some of its own; nothing is checked a second time."""
        batch = object.__new__(Rollout)
        for f in fields(self):
            object.__setattr__(batch, f.name, tensors.get(f.name, getattr(self, f.name)))
        object.__setattr__(batch, "_checked", batch._versions())
        return batch

    def batches(self, groups: Iterable[Sequence[int]]) -> Iterator[Rollout]:
        """One batch per group of its sequences, given by their numbers; nothing is checked a second time."""
        given = {f.name: x.unbind() for f in fields(self) if (x := getattr(self, f.name)) is not None}
        for group in groups:
            yield self.unchecked(**{name: torch.stack([x[i] for i in group]) for name, x in given.items()})

    def repeated(self, index: torch.Tensor) -> Rollout:
        """Its sequences ``index`` [n] as one batch of new tensors; nothing is checked a second time.

        Its logits are a leaf that requires grad, from which ``logp`` is computed.

        Raises:
            ValueError: without logits.
        """
        if self.logits is None:
            raise ValueError("logits is needed; this Rollout holds sampled log-probs only")
        given = {
            f.name: x.detach().index_select(0, index)
            for f in fields(self)
            if f.name != "logp" and (x := getattr(self, f.name)) is not None
        }
        scores, mask = given["logits"].requires_grad_(), given["completion_mask"]
        ids = given["tokens"].clamp(0, scores.shape[-1] - 1).unsqueeze(-1)
        return self.unchecked(**given, logp=_of_sampled(scores, ids, mask))

    @cached_property
    def logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the policy, [batch, seq, vocab]. ValueError without logits."""
        return self._whole("logits")

    @cached_property
    def ref_logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the reference, [batch, seq, vocab]. ValueError without ref_logits."""
        return self._whole("ref_logits").detach()

    @cached_property
    def behavior_logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the sampler, [batch, seq, vocab]. ValueError without behavior_logits."""
        return self._whole("behavior_logits").detach()

    def _whole(self, name: str) -> torch.Tensor:
        scores = getattr(self, name)
        if scores is None:
            raise ValueError(f"{name} is needed; this Rollout holds sampled log-probs only")
        with torch.enable_grad():  # cached: who asks first under no_grad must not take the gradient away
            return clean(scores, self.completion_mask).log_softmax(-1)

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


def check_rollout(rollout: Rollout) -> None:
    """Raise ValueError for a dict or a tensor where a `Rollout` is wanted.

    A rollout was checked when it was made; it is checked again if a tensor was changed in place since then.
    """
    if not isinstance(rollout, Rollout):
        raise ValueError(f"rollout is a {type(rollout).__name__}, expected a kl_companion.Rollout")
    if not torch.compiler.is_compiling() and vars(rollout).get("_checked") != rollout._versions():
        rollout.__post_init__()


def _of_sampled(scores: torch.Tensor, index: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Log-probs of the ids ``index`` [batch, seq, 1] from logits [batch, seq, vocab]; [batch, seq]."""
    return clean(scores, completion_mask).log_softmax(-1).gather(-1, index).squeeze(-1)


def clean(scores: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """Scores [batch, seq, vocab] whose rows outside the mask hold no NaN; copied only where one does."""
    with torch.no_grad():
        broken = ~scores.sum(-1).isfinite() & ~completion_mask.bool()
    return scores.masked_fill(broken.unsqueeze(-1), 0.0) if broken.any() else scores


def per_token(
    estimator: str | Estimator | Callable[..., torch.Tensor], rollout: Rollout, **options: Any
) -> torch.Tensor:
    """The estimate at every token, [batch, seq]: the only place that chooses sampled or vocabulary inputs.

    Log-probs outside the mask are read as 0, so that nothing there, NaN included, reaches a gradient.

    Args:
        estimator: A registered name, an `Estimator`, or a function of ``(logp, ref_logp)``.
        rollout: Where the log-probs come from.
        **options: Passed on to the estimator: ``tail_weight`` [batch, seq] of a top-k one.

    Raises:
        ValueError: unknown name, or whole distributions are needed and the rollout has no logits.
    """
    check_rollout(rollout)
    entry = as_estimator(estimator)
    if entry.inputs == "sampled":
        inside = rollout.completion_mask.bool()
        return entry.fn(masked(rollout.logp, inside), masked(rollout.ref_logp, inside), **options)
    for name in ("logits", "ref_logits"):
        if getattr(rollout, name) is None:
            raise ValueError(f"{entry.name} needs {name}; this Rollout holds sampled log-probs only")
    if entry.inputs == "top_k":
        return _top_k(entry, rollout, options)
    return entry.fn(rollout.logp_all, rollout.ref_logp_all, **options)


def _top_k(entry: Estimator, rollout: Rollout, options: dict[str, Any]) -> torch.Tensor:
    """A top-k estimator on the rows under the mask, zero elsewhere: padding has no token to sample."""
    inside = rollout.completion_mask.bool()
    # a copy of the sampler's rows is as large as the policy's: only for those who take their head from it
    reads_sampler = getattr(entry.fn, "head_from", "sampler") == "sampler"
    if reads_sampler and rollout.behavior_logits is not None:
        options = {"behavior_logp_all": rollout.behavior_logp_all[inside], **options}
    elif reads_sampler and rollout.behavior_logp is None:  # on-policy: the policy is the sampler
        options = {"behavior_logp_all": rollout.logp_all[inside].detach(), **options}
    weight = options.get("tail_weight")
    if weight is not None:
        checks.check_shape("tail_weight", weight, inside.shape, "completion_mask [batch, seq]")
        options = {**options, "tail_weight": weight[inside]}
    x = entry.fn(rollout.logp_all[inside], rollout.ref_logp_all[inside], rollout.tokens[inside], **options)
    return x.new_zeros(inside.shape).masked_scatter(inside, x)


def masked(x: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """``x`` with zeros outside the mask, whatever stands there (NaN too); [batch, seq]."""
    checks.check_shape("x", x, completion_mask.shape, "completion_mask [batch, seq]")
    return x.where(completion_mask.bool(), 0)
