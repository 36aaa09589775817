"""A whole update as a record of the field's parts: rewards, advantages, KL, policy loss, aggregation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal

import torch

from kl_companion.auditing.updates.advantages import OF_TOKENS, Advantage, Normalize, normalizer
from kl_companion.auditing.updates.critics import CRITICS, Critic, Values, at_last, critic_of, generalized
from kl_companion.checks import check_choice, check_number, check_scalar, check_shape, check_whole, described
from kl_companion.kl_term import KLTerm, penalties
from kl_companion.losses import term_loss
from kl_companion.policy_losses.ratio_losses import POLICY_LOSSES, PolicyLoss, check_dual, policy_loss
from kl_companion.rollout import Aggregate, Rollout, aggregate, masked, per_token
from kl_companion.rollout.aggregation import check_aggregate
from kl_companion.tabular import Problem

Penalty = Literal["before", "after"]
PENALTIES: tuple[Penalty, ...] = ("before", "after")
_SAME = 1e-9  # between log-probs of one policy


def _pair(name: str, x: Any) -> tuple[float, float]:
    """Return two numbers as a tuple, of a list too, as YAML gives it."""
    numbers = isinstance(x, tuple | list) and len(x) == 2 and all(isinstance(y, Real) for y in x)
    if not numbers or not all(y >= 0 for y in x):
        raise ValueError(f"{name} is {x!r}, expected two numbers that are not negative")
    return (x[0], x[1])


@dataclass(frozen=True)
class Recipe:
    """What a trainer does with a batch of answers and their rewards; ``recipe.loss(rollout)`` is its loss.

    Attributes:
        advantage: What becomes of rewards, see `normalizer`.
        kl: The KL term; None for none. In the loss it is added to the policy loss with the same aggregation;
            in the reward it is charged before or after the advantages are made, by the log-probs of the
            policy before the first update on the batch.
        beta: Its coefficient.
        penalty: Of a term in the reward: ``"before"`` advantages are made, where it is normalized with the
            rewards; or ``"after"``, where it is subtracted from the advantages.
        policy_loss: See `kl_companion.policy_losses.ratio_losses.policy_loss`.
        clip: How far below and above 1 a ratio is free, where the policy loss clips.
        dual_clip: See there.
        aggregate: How tokens become one number, see `kl_companion.aggregate`.
        length: Tokens to divide by, for ``aggregate="constant"``.
        entropy: Coefficient of the entropy of every next token, which is maximized; needs logits.
        eps: Of the normalization.
        unbiased: Whether a variance has n - 1 in its denominator.
        sampler_cap: None: the ratio is to the policy that sampled. A number: the ratio is to the policy
            before the first update on the batch, and every token is weighted by that policy over the sampler,
            at most this (truncated importance sampling).
        keep_ratios: (lowest, highest): tokens whose ratio of policy to sampler is outside are left out of the
            policy loss; the aggregation counts them still.
        keep_kl: So are tokens with a negative advantage where the mean over their answer of log sampler - log
            policy is larger.
        gamma: Discount of what is ahead of a token, where every token has a return of its own.
        lam: Of generalized advantage estimation: 1 for returns as they are, below 1 for a mean of returns
            that end early, in the critic's value.
        critic: Values of every token, [batch, seq], as a function of the rollout; subtracted from the returns
            before they are normalized. ``"exact"``: the expected return of the answers that the sampler gives
            behind a prefix; ``"reward"``: that of the rewards without the penalty. These two are known in a
            world, see `at`. None for values of zero.
        normalize: A trainer's own function of returns [groups, n] in place of the one that ``advantage``
            names; that name still says whether they are returns of answers or of tokens.
        updates: Updates on one batch.
        rate: Step size of plain gradient descent on the logits, where there is more than one.
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
    gamma: float = 1.0
    lam: float = 1.0
    critic: Values | Critic | None = None
    normalize: Normalize | None = None
    updates: int = 1
    rate: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        normalizer(self.advantage, eps=self.eps)  # refuses an unknown one
        check_choice("penalty", self.penalty, PENALTIES)
        check_choice("policy_loss", self.policy_loss, POLICY_LOSSES)
        check_aggregate(self.aggregate, self.length)
        check_scalar("beta", self.beta, least=0.0)
        check_scalar("entropy", self.entropy)
        check_scalar("rate", self.rate, positive=True)
        check_whole("updates", self.updates, 1)
        object.__setattr__(self, "clip", _pair("clip", self.clip))
        if self.keep_ratios is not None:
            object.__setattr__(self, "keep_ratios", _pair("keep_ratios", self.keep_ratios))
            if self.keep_ratios[0] > self.keep_ratios[1]:
                raise ValueError(f"keep_ratios is {self.keep_ratios}, expected (lowest, highest)")
        for name in ("dual_clip", "sampler_cap"):
            if (x := getattr(self, name)) is not None:
                check_number(name, x, infinite=True)
                if x < 1:
                    raise ValueError(f"{name} is {x!r}, expected a number of at least 1, or None")
        check_dual(self.policy_loss, self.dual_clip)
        if self.keep_kl is not None:
            check_scalar("keep_kl", self.keep_kl)
        for name in ("gamma", "lam"):
            check_scalar(name, x := getattr(self, name), least=0.0)
            if x > 1:
                raise ValueError(f"{name} is {x!r}, expected a number from 0 to 1")
        for name, names in (("critic", CRITICS), ("normalize", ())):
            if (x := getattr(self, name)) is not None and not callable(x) and x not in names:
                choices = "".join(f"{n!r}, " for n in names)
                raise ValueError(f"{name} is {described(x)}, expected {choices}a function, or None")
        self._check_together()

    def _check_together(self) -> None:
        if self.critic is not None and not self.of_tokens:
            raise ValueError(
                f"got a critic and advantage={self.advantage!r}, expected one of {', '.join(OF_TOKENS)}: a "
                "critic takes the place of the other answers"
            )
        if not self.of_tokens and (self.gamma, self.lam) != (1, 1):
            raise ValueError(
                f"got gamma={self.gamma}, lam={self.lam} and advantage={self.advantage!r}, expected one of "
                f"{', '.join(OF_TOKENS)}: with another an answer has one return"
            )
        kl = self.kl
        if kl is None:
            return
        if not isinstance(kl, KLTerm):
            raise ValueError(f"kl is {described(kl)}, expected a KLTerm, or None")
        if kl.placement == "both":
            raise ValueError("kl has placement 'both', expected 'loss', 'score' or 'reward': one place")
        if kl.level == "sequence" and kl.differentiates:
            raise ValueError("kl has level 'sequence' in the loss, expected 'token', as it is aggregated")
        if kl.charges and kl.credit != 1 and self.penalty == "before" and not self.of_tokens:
            raise ValueError(
                f"kl has credit={kl.credit} and is charged before advantage={self.advantage!r}, expected "
                "credit 1: what is compared there is the penalty of a whole answer"
            )
        discounts = (self.gamma, self.lam) != (1, 1) or isinstance(self.critic, str)
        if kl.charges and kl.credit != 1 and discounts and self.penalty == "before":
            raise ValueError(
                f"kl has credit={kl.credit} with gamma={self.gamma}, lam={self.lam}, critic={self.critic!r}, "
                "expected credit 1: gamma and lam discount rewards and penalties alike"
            )

    @property
    def charges(self) -> bool:
        """Whether the KL is in the reward or in the advantages."""
        return self.kl is not None and self.kl.charges

    @property
    def of_tokens(self) -> bool:
        """Whether every token has a return of its own: what is ahead of it."""
        return self.advantage in OF_TOKENS

    def at(self, problem: Problem) -> Recipe:
        """The recipe with the values of its critic in a world, where the critic is a name.

        Args:
            problem: The world; its sampler gives the answers behind a prefix, and its policy is charged with
                the penalty.
        """
        if not isinstance(self.critic, str):
            return self
        kl = self.kl if self.critic == "exact" else None
        of_answers = problem.rollout(problem.logits.detach())
        returns = replace(self, critic=None, lam=1.0, kl=kl)._returns(of_answers, None)
        return replace(self, critic=critic_of(problem, returns))

    def loss(self, rollout: Rollout, old_logp: torch.Tensor | None = None) -> torch.Tensor:
        """The loss of the answers to one prompt; a scalar.

        Args:
            rollout: The answers, with rewards. Without ``behavior_logp`` the policy itself sampled.
            old_logp: [batch, seq], of the policy before the first update on the batch, which the penalty in
                the reward is made of, and with a ``sampler_cap`` the ratio; by default the policy itself,
                whose first update it is.

        Raises:
            ValueError: no rewards, answers to several prompts, shapes that differ, too few answers to
                compare; as `kl_companion.kl_loss`.
        """
        mask = rollout.completion_mask
        sampler = rollout.sampled_from
        a = self.advantages(rollout, old_logp)
        before = (rollout.logp if old_logp is None else old_logp).detach()
        old = sampler if self.sampler_cap is None else before
        x = policy_loss(
            self.policy_loss,
            rollout.logp - old,
            a,
            mask,
            low=self.clip[0],
            high=self.clip[1],
            dual=self.dual_clip,
        )
        if self.sampler_cap is not None:
            x = x * masked(before - sampler, mask).exp().clamp(max=self.sampler_cap)
        x = x * self._kept(rollout, a)
        if self.entropy:
            x = x + self.entropy * masked((rollout.logp_all.exp() * rollout.logp_all).sum(-1), mask)
        total = aggregate(x, mask, self.aggregate, length=self.length)
        if self.kl is not None and self.kl.differentiates:
            total = total + term_loss(
                rollout, self.kl, beta=self.beta, how=self.aggregate, length=self.length
            )
        return total

    def advantages(self, rollout: Rollout, old_logp: torch.Tensor | None = None) -> torch.Tensor:
        """Of every token, [batch, seq], detached: normalized rewards, and the penalty that is charged.

        Arguments and errors as `loss`.
        """
        if rollout.rewards is None:
            raise ValueError("the rollout has no rewards, expected one per answer [batch]")
        if rollout.prompt_index is not None and (prompts := len(rollout.prompt_index.unique())) > 1:
            raise ValueError(f"the rollout answers {prompts} prompts, expected one: call it for each")
        if old_logp is not None:
            check_shape("old_logp", old_logp, rollout.logp.shape, "logp [batch, seq]")
        mask = rollout.completion_mask
        returns = self._returns(rollout, old_logp)
        if self.of_tokens:
            inside = mask.bool()
            a = torch.zeros_like(returns).masked_scatter(inside, self._normalized(returns[inside]))
        else:
            a = self._normalized(returns[:, 0]).unsqueeze(-1).expand(mask.shape)
        if self.penalty == "after" and (charged := self._charged(rollout, old_logp)) is not None:
            a = a - charged
        return masked(a, mask).detach()

    def _returns(self, rollout: Rollout, old_logp: torch.Tensor | None) -> torch.Tensor:
        """Return what is ahead of every token, minus its value, [batch, seq]; or of answers, [batch, 1]."""
        assert rollout.rewards is not None
        mask, rewards = rollout.completion_mask, rollout.rewards.to(rollout.logp.dtype)
        charged = None if self.penalty == "after" else self._charged(rollout, old_logp, self.gamma * self.lam)
        costs = torch.zeros_like(rollout.logp) if charged is None else charged
        if not self.of_tokens:  # what is ahead of the first token is the penalty of the answer
            return rewards.unsqueeze(-1) - costs[:, :1]
        values = self._values(rollout)
        return generalized(at_last(rewards, mask), values, mask, self.gamma, self.lam) - costs - values

    def _values(self, rollout: Rollout) -> torch.Tensor:
        """Return what the critic predicts of every token, [batch, seq]."""
        if self.critic is None:
            return torch.zeros_like(rollout.logp)
        if isinstance(self.critic, str):
            raise ValueError(
                f"critic is {self.critic!r} and the batch is all that is known, expected the answers of a "
                "world: call recipe.at(problem)"
            )
        values = self.critic(rollout)
        check_shape(
            "what the critic returned", values, rollout.completion_mask.shape, "completion_mask [batch, seq]"
        )
        return values

    def _normalized(self, returns: torch.Tensor) -> torch.Tensor:
        """Advantages of one group, [n]."""
        normalize = self.normalize or normalizer(self.advantage, eps=self.eps, unbiased=self.unbiased)
        found = normalize(returns.unsqueeze(0))
        check_shape("what normalize returned", found, (1, len(returns)), "its argument [groups, n]")
        return found[0]

    def _charged(
        self, rollout: Rollout, old_logp: torch.Tensor | None, decay: float = 1.0
    ) -> torch.Tensor | None:
        """beta times the penalty that every token is charged with, [batch, seq]; None for none.

        ``decay`` discounts the costs of the tokens ahead, beside the credit of the term.
        """
        if self.kl is None or not self.kl.charges:
            return None
        mask = rollout.completion_mask
        if old_logp is not None:
            rollout = self._before(rollout, old_logp)
        costs = masked(per_token(self.kl.entry, rollout).detach(), mask)
        if decay == 1:
            x = self.beta * penalties(self.kl, costs, mask)
            return x if x.ndim == 2 else x.unsqueeze(-1).expand(mask.shape)
        own = at_last(costs.sum(-1), mask) if self.kl.level == "sequence" else costs
        return self.beta * generalized(own, torch.zeros_like(own), mask, decay, 1.0)

    def _before(self, rollout: Rollout, old_logp: torch.Tensor) -> Rollout:
        """The answers as the policy before the first update scores them."""
        if self.kl is None or not self.kl.needs_logits:
            return replace(rollout, logp=old_logp.detach())
        if masked(rollout.logp.detach() - old_logp, rollout.completion_mask).abs().max() > _SAME:
            raise ValueError(
                f"{self.kl.entry.name} in the reward got old_logp of another policy than logp, expected the "
                "same, or an estimator of sampled log-probs: the other policy's distributions are not known"
            )
        return rollout

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
