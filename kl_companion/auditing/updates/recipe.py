"""A whole update as a record of the field's parts: rewards, advantages, KL, policy loss, aggregation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from kl_companion.auditing.updates.advantages import ALONE, OF_TOKENS, Advantage, Normalize, normalizer
from kl_companion.checks import check_choice, check_scalar
from kl_companion.kl_term import KLTerm, penalties
from kl_companion.losses import term_loss
from kl_companion.policy_losses.ratio_losses import POLICY_LOSSES, PolicyLoss, policy_loss
from kl_companion.rollout import Aggregate, Rollout, aggregate, masked, per_token
from kl_companion.rollout.aggregation import check_aggregate

Penalty = Literal["before", "after"]
PENALTIES: tuple[Penalty, ...] = ("before", "after")


@dataclass(frozen=True)
class Recipe:
    """What a trainer does with a batch of answers and their rewards; ``recipe.loss(rollout)`` is its loss.

    Attributes:
        advantage: What becomes of rewards, see `normalizer`.
        kl: The KL term; None for none. In the loss it is added to the policy loss with the same aggregation;
            in the reward it is charged before or after the advantages are made.
        beta: Its coefficient.
        penalty: Of a term in the reward: ``"before"`` advantages are made, where it is normalized with the
            rewards; or ``"after"``, where it is subtracted from the advantages.
        policy_loss: See `kl_companion.policy_losses.ratio_losses.policy_loss`.
        clip: How far below and above 1 a ratio is free.
        dual_clip: See there.
        aggregate: How tokens become one number, see `kl_companion.aggregate`.
        length: Tokens to divide by, for ``aggregate="constant"``.
        entropy: Coefficient of the entropy of every next token, which is maximized; needs logits.
        eps: Of the normalization.
        unbiased: Whether a variance has n - 1 in its denominator.
        sampler_cap: None: the ratio is to the policy that sampled. A number: the ratio is to the policy
            before the first update on the batch, and every token is weighted by that policy over the sampler,
            at most this (truncated importance sampling).
        keep_ratios: (lowest, highest): tokens whose ratio of policy to sampler is outside are left out.
        keep_kl: Answers with a negative advantage are left out where the mean over their tokens of
            log sampler - log policy is larger.
        critic: Values of every token, [batch, seq], as a function of the rollout; subtracted from the returns
            before they are normalized. None for no critic.
        normalize: A trainer's own function of returns [groups, n] in place of the one that ``advantage``
            names.
        name: What it is called.

    Raises:
        ValueError: an unknown choice, a number out of range, or choices that do not go together.
    """

    advantage: Advantage = "group_std"
    kl: KLTerm | None = None
    beta: float = 0.04
    penalty: Penalty = "before"
    policy_loss: PolicyLoss = "ppo"
    clip: tuple[float, float] = (0.2, 0.2)
    dual_clip: float | None = None
    aggregate: Aggregate = "token_mean"
    length: float | None = None
    entropy: float = 0.0
    eps: float = 1e-4
    unbiased: bool = True
    sampler_cap: float | None = None
    keep_ratios: tuple[float, float] | None = None
    keep_kl: float | None = None
    critic: Callable[[Rollout], torch.Tensor] | None = None
    normalize: Normalize | None = None
    name: str = ""

    def __post_init__(self) -> None:
        normalizer(self.advantage, eps=self.eps)  # refuses an unknown one
        check_choice("penalty", self.penalty, PENALTIES)
        check_choice("policy_loss", self.policy_loss, POLICY_LOSSES)
        check_aggregate(self.aggregate, self.length)
        check_scalar("beta", self.beta, least=0.0)
        check_scalar("entropy", self.entropy)
        for name in ("clip", "keep_ratios"):
            pair = getattr(self, name)
            if pair is not None and (len(pair) != 2 or min(pair) < 0):
                raise ValueError(f"{name} is {pair!r}, expected two numbers that are not negative")
        for name in ("dual_clip", "sampler_cap"):
            x = getattr(self, name)
            if x is not None and not x >= 1:
                raise ValueError(f"{name} is {x!r}, expected a number of at least 1, or None")
        if self.critic is not None and not self.of_tokens:
            raise ValueError(
                f"got a critic and advantage={self.advantage!r}, expected one of {', '.join(OF_TOKENS)}: a "
                "critic takes the place of the other answers"
            )
        if self.kl is not None and self.kl.placement == "both":
            raise ValueError("kl has placement 'both', expected 'loss', 'score' or 'reward': one place")
        if self.kl is not None and self.kl.level == "sequence" and self.kl.differentiates:
            raise ValueError("kl has level 'sequence' in the loss, expected 'token', as it is aggregated")

    @property
    def charges(self) -> bool:
        """Whether the KL is in the reward or in the advantages."""
        return self.kl is not None and self.kl.charges

    @property
    def compares(self) -> bool:
        """Whether the answers of a group are compared with each other."""
        return self.normalize is not None or self.advantage not in ALONE

    @property
    def of_tokens(self) -> bool:
        """Whether every token has a return of its own: what is ahead of it."""
        return self.advantage in OF_TOKENS

    def loss(self, rollout: Rollout, old_logp: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of the answers to one prompt; a scalar.

        Args:
            rollout: The answers, with rewards. Without ``behavior_logp`` the policy itself sampled.
            old_logp: [batch, seq], of the policy before the first update on the batch; by default the policy
                itself where the sampler is another (``sampler_cap``), else the sampler.

        Raises:
            ValueError: no rewards; as `kl_companion.kl_loss`.
        """
        mask = rollout.completion_mask
        sampler = rollout.sampled_from
        if old_logp is None:
            old_logp = sampler if self.sampler_cap is None else rollout.logp.detach()
        a = self.advantages(rollout)
        x = policy_loss(
            self.policy_loss,
            rollout.logp - old_logp,
            a,
            mask,
            low=self.clip[0],
            high=self.clip[1],
            dual=self.dual_clip,
        )
        if self.sampler_cap is not None:
            x = x * masked(old_logp - sampler, mask).exp().clamp(max=self.sampler_cap)
        x = x * self._kept(rollout, a)
        if self.entropy:
            x = x + self.entropy * masked((rollout.logp_all.exp() * rollout.logp_all).sum(-1), mask)
        total = aggregate(x, mask, self.aggregate, length=self.length)
        if self.kl is not None and self.kl.differentiates:
            total = total + term_loss(
                rollout, self.kl, beta=self.beta, how=self.aggregate, length=self.length
            )
        return total

    def advantages(self, rollout: Rollout) -> torch.Tensor:
        """Of every token, [batch, seq], detached: normalized rewards, and the penalty that is charged.

        Raises:
            ValueError: no rewards.
        """
        if rollout.rewards is None:
            raise ValueError("the rollout has no rewards, expected one per answer [batch]")
        mask, charged = rollout.completion_mask, self._charged(rollout)
        returns = rollout.rewards.unsqueeze(-1).expand(mask.shape)
        if charged is not None and self.penalty == "before":
            # what is ahead of the first token is the penalty of the answer
            returns = returns - (charged if self.of_tokens else charged[:, :1])
        if self.critic is not None:
            returns = returns - self.critic(rollout)
        normalize = self.normalize or normalizer(self.advantage, eps=self.eps, unbiased=self.unbiased)
        if self.of_tokens:
            inside = mask.bool()
            a = torch.zeros_like(returns).masked_scatter(inside, normalize(returns[inside].unsqueeze(0))[0])
        else:
            a = normalize(returns[:, 0].unsqueeze(0))[0].unsqueeze(-1).expand(mask.shape)
        if charged is not None and self.penalty == "after":
            a = a - charged
        return masked(a, mask).detach()

    def _charged(self, rollout: Rollout) -> torch.Tensor | None:
        """beta times the penalty that every token is charged with, [batch, seq]; None for none."""
        if self.kl is None or not self.kl.charges:
            return None
        mask = rollout.completion_mask
        costs = masked(per_token(self.kl.entry, rollout).detach(), mask)
        x = self.beta * penalties(self.kl, costs, mask)
        return x if x.ndim == 2 else x.unsqueeze(-1).expand(mask.shape)

    def _kept(self, rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
        """1 for tokens that are trained on, [batch, seq]."""
        mask = rollout.completion_mask
        log_ratio = masked(rollout.logp.detach() - rollout.sampled_from, mask)
        kept = torch.ones_like(log_ratio)
        if self.keep_ratios is not None:
            low, high = self.keep_ratios
            ratio = log_ratio.exp()
            kept = kept * ((ratio >= low) & (ratio <= high))
        if self.keep_kl is not None:
            far = -log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True) > self.keep_kl
            kept = kept * ~(far & (advantages < 0))
        return kept
