"""A KL term for trainers that sum over tokens themselves: which estimator, where it acts, with which ratio.

A trainer brings its own aggregation, masks and clipping. What it needs from here is one number per token:
`token_terms` for the loss, or `penalties` to subtract from its advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from kl_companion.checks import check_choice
from kl_companion.estimators.fused import fused_f_divergence, fused_logp, fused_top_k_f_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.estimators.vocabulary import exact_forward_kl, exact_kl, f_divergence
from kl_companion.losses import LEVELS, RATIOS, Level, Ratio
from kl_companion.rollout import SCOPES, Rollout, Scope, credit, importance_ratio, masked, per_token

Placement = Literal["loss", "reward"]
Importance = Scope | Literal["auto"] | None
PLACEMENTS: tuple[Placement, ...] = ("loss", "reward")


@dataclass(frozen=True)
class KLTerm:
    """Every choice about a KL term but its coefficient, which is the trainer's own.

    Attributes:
        estimator: A registered estimator, or its name: ``"k2"``, ``"exact_kl"``, ``"top_k_reverse_kl(8)"``.
        placement: ``"loss"`` differentiates the estimate; ``"reward"`` subtracts its value, detached, from
            the advantages.
        level: In the loss: the estimate of each token, or the estimator of the log-probs of whole sequences.
            In the reward: a cost for every token, charged to it and the tokens before it, or one cost per
            sequence.
        importance: Ratio of the policy to the policy that sampled, on the term in the loss: of the
            ``"token"``, its ``"prefix"`` or the ``"sequence"``; None for no ratio. ``"auto"`` is the ratio
            of the level, and none for an exact estimator, where nothing is sampled but the state. Of a
            top-k estimator it weights the tail only.
        ratio: ``"detached"``, or ``"attached"``: kept in the graph, on-policy too.
        clip: (lowest, highest) ratio, or None.
        credit: In the reward at level ``"token"``: discount of the costs of later tokens. 1 charges the whole
            future (with ``"k1"`` the gradient of the sequence KL), 0 the token's own cost (the token-level
            one). The exact cost of a token does not depend on the token, so it charges those before it only.

    Raises:
        ValueError: an unknown estimator or choice, or choices that do not go together.

    Source: tang2025pitfalls, sections 2.2 and 4.2; emapg2026, section 5.3.
    """

    estimator: str | Estimator = "k2"
    placement: Placement = "loss"
    level: Level = "token"
    importance: Importance = "auto"
    ratio: Ratio = "detached"
    clip: tuple[float, float] | None = None
    credit: float = 1.0

    def __post_init__(self) -> None:
        entry = self.entry  # an unknown one is refused first
        check_choice("placement", self.placement, PLACEMENTS)
        check_choice("level", self.level, LEVELS)
        check_choice("ratio", self.ratio, RATIOS)
        if self.importance is not None:
            check_choice("importance", self.importance, ("auto", *SCOPES))
        if not 0 <= self.credit <= 1:
            raise ValueError(f"credit is {self.credit}, expected a number from 0 to 1")
        if self.credit == 0 and entry.inputs == "vocab":
            raise ValueError(
                f"credit=0 got {entry.name!r}, whose cost of a token is the same whatever the token: its "
                "gradient is zero, expected credit above 0, a sampled estimator or placement='loss'"
            )
        weighted = f"importance={self.importance!r}, ratio={self.ratio!r}, clip={self.clip}"
        if self.credit != 1 and (self.placement, self.level) != ("reward", "token"):
            raise ValueError(
                f"credit={self.credit} got placement={self.placement!r}, level={self.level!r}: "
                "expected 'reward' and 'token', where a token is charged with the costs after it"
            )
        if self.placement == "reward" and (
            self.importance not in ("auto", None) or self.ratio == "attached" or self.clip is not None
        ):
            raise ValueError(
                f"placement='reward' got {weighted}: expected none of them, because the policy gradient "
                "brings its own ratio"
            )
        self._check_loss(weighted)

    def _check_loss(self, weighted: str) -> None:
        if self.placement == "reward":
            return
        inputs, name, scope = self.entry.inputs, self.entry.name, self.scope
        if self.level == "sequence" and (inputs != "sampled" or scope not in (None, "sequence")):
            raise ValueError(
                f"level='sequence' got {name!r} with importance={self.importance!r}: expected a sampled "
                "estimator and 'auto', 'sequence' or None"
            )
        if scope is None and (self.ratio == "attached" or self.clip is not None):
            raise ValueError(
                f"{name} got {weighted}, which is no ratio: expected 'token', 'prefix' or 'sequence'"
            )
        if inputs == "top_k" and (scope not in (None, "token") or self.ratio == "attached"):
            raise ValueError(
                f"{name} got {weighted}: expected 'auto', 'token' or None, and 'detached', because the ratio "
                "multiplies the sampled tail only"
            )

    @property
    def entry(self) -> Estimator:
        """The estimator's entry in the registry."""
        return get_estimator(self.estimator)

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


def as_term(kl: str | Estimator | KLTerm) -> KLTerm:
    """A `KLTerm`: the one given, or that of an estimator in the loss, token by token.

    Raises:
        ValueError: an unknown estimator (the known ones and the nearest are listed).
    """
    return kl if isinstance(kl, KLTerm) else KLTerm(kl)


def token_terms(term: KLTerm, rollout: Rollout) -> torch.Tensor:
    """What every token adds to the loss, [batch, seq], differentiable and zero outside the mask.

    At level "sequence" the estimate of a sequence is spread evenly over its tokens, so that any aggregation
    of the trainer gives it the weight that the sequence's reward has.

    Args:
        term: The choices; its placement is not read.
        rollout: ``behavior_logp`` of the policy that sampled, or None on-policy; logits where the estimator
            needs them.

    Raises:
        ValueError: logits are needed and missing, or a sampled token has no probability.
    """
    mask = rollout.completion_mask
    rho = None
    if term.scope is not None:
        rho = importance_ratio(rollout, scope=term.scope, clip=term.clip)
        rho = rho.detach() if term.ratio == "detached" else rho
    if term.level == "sequence":
        totals = (masked(x, mask).sum(-1, keepdim=True) for x in (rollout.logp, rollout.ref_logp))
        x = term.entry.fn(*totals) / mask.sum(-1, keepdim=True)
        return masked((x if rho is None else x * rho).expand(mask.shape), mask)
    if term.entry.inputs == "top_k":
        return estimates(term.entry, rollout, tail_weight=rho)
    x = estimates(term.entry, rollout)
    return masked(x if rho is None else x * rho, mask)


def token_costs(term: KLTerm, rollout: Rollout) -> torch.Tensor:
    """The value of the estimate at every token, detached, [batch, seq], zero outside the mask."""
    with torch.no_grad():
        return masked(estimates(term.entry, rollout), rollout.completion_mask)


def penalties(term: KLTerm, costs: torch.Tensor, completion_mask: torch.Tensor) -> torch.Tensor:
    """What the advantages lose, without the coefficient: [batch, seq], or [batch] at level "sequence".

    Args:
        term: ``level`` and ``credit`` are read.
        costs: [batch, seq] from `token_costs`.
        completion_mask: [batch, seq]; a sequence without a token has the penalty 0.
    """
    inside = masked(costs, completion_mask)
    return (
        inside.sum(-1) if term.level == "sequence" else credit(inside, completion_mask, discount=term.credit)
    )


def estimates(entry: Estimator, rollout: Rollout, *, tail_weight: torch.Tensor | None = None) -> torch.Tensor:
    """`kl_companion.rollout.per_token` with the fused kernels where they know the estimator, [batch, seq].

    A trainer has real vocabularies: the kernels keep no log-probs of whole rows for the gradient.

    Raises:
        ValueError: the rollout holds no logits and the estimator needs them.
    """
    missing = [x for x in ("logits", "ref_logits") if getattr(rollout, x) is None]
    divergence = _exact_divergence(entry)
    options = {} if tail_weight is None else {"tail_weight": tail_weight}
    fn = entry.fn
    has_kernel = isinstance(fn, TopK) and fn.k is not None and fn.tail and fn.head_from != "sampler"
    if missing or (divergence is None and not has_kernel):
        return per_token(entry, rollout, **options)
    inside = rollout.completion_mask.bool()
    logits, ref_logits = rollout.logits[inside], rollout.ref_logits[inside]  # type: ignore[index]
    if divergence is not None:
        values = fused_f_divergence(divergence, logits, ref_logits)
    else:
        weight = None if tail_weight is None else tail_weight[inside]
        values = _top_k(fn, logits, ref_logits, rollout.tokens[inside], rollout.ref_logp[inside], weight)
    return values.new_zeros(inside.shape).masked_scatter(inside, values)


def _exact_divergence(entry: Estimator) -> str | None:
    """The divergence that an exact estimator of this package computes; None for others."""
    ours = entry.fn in (exact_kl, exact_forward_kl)
    if isinstance(entry.fn, partial):
        ours = entry.fn.func is f_divergence
    return entry.target if ours and entry.inputs == "vocab" else None


def _top_k(
    choices: Any,
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    tokens: torch.Tensor,
    ref_logp: torch.Tensor,
    tail_weight: torch.Tensor | None,
) -> torch.Tensor:
    """The kernel of a `TopK` on rows [rows, vocab] under the mask, [rows]."""
    if choices.k > logits.shape[-1]:
        raise ValueError(f"k is {choices.k}, expected at most {logits.shape[-1]}, the size of the vocabulary")
    scores = logits if choices.head_from == "policy" else ref_logits
    head = scores.detach().topk(choices.k, dim=-1).indices
    return fused_top_k_f_divergence(
        choices.divergence,
        logits,
        tokens,
        head,
        fused_logp(ref_logits, head) if choices.k else ref_logits[:, :0],
        ref_logp,
        form=choices.form,
        tail_weight=tail_weight,
    )
