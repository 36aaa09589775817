"""A KL term: what it may combine, what it reads, and which kernel computes it, for every loss and trainer.

===========  ==================================  =================================  ========================
choice       values                              in the loss                        in the reward
===========  ==================================  =================================  ========================
estimator    registered, or a function of        any                                any
             ``(logp, ref_logp)``
placement    loss, reward, both, score           loss, both, score                  reward, both
level        token, sequence                     sequence: sampled estimators in    either; both: token
                                                 placement loss only
importance   None, token, prefix, sequence,      level sequence: sequence only;     none
             auto                                top-k: token only
ratio        detached, attached                  attached: with an importance,      detached
                                                 and not of a top-k estimator
clip         None, (lowest, highest)             with an importance                 none
credit       0 to 1                              of score, at level token           at level token; in reward
                                                                                    above 0 for exact ones
===========  ==================================  =================================  ========================

What does not go together is refused by `KLTerm`. What the gradient of a term is, `kl_companion.audit` says.

Two functions compute the estimates of tokens. `kl_companion.per_token` calls the formulas of
`kl_companion.estimators`, which can be differentiated twice: `kl_companion.kl_loss` takes it. Training loops
have real vocabularies and differentiate once: they take `kl_companion.token_terms.kernel_estimates`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kl_companion.checks import check_choice, check_clip, check_finite, check_number, without_looking
from kl_companion.estimators.registry import Estimator, as_estimator, sampled_estimator
from kl_companion.rollout import (
    MISSING,
    SCOPES,
    Missing,
    Rollout,
    Scope,
    masked,
    per_token,
)
from kl_companion.rollout.aggregation import credited
from kl_companion.rollout.flags import Flags
from kl_companion.rollout.importance import flagged_ratio

Placement = Literal["loss", "reward", "both", "score"]
Level = Literal["token", "sequence"]
Ratio = Literal["detached", "attached"]
Importance = Scope | Literal["auto"] | None
EstimatorLike = str | Estimator | Callable[..., torch.Tensor]
Estimate = Callable[..., torch.Tensor]  # of (estimator, rollout, tail_weight=...), [batch, seq]
PLACEMENTS: tuple[Placement, ...] = ("loss", "reward", "both", "score")
LEVELS: tuple[Level, ...] = ("token", "sequence")
RATIOS: tuple[Ratio, ...] = ("detached", "attached")
_IMPORTANCES = ("auto", *SCOPES)


@dataclass(frozen=True)
class KLTerm:
    """Every choice about a KL term but its coefficient and its aggregation, which belong to the loss.

    Attributes:
        estimator: A registered estimator, its name (``"k2"``, ``"exact_kl"``, ``"top_k_reverse_kl(8)"``), or
            a function of ``(logp, ref_logp)``.
        placement: ``"loss"`` differentiates the estimate. ``"reward"`` subtracts its value, detached, from
            rewards or advantages. ``"both"`` differentiates that of a token and charges it, detached, to the
            tokens before. ``"score"`` is the cost in the reward written as a loss of its own: the detached
            value times log pi.
        level: In the loss: the estimate of each token, or the estimator of the log-probs of whole sequences.
            In the reward: a cost for every token, charged to it and the tokens before it, or one cost per
            sequence.
        importance: Ratio of the policy to the policy that sampled, on the term in the loss: of the
            ``"token"``, its ``"prefix"`` or the ``"sequence"``; None for no ratio. ``"auto"`` is the ratio
            of the level, and none for an exact estimator, where nothing is sampled but the state. Of a
            top-k estimator it weights the tail only.
        ratio: ``"detached"``, or ``"attached"``: kept in the graph, on-policy too.
        clip: (lowest, highest) ratio, or None; no gradient of the ratio passes outside.
        credit: Discount of the costs of later tokens, where tokens are charged. 1 charges the whole
            future (with ``"k1"`` the gradient of the sequence KL), 0 the token's own cost (the token-level
            one). The exact cost of a token does not depend on the token, so it charges those before it only.
        missing: What to do where the sampler has no probability and the policy has: ``"raise"`` or
            ``"ignore"``, see `kl_companion.importance_ratio`.

    Raises:
        ValueError: an unknown estimator or choice, or choices that do not go together.

    Source: tang2025pitfalls, sections 2.2 and 4.2; emapg2026, section 5.3.
    """

    estimator: EstimatorLike = "k2"
    placement: Placement = "loss"
    level: Level = "token"
    importance: Importance = "auto"
    ratio: Ratio = "detached"
    clip: tuple[float, float] | None = None
    credit: float = 1.0
    missing: Missing = "raise"

    def __post_init__(self) -> None:
        entry = self.entry  # an unknown one is refused first
        for name, value, known in (
            ("placement", self.placement, PLACEMENTS),
            ("level", self.level, LEVELS),
            ("ratio", self.ratio, RATIOS),
            ("missing", self.missing, MISSING),
        ):
            check_choice(name, value, known)
        if self.importance is not None:
            check_choice("importance", self.importance, _IMPORTANCES)
        if self.clip is not None:
            check_clip(self.clip)
            object.__setattr__(self, "clip", tuple(self.clip))  # of a list, as YAML and notebooks give it
        if type(self.credit) is not float:
            check_number("credit", self.credit)
        if not 0 <= self.credit <= 1:
            raise ValueError(f"credit is {self.credit}, expected a number from 0 to 1")
        self._check_charges(entry)
        if self.differentiates:
            self._check_loss(entry)

    def _check_charges(self, entry: Estimator) -> None:
        place = self.placement
        if place in ("both", "score") and self.level != "token":
            raise ValueError(
                f"placement={place!r}, credit={self.credit} got level={self.level!r}: expected 'token', "
                "where tokens are charged, or no credit"
            )
        if self.credit != 1 and (place == "loss" or self.level != "token"):
            raise ValueError(
                f"credit={self.credit} got placement={place!r}, level={self.level!r}: expected 'reward' and "
                "'token' ('both' and 'score' too), where a token is charged with the costs after it"
            )
        if place != "reward":
            return
        if self.credit == 0 and entry.inputs == "vocab":
            raise ValueError(
                f"credit=0 got {entry.name!r}, whose cost of a token is the same whatever the token: its "
                "gradient is zero, expected credit above 0, a sampled estimator or placement='loss'"
            )
        if self.importance not in ("auto", None) or self.ratio == "attached" or self.clip is not None:
            raise ValueError(
                f"placement='reward' got importance={self.importance!r}, ratio={self.ratio!r}, "
                f"clip={self.clip}: expected none of them, because the policy gradient brings its own ratio"
            )

    def _check_loss(self, entry: Estimator) -> None:
        scope = self.scope
        if self.level == "sequence":
            sampled_estimator(entry, "level='sequence'")
            if scope not in (None, "sequence"):
                raise ValueError(
                    f"level='sequence' got importance={scope!r}: expected importance None or 'sequence', the "
                    "ratio of what is estimated"
                )
        if scope is None and (self.ratio == "attached" or self.clip is not None):
            raise ValueError(
                f"ratio={self.ratio!r}, clip={self.clip} got importance=None: expected 'token', 'prefix' or "
                f"'sequence', the scope of the ratio (of {entry.name})"
            )
        charged = self.placement == "score"
        beyond_tail = scope != "token" or self.ratio == "attached" or charged
        if entry.inputs == "top_k" and scope is not None and beyond_tail:
            raise ValueError(
                f"{entry.name} got importance={scope!r}, ratio={self.ratio!r}, "
                f"credit={self.credit if charged else None}: expected 'token', 'detached' and no credit, "
                "because the ratio multiplies the sampled tail only"
            )

    @property
    def entry(self) -> Estimator:
        """The estimator's entry in the registry; of a function, one made for it."""
        return as_estimator(self.estimator)

    @property
    def differentiates(self) -> bool:
        """Whether the term adds to the loss."""
        return self.placement != "reward"

    @property
    def charges(self) -> bool:
        """Whether the term is subtracted from rewards or advantages."""
        return self.placement in ("reward", "both")

    @property
    def needs_logits(self) -> bool:
        """Whether the estimator reads next-token distributions, and not only sampled log-probs."""
        return self.entry.inputs != "sampled"

    @property
    def scope(self) -> Scope | None:
        """Which ratio weights the term in the loss: "auto" resolved."""
        if self.placement == "reward":
            return None
        if self.importance != "auto":
            return self.importance
        if self.level == "sequence":
            return "sequence"
        return None if self.entry.inputs == "vocab" else "token"


def as_term(kl: EstimatorLike | KLTerm) -> KLTerm:
    """A `KLTerm`: the one given, or that of an estimator in the loss, token by token.

    Raises:
        ValueError: an unknown estimator (the known ones and the nearest are listed).
    """
    return kl if isinstance(kl, KLTerm) else KLTerm(kl)


def weighted_estimates(
    term: KLTerm, rollout: Rollout, estimate: Estimate = per_token, flags: Flags | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the estimates that the loss differentiates and the ratio to multiply them by, None for no ratio.

    Args:
        term: The choices; one whose placement is ``"reward"`` adds nothing to a loss.
        rollout: ``behavior_logp`` of the policy that sampled, or None on-policy; logits where the estimator
            needs them.
        estimate: Function that computes the estimates of tokens.
        flags: Checks of a caller, which settles them; by default values are checked here.

    Returns:
        [batch, seq] each, or [batch] at level ``"sequence"``. A top-k estimate has its ratio in it already.

    Raises:
        ValueError: placement ``"reward"``, missing logits, or a sampled token without a probability.
    """
    if not term.differentiates:
        raise ValueError(
            "placement='reward' adds nothing to a loss: expected kl_reward, or 'score' for the cost as a loss"
        )
    own = Flags() if flags is None else flags
    x, rho = _weighted_estimates(term, rollout, estimate, own)
    if flags is None:
        own.settle()
    return x, rho


def _weighted_estimates(
    term: KLTerm, rollout: Rollout, estimate: Estimate, flags: Flags
) -> tuple[torch.Tensor, torch.Tensor | None]:
    rho, entry, mask = ratio_of(term, rollout, flags), term.entry, rollout.completion_mask
    if term.level == "sequence":
        both = (masked(x, mask).sum(-1) for x in (rollout.logp, rollout.ref_logp))
        with _no_reads():
            return entry.fn(*both), None if rho is None else rho[:, 0]
    if entry.inputs == "top_k":  # the head is a sum: only the tail was drawn from mu
        x, rho = flagged_estimates(entry, rollout, flags, estimate, **tail_weights(rho)), None
    else:
        x = flagged_estimates(entry, rollout, flags, estimate)
    if term.placement == "score":
        costs = credited(x.detach(), mask, term.credit, flags)
        x = flags.no_nan("credit times logp", costs * masked(rollout.logp, mask), credit=costs)
    return x, rho


def flagged_estimates(
    entry: Estimator, rollout: Rollout, flags: Flags, estimate: Estimate = per_token, **options: Any
) -> torch.Tensor:
    """Return the estimates of tokens, [batch, seq], which must be finite where they read distributions."""
    with _no_reads():
        x = estimate(entry, rollout, **options)
    if entry.inputs != "sampled":
        infinite = x.detach().isinf() & rollout.completion_mask.bool()

        def complain() -> None:
            if "validate" in inspect.signature(entry.fn).parameters:  # names the token of the vocabulary
                per_token(entry, rollout, **options, validate=True)
            check_finite(entry.name, x, infinite)

        flags.add(infinite, complain)
    return x


def _no_reads() -> AbstractContextManager[None]:
    """Return the context in which formulas read nothing, because a loss reads one value at its end."""
    return nullcontext() if torch.compiler.is_compiling() else without_looking()


def ratio_of(term: KLTerm, rollout: Rollout, flags: Flags | None = None) -> torch.Tensor | None:
    """Return the ratio that weights the term in the loss, [batch, seq]; None for none.

    On-policy a detached ratio is 1 for every token, so that no ratio is computed. ``flags`` are settled by
    the caller; by default values are checked here.
    """
    if term.scope is None:
        return None
    low, high = term.clip or (0.0, math.inf)
    if rollout.behavior_logp is None and term.ratio == "detached" and low <= 1 <= high:
        return None
    own = Flags() if flags is None else flags
    rho = flagged_ratio(rollout, term.scope, term.clip, term.missing, own)
    if flags is None:
        own.settle()
    return rho.detach() if term.ratio == "detached" else rho


def tail_weights(rho: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The ratio as a top-k estimator takes it: nothing where there is none."""
    return {} if rho is None else {"tail_weight": rho}


def penalties(
    term: KLTerm, costs: torch.Tensor, completion_mask: torch.Tensor, flags: Flags | None = None
) -> torch.Tensor:
    """Return what rewards or advantages lose: [batch, seq], or [batch] at level "sequence".

    Args:
        term: ``level`` and ``credit`` are read, and whether a token's own cost is in the loss already.
        costs: [batch, seq], the value of the estimate at every token, times the coefficient or not.
        completion_mask: [batch, seq]; a sequence without a token has the penalty 0.
        flags: Checks of a caller, which settles them; by default values are checked here.
    """
    inside = masked(costs, completion_mask)
    if term.level == "sequence":
        return inside.sum(-1)
    own = Flags() if flags is None else flags
    ahead = credited(inside, completion_mask, term.credit, own)
    if flags is None:
        own.settle()
    return ahead - inside if term.placement == "both" else ahead
