"""What a loss may look at: sampled sequences with their log-probabilities, checked once, at the door.

Columns are aligned: position t of ``logp`` scores ``tokens[:, t]``; there is no shift inside the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch

from kl_companion import checks
from kl_companion.estimators.registry import Estimator, get_estimator

Aggregate = Literal["sum", "sequence_mean", "token_mean", "constant"]
Scope = Literal["token", "prefix", "sequence"]
Missing = Literal["raise", "ignore"]
Centering = Literal["none", "mean", "leave_one_out", "standardized"]
AGGREGATES: tuple[Aggregate, ...] = ("sum", "sequence_mean", "token_mean", "constant")
SCOPES: tuple[Scope, ...] = ("token", "prefix", "sequence")
MISSING: tuple[Missing, ...] = ("raise", "ignore")
CENTERINGS: tuple[Centering, ...] = ("none", "mean", "leave_one_out", "standardized")


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
        ValueError: shapes that do not agree, a mask row without a token, NaN, a log-prob above 0 or
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
        for name in ("logp", "ref_logp", "behavior_logp"):
            x = getattr(self, name)
            if x is not None:
                checks.check_shape(name, x, shape, "completion_mask [batch, seq]")
                checks.check_log_probabilities(name, x, inside)
        for name in ("rewards", "prompt_index"):
            x = getattr(self, name)
            if x is not None:
                checks.check_shape(name, x, shape[:1], "one per sequence [batch]")
        if self.rewards is not None and self.rewards.is_floating_point():
            checks.check_no_nan("rewards", self.rewards)
        self._check_logits(shape)

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
        wanted = (*tokens.shape, logits.shape[-1])
        checks.check_shape("logits", logits, wanted, "tokens [batch, seq] with a last axis [vocab]")
        checks.check_shape("ref_logits", ref_logits, logits.shape, "logits [batch, seq, vocab]")
        if behavior_logits is not None:
            checks.check_shape("behavior_logits", behavior_logits, logits.shape, "logits [batch, seq, vocab]")
        outside = ((tokens < 0) | (tokens >= logits.shape[-1])) & completion_mask.bool()
        if outside.any():
            raise ValueError(
                f"tokens holds the id {tokens[outside][0].item()}, expected 0 to {logits.shape[-1] - 1}"
            )
        index = tokens.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)

        def sampled(scores: torch.Tensor) -> torch.Tensor:
            return _clean(scores, completion_mask).log_softmax(-1).gather(-1, index).squeeze(-1)

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

    @cached_property
    def logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the policy, [batch, seq, vocab]. ValueError without logits."""
        return self._whole("logits")

    @cached_property
    def ref_logp_all(self) -> torch.Tensor:
        """Normalized log-probs of the reference, [batch, seq, vocab]. ValueError without ref_logits."""
        return self._whole("ref_logits").detach()

    def _whole(self, name: str) -> torch.Tensor:
        scores = getattr(self, name)
        if scores is None:
            raise ValueError(f"{name} is needed; this Rollout holds sampled log-probs only")
        return _clean(scores, self.completion_mask).log_softmax(-1)

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


def _clean(scores: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
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
        **options: Passed on to the estimator.

    Raises:
        ValueError: unknown name, or whole distributions are needed and the rollout has no logits.
    """
    sampled = [masked(x, rollout.completion_mask) for x in (rollout.logp, rollout.ref_logp)]
    if not isinstance(estimator, str | Estimator):
        return estimator(*sampled, **options)
    entry = get_estimator(estimator)
    if entry.inputs == "sampled":
        return entry.fn(*sampled, **options)
    for name in ("logits", "ref_logits"):
        if getattr(rollout, name) is None:
            raise ValueError(f"{entry.name} needs {name}; this Rollout holds sampled log-probs only")
    return entry.fn(rollout.logp_all, rollout.ref_logp_all, **options)


def masked(x: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """``x`` with zeros outside the mask, whatever stands there (NaN too); [batch, seq]."""
    checks.check_shape("x", x, completion_mask.shape, "completion_mask [batch, seq]")
    return x.where(completion_mask.bool(), torch.zeros_like(x))


def aggregate(
    x: torch.Tensor, completion_mask: torch.Tensor, how: Aggregate = "sum", *, length: float | None = None
) -> torch.Tensor:
    """One number from per-token values.

    Args:
        x: [batch, seq].
        completion_mask: [batch, seq].
        how: ``"sum"``: sum over tokens, mean over sequences; the only one whose value is the
            sequence KL. ``"sequence_mean"``: mean over sequences of the mean over tokens (TRL's
            ``grpo``). ``"token_mean"``: sum over all tokens of the batch divided by their number
            (``dapo``). ``"constant"``: sum divided by ``length``, mean over sequences (``dr_grpo``).
        length: Tokens to divide by, for ``"constant"`` only.

    Raises:
        ValueError: unknown ``how``, shapes differ, or ``length`` missing, superfluous or not positive.
    """
    checks.check_choice("how", how, AGGREGATES)
    if (how == "constant") != (length is not None):
        raise ValueError(f"how={how!r} got length={length}: a length is wanted for 'constant' and only there")
    if length is not None and not length > 0:
        raise ValueError(f"length is {length}, expected a positive number of tokens")
    checks.check_mask(completion_mask)
    inside = masked(x, completion_mask)
    count = completion_mask.to(x.dtype).sum(-1)
    if how == "token_mean":
        return inside.sum() / count.sum()
    per_sequence = inside.sum(-1)
    if how == "sequence_mean":
        per_sequence = per_sequence / count
    return per_sequence.mean() / (length or 1.0)


def _log_ratio(rollout: Rollout, scope: Scope, missing: Missing) -> torch.Tensor:
    """log pi - log mu of the scope, [batch, seq]; -inf where mu cannot have sampled; mu is detached."""
    checks.check_choice("scope", scope, SCOPES)
    checks.check_choice("missing", missing, MISSING)
    inside = rollout.completion_mask.bool()
    never = (rollout.sampled_from.exp() == 0) & inside
    if missing == "raise":
        _check_support(rollout, never)
    log_ratio = masked(rollout.logp - rollout.sampled_from, rollout.completion_mask)
    log_ratio = log_ratio.masked_fill(never, -torch.inf)
    if scope == "prefix":
        return log_ratio.cumsum(-1)
    if scope == "sequence":
        return log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
    return log_ratio


def _check_support(rollout: Rollout, never: torch.Tensor) -> None:
    """Refuse weights that cannot be right: mu gives no probability where the policy gives some."""
    if never.any():
        i, t = never.nonzero()[0].tolist()
        raise ValueError(
            f"behavior_logp[{i}, {t}] is {rollout.sampled_from[i, t].item():g}: a probability of 0, expected "
            "the positive probability with which the token was sampled"
        )
    if rollout.logits is None or rollout.behavior_logits is None:
        return
    with torch.no_grad():
        policy = rollout.logp_all.exp()
        behavior = _clean(rollout.behavior_logits, rollout.completion_mask).softmax(-1)
        lost = (behavior == 0) & (policy > 0) & rollout.completion_mask.bool().unsqueeze(-1)
    if lost.any():
        i, t, token = lost.nonzero()[0].tolist()
        raise ValueError(
            f"the behavior policy gives token {token} at [{i}, {t}] probability 0, the policy "
            f"{policy[i, t, token].item():.3g}: expected mass wherever the policy has some, because no "
            "weight makes up for tokens that are never sampled (missing='ignore' goes on without them)"
        )


def _clipped(weight: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    if clip is None:
        return weight
    if not 0 <= clip[0] <= clip[1]:
        raise ValueError(f"clip is {clip}, expected (lowest, highest) with 0 <= lowest <= highest")
    return weight.clamp(*clip)


def importance_ratio(
    rollout: Rollout, *, scope: Scope, clip: tuple[float, float] | None = None, missing: Missing = "raise"
) -> torch.Tensor:
    """rho = pi / sg(mu) of every token, kept in the graph, [batch, seq].

    On-policy it is 1 everywhere, and its gradient is the score: what a literal 1 would lose.

    Args:
        rollout: Without ``behavior_logp`` the policy itself sampled.
        scope: ``"token"``: of the token itself; ``"prefix"``: of the sequence up to and including it;
            ``"sequence"``: of the whole sequence.
        clip: (lowest, highest) ratio; no gradient passes outside. None leaves it free.
        missing: ``"raise"`` refuses a behavior policy that gives probability 0 where the policy has
            mass (seen only where the rollout holds both distributions); ``"ignore"`` goes on with what
            was sampled.

    Raises:
        ValueError: unknown choice, a clip range that is not 0 <= lowest <= highest, missing support.

    Source: wang2025choosing, section 2.1.
    """
    return _clipped(_log_ratio(rollout, scope, missing).exp(), clip)


def importance_weight(
    rollout: Rollout, *, scope: Scope, clip: tuple[float, float] | None = None, missing: Missing = "raise"
) -> torch.Tensor:
    """sg(rho): `importance_ratio` without its gradient, [batch, seq]; arguments and errors as there."""
    return importance_ratio(rollout, scope=scope, clip=clip, missing=missing).detach()


def credit(x: torch.Tensor, completion_mask: torch.Tensor, *, discount: float = 1.0) -> torch.Tensor:
    """Discounted sum of ``x`` from each token to the end, c_t = sum_{s >= t} discount^(s-t) x_s.

    Discount 0 is the token's own value, 1 the whole future: with a detached log-ratio as ``x`` this
    runs from the token-level field to the sequence gradient (tang2025pitfalls, section 4.2).

    Raises:
        ValueError: shapes differ, or the discount is outside [0, 1].
    """
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount}, expected a number from 0 to 1")
    inside = masked(x, completion_mask)
    out, ahead = [], torch.zeros_like(inside[:, 0])
    for t in range(inside.shape[1] - 1, -1, -1):
        ahead = inside[:, t] + discount * ahead
        out.append(ahead)
    return torch.stack(out[::-1], dim=1)


def center(
    x: torch.Tensor, prompt_index: torch.Tensor, how: Centering = "leave_one_out", *, eps: float = 1e-4
) -> torch.Tensor:
    """Rewards or costs of sequences, centered within the group that answers the same prompt, [batch].

    Args:
        x: [batch].
        prompt_index: [batch], any integers.
        how: ``"none"``: as they are. ``"mean"``: minus the mean of the group, itself included.
            ``"leave_one_out"``: minus the mean of the others. ``"standardized"``: minus the mean, divided
            by the group's standard deviation (n - 1 in its denominator) plus ``eps``.
        eps: Added to the standard deviation.

    Raises:
        ValueError: unknown ``how``, an empty batch, shapes that differ, or a group with fewer than two
            sequences for ``"leave_one_out"`` and ``"standardized"``.

    Source: wang2025choosing, section 8.1; tang2025pitfalls, section 3.
    """
    checks.check_choice("how", how, CENTERINGS)
    checks.check_shape("prompt_index", prompt_index, x.shape, "x [batch]")
    if x.ndim != 1 or not len(x):
        raise ValueError(f"x has shape {list(x.shape)}, expected [batch] with at least one sequence")
    _, group = prompt_index.unique(return_inverse=True)
    n = torch.bincount(group)[group].to(x.dtype)
    if how in ("leave_one_out", "standardized") and n.min() < 2:
        alone = prompt_index[n < 2][0].item()
        raise ValueError(
            f"prompt {alone} has one sequence, expected at least two for {how!r}: nothing is left to compare with"
        )

    def total(y: torch.Tensor) -> torch.Tensor:
        return torch.zeros(int(group.max()) + 1, dtype=x.dtype, device=x.device).index_add(0, group, y)[group]

    if how == "none":
        return x
    centered = x - total(x) / n
    if how == "leave_one_out":
        return centered * n / (n - 1)
    if how == "standardized":
        return centered / ((total(centered**2) / (n - 1)).sqrt() + eps)
    return centered


def leave_one_out(x: torch.Tensor, prompt_index: torch.Tensor) -> torch.Tensor:
    """Each value minus the mean of the *others* that answer the same prompt, [batch].

    Raises:
        ValueError: shapes differ, an empty batch, or a prompt has fewer than two sequences.

    Source: tang2025pitfalls, section 3.
    """
    return center(x, prompt_index, "leave_one_out")
