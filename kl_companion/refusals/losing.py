"""Bad input to a rollout, to what is computed from it, and to losses."""

from __future__ import annotations

from typing import Any

import torch

import kl_companion as kl
from kl_companion.refusals.case import Case
from kl_companion.refusals.samples import (
    LOGITS,
    LOGP,
    MASK,
    PROMPTS,
    REF_LOGITS,
    REWARDS,
    TOKENS,
    rollout,
    with_logits,
)

_EMPTY = MASK * torch.tensor([[1.0], [0.0]])
_NEVER = LOGP.masked_fill(TOKENS == 1, -torch.inf)
_ALONE = {"prompt_index": torch.tensor([0, 1])}
_ANY: Any = kl  # arguments of wrong types are what is tried here


def _never() -> object:
    behavior = LOGITS.masked_fill(torch.arange(5) == 2, -torch.inf)
    sampled = with_logits(behavior_logits=behavior, behavior_logp=LOGP)
    return kl.importance_ratio(sampled, scope="token")


def _late_prompts() -> object:
    return kl.Rollout.from_logits(TOKENS, MASK, LOGITS[:, 1:], REF_LOGITS[:, 1:])


CASES = (
    Case("Rollout", "logits instead of log-probs", lambda: rollout(logp=LOGITS[..., 0])),
    Case("Rollout", "probabilities instead of log-probs", lambda: rollout(logp=LOGP.exp())),
    Case("Rollout", "[batch, seq, vocab] for [batch, seq]", lambda: rollout(logp=LOGITS.log_softmax(-1))),
    Case("Rollout", "lengths that are shifted by one", lambda: rollout(logp=LOGP[:, 1:])),
    Case("Rollout", "a mask of other numbers than 0 and 1", lambda: rollout(completion_mask=2 * MASK)),
    Case("Rollout", "a mask [seq]", lambda: rollout(completion_mask=MASK[0])),
    Case("Rollout", "an empty completion", lambda: rollout(completion_mask=_EMPTY)),
    Case("Rollout", "no mask", lambda: rollout(completion_mask=None)),
    Case("Rollout", "-inf at a sampled token", lambda: rollout(logp=_NEVER)),
    Case("Rollout", "log-probs of integers", lambda: rollout(logp=-TOKENS)),
    Case("Rollout", "tokens of int32", lambda: rollout(tokens=TOKENS.int())),
    Case("Rollout", "tokens as a list", lambda: rollout(tokens=TOKENS.tolist())),
    Case("Rollout", "no reference", lambda: rollout(ref_logp=None)),
    Case("Rollout", "rewards per token", lambda: rollout(rewards=MASK)),
    Case("Rollout", "rewards as a list", lambda: rollout(rewards=[1.0, 0.0])),
    Case("Rollout", "a prompt_index of another shape", lambda: rollout(prompt_index=TOKENS)),
    Case("Rollout", "a prompt_index of floats", lambda: rollout(prompt_index=REWARDS)),
    Case("Rollout", "logits of two vocabularies", lambda: rollout(logits=LOGITS, ref_logits=LOGITS[..., :4])),
    Case("Rollout.from_logits", "logits that are shifted by one", _late_prompts),
    Case(
        "Rollout.from_logits",
        "a token id out of the vocabulary",
        lambda: kl.Rollout.from_logits(TOKENS + 1, MASK, LOGITS, REF_LOGITS),
    ),
    Case(
        "Rollout.from_logits",
        "log-probs [batch, seq] for logits",
        lambda: kl.Rollout.from_logits(TOKENS, MASK, LOGP, LOGP),
    ),
    Case(
        "Rollout.from_logits",
        "tokens of int32",
        lambda: kl.Rollout.from_logits(TOKENS.int(), MASK, LOGITS, REF_LOGITS),
    ),
    Case(
        "Rollout.from_logits",
        "logits of integers",
        lambda: kl.Rollout.from_logits(TOKENS, MASK, LOGITS.long(), REF_LOGITS.long()),
    ),
    Case("Rollout.logp_all", "a rollout without logits", lambda: rollout().logp_all),
    Case("aggregate", "a misspelled aggregation", lambda: _ANY.aggregate(LOGP, MASK, "mean_sequence")),
    Case("aggregate", "a constant without its length", lambda: kl.aggregate(LOGP, MASK, "constant")),
    Case("aggregate", "a length that nothing reads", lambda: kl.aggregate(LOGP, MASK, "sum", length=3)),
    Case("aggregate", "a length of 0", lambda: kl.aggregate(LOGP, MASK, "constant", length=0)),
    Case("aggregate", "lengths that are shifted by one", lambda: kl.aggregate(LOGP[:, 1:], MASK)),
    Case("credit", "a discount above 1", lambda: kl.credit(LOGP, MASK, discount=1.5)),
    Case("credit", "one number per sequence", lambda: kl.credit(REWARDS, MASK)),
    Case("center", "a group of one", lambda: kl.center(REWARDS, torch.tensor([0, 1]))),
    Case("center", "a misspelled baseline", lambda: _ANY.center(REWARDS, PROMPTS, "leave-one-out")),
    Case("center", "rewards per token", lambda: kl.center(MASK, TOKENS)),
    Case("center", "rewards as a list", lambda: _ANY.center([1.0, 0.0], PROMPTS)),
    Case("leave_one_out", "a group of one", lambda: kl.leave_one_out(REWARDS, torch.tensor([0, 1]))),
    Case("leave_one_out", "an index of another length", lambda: kl.leave_one_out(REWARDS, PROMPTS[:1])),
    Case("importance_ratio", "a misspelled scope", lambda: _ANY.importance_ratio(rollout(), scope="tokens")),
    Case(
        "importance_ratio",
        "a clip with low > high",
        lambda: kl.importance_ratio(rollout(), scope="token", clip=(1.2, 0.8)),
    ),
    Case(
        "importance_ratio",
        "a clip of one number",
        lambda: _ANY.importance_ratio(rollout(), scope="token", clip=0.2),
    ),
    Case("importance_ratio", "tokens that are never sampled", _never),
    Case("importance_weight", "a misspelled scope", lambda: _ANY.importance_weight(rollout(), scope="seq")),
    Case(
        "importance_weight",
        "an unknown choice for missing support",
        lambda: _ANY.importance_weight(rollout(), scope="token", missing="skip"),
    ),
    Case("per_token", "a misspelled estimator", lambda: kl.per_token("k33", rollout())),
    Case("per_token", "whole rows of a rollout without logits", lambda: kl.per_token("exact_kl", rollout())),
    Case("per_token", "a number for an estimator", lambda: _ANY.per_token(3, rollout())),
    Case("kl_loss", "a misspelled estimator", lambda: kl.kl_loss(rollout(), "k_3")),
    Case("kl_loss", "a misspelled level", lambda: _ANY.kl_loss(rollout(), level="sentence")),
    Case("kl_loss", "a misspelled aggregation", lambda: _ANY.kl_loss(rollout(), how="mean")),
    Case("kl_loss", "a clip without a ratio", lambda: kl.kl_loss(rollout(), clip=(0.8, 1.2))),
    Case(
        "kl_loss",
        "a mean over tokens of sequences",
        lambda: kl.kl_loss(rollout(), level="sequence", how="token_mean"),
    ),
    Case("kl_loss", "a dict for the rollout", lambda: _ANY.kl_loss({"logp": LOGP})),
    Case(
        "kl_loss",
        "a top-k tail weighted by sequences",
        lambda: kl.kl_loss(with_logits(), "top_k_reverse_kl(2)", importance="sequence"),
    ),
    Case(
        "kl_terms", "an aggregation that couples sequences", lambda: kl.kl_terms(rollout(), how="token_mean")
    ),
    Case(
        "kl_terms",
        "an exact KL at level sequence",
        lambda: kl.kl_terms(with_logits(), "exact_kl", level="sequence"),
    ),
    Case("kl_reward", "a misspelled level", lambda: _ANY.kl_reward(rollout(), beta=0.1, level="tokens")),
    Case("kl_reward", "an exact KL without logits", lambda: kl.kl_reward(rollout(), "exact_kl", beta=0.1)),
    Case(
        "policy_gradient_loss",
        "advantages of another shape",
        lambda: kl.policy_gradient_loss(rollout(), torch.ones(3)),
    ),
    Case(
        "policy_gradient_loss",
        "advantages as a list",
        lambda: _ANY.policy_gradient_loss(rollout(), [1.0, -1.0]),
    ),
    Case("target_loss", "no rewards", lambda: kl.target_loss(rollout(rewards=None))),
    Case("target_loss", "a beta of 0", lambda: kl.target_loss(rollout(), beta=0.0)),
    Case("target_loss", "a misspelled partition", lambda: _ANY.target_loss(rollout(), partition="important")),
    Case("target_loss", "an exact KL", lambda: kl.target_loss(rollout(), "exact_kl")),
    Case("target_loss", "a mask of one number", lambda: _ANY.target_loss(rollout(), mask=0.2)),
    Case("target_loss", "a weight of tokens", lambda: _ANY.target_loss(rollout(), importance="token")),
    Case("log_partition", "a group of one", lambda: kl.log_partition(rollout(**_ALONE), "value_others")),
    Case("log_partition", "one number per token", lambda: kl.log_partition(rollout(), MASK)),
    Case("apa_loss", "no rewards", lambda: kl.apa_loss(rollout(rewards=None))),
    Case("apa_loss", "a negative beta", lambda: kl.apa_loss(rollout(), beta=-1.0)),
    Case("rwr_loss", "no rewards", lambda: kl.rwr_loss(rollout(rewards=None))),
    Case("rwr_loss", "a beta of 0", lambda: kl.rwr_loss(rollout(), beta=0.0)),
    Case(
        "reinforce_loss",
        "a group of one",
        lambda: kl.reinforce_loss(rollout(**_ALONE), centering="leave_one_out"),
    ),
    Case("reinforce_loss", "a misspelled penalty", lambda: kl.reinforce_loss(rollout(), penalty="k11")),
    Case(
        "reinforce_loss", "a misspelled baseline", lambda: _ANY.reinforce_loss(rollout(), centering="group")
    ),
    Case("f_policy_loss", "a misspelled divergence", lambda: kl.f_policy_loss(rollout(), "hellinger")),
    Case(
        "f_policy_loss", "a misspelled direction", lambda: _ANY.f_policy_loss(rollout(), "pearson", "reverse")
    ),
    Case("ppo_mask", "advantages of another shape", lambda: kl.ppo_mask(REWARDS, MASK, 0.2, 0.2)),
    Case("ppo_mask", "a negative eps", lambda: kl.ppo_mask(MASK, MASK, -0.2, 0.2)),
    Case("decompose", "no field", lambda: kl.decompose(LOGP)),
    Case("decompose", "a field of another shape", lambda: kl.decompose(LOGP, kl=LOGP[0])),
    Case("decompose", "fields that depend on one another", lambda: kl.decompose(LOGP, a=LOGP, b=2 * LOGP)),
)
