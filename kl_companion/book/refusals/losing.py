"""Bad input to a rollout, to what is computed from it, and to losses."""

from __future__ import annotations

import torch

from kl_companion.book.names import kl
from kl_companion.book.refusals.case import Case, bad
from kl_companion.book.refusals.samples import (
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
    bad("a token id out of the vocabulary", kl.Rollout.from_logits, TOKENS + 1, MASK, LOGITS, REF_LOGITS),
    bad("log-probs [batch, seq] for logits", kl.Rollout.from_logits, TOKENS, MASK, LOGP, LOGP),
    bad("tokens of int32", kl.Rollout.from_logits, TOKENS.int(), MASK, LOGITS, REF_LOGITS),
    bad("logits of integers", kl.Rollout.from_logits, TOKENS, MASK, LOGITS.long(), REF_LOGITS.long()),
    Case("Rollout.logp_all", "a rollout without logits", lambda: rollout().logp_all),
    bad("a misspelled aggregation", kl.aggregate, LOGP, MASK, "mean_sequence"),
    bad("a constant without its length", kl.aggregate, LOGP, MASK, "constant"),
    bad("a length that nothing reads", kl.aggregate, LOGP, MASK, "sum", length=3),
    bad("a length of 0", kl.aggregate, LOGP, MASK, "constant", length=0),
    bad("lengths that are shifted by one", kl.aggregate, LOGP[:, 1:], MASK),
    bad("a discount above 1", kl.credit, LOGP, MASK, discount=1.5),
    bad("one number per sequence", kl.credit, REWARDS, MASK),
    bad("a group of one", kl.center, REWARDS, torch.tensor([0, 1])),
    bad("a misspelled baseline", kl.center, REWARDS, PROMPTS, "leave-one-out"),
    bad("rewards per token", kl.center, MASK, TOKENS),
    bad("rewards as a list", kl.center, [1.0, 0.0], PROMPTS),
    bad("a group of one", kl.leave_one_out, REWARDS, torch.tensor([0, 1])),
    bad("an index of another length", kl.leave_one_out, REWARDS, PROMPTS[:1]),
    bad("a misspelled scope", kl.importance_ratio, rollout(), scope="tokens"),
    bad("a clip with low > high", kl.importance_ratio, rollout(), scope="token", clip=(1.2, 0.8)),
    bad("a clip of one number", kl.importance_ratio, rollout(), scope="token", clip=0.2),
    Case("importance_ratio", "tokens that are never sampled", _never),
    bad("a misspelled scope", kl.importance_weight, rollout(), scope="seq"),
    bad(
        "an unknown choice for missing support",
        kl.importance_weight,
        rollout(),
        scope="token",
        missing="skip",
    ),
    bad("a misspelled estimator", kl.per_token, "k33", rollout()),
    bad("whole rows of a rollout without logits", kl.per_token, "exact_kl", rollout()),
    bad("a number for an estimator", kl.per_token, 3, rollout()),
    bad("a misspelled estimator", kl.kl_loss, rollout(), "k_3"),
    bad("a misspelled level", kl.kl_loss, rollout(), level="sentence"),
    bad("a misspelled aggregation", kl.kl_loss, rollout(), how="mean"),
    bad("a clip without a ratio", kl.kl_loss, rollout(), importance=None, clip=(0.8, 1.2)),
    bad("a mean over tokens of sequences", kl.kl_loss, rollout(), level="sequence", how="token_mean"),
    bad("a dict for the rollout", kl.kl_loss, {"logp": LOGP}),
    bad(
        "a top-k tail weighted by sequences",
        kl.kl_loss,
        with_logits(),
        "top_k_reverse_kl(2)",
        importance="sequence",
    ),
    bad("an aggregation that couples sequences", kl.kl_terms, rollout(), how="token_mean"),
    bad("an exact KL at level sequence", kl.kl_terms, with_logits(), "exact_kl", level="sequence"),
    bad("a misspelled level", kl.kl_reward, rollout(), beta=0.1, level="tokens"),
    bad("an exact KL without logits", kl.kl_reward, rollout(), "exact_kl", beta=0.1),
    bad("advantages of another shape", kl.policy_gradient_loss, rollout(), torch.ones(3)),
    bad("advantages as a list", kl.policy_gradient_loss, rollout(), [1.0, -1.0]),
    bad("no rewards", kl.target_loss, rollout(rewards=None)),
    bad("a beta of 0", kl.target_loss, rollout(), beta=0.0),
    bad("a misspelled partition", kl.target_loss, rollout(), partition="important"),
    bad("an exact KL", kl.target_loss, rollout(), "exact_kl"),
    bad("a mask of one number", kl.target_loss, rollout(), mask=0.2),
    bad("a weight of tokens", kl.target_loss, rollout(), importance="token"),
    bad("a group of one", kl.log_partition, rollout(**_ALONE), "value_others"),
    bad("one number per token", kl.log_partition, rollout(), MASK),
    bad("no rewards", kl.apa_loss, rollout(rewards=None)),
    bad("a negative beta", kl.apa_loss, rollout(), beta=-1.0),
    bad("no rewards", kl.rwr_loss, rollout(rewards=None)),
    bad("a beta of 0", kl.rwr_loss, rollout(), beta=0.0),
    bad("a group of one", kl.reinforce_loss, rollout(**_ALONE), centering="leave_one_out"),
    bad("a misspelled penalty", kl.reinforce_loss, rollout(), penalty="k11"),
    bad("a misspelled baseline", kl.reinforce_loss, rollout(), centering="group"),
    bad("a misspelled divergence", kl.f_policy_loss, rollout(), "hellinger"),
    bad("a misspelled direction", kl.f_policy_loss, rollout(), "pearson", "reverse"),
    bad("advantages of another shape", kl.ppo_mask, REWARDS, MASK, 0.2, 0.2),
    bad("a negative eps", kl.ppo_mask, MASK, MASK, -0.2, 0.2),
    bad("no field", kl.decompose, LOGP),
    bad("a field of another shape", kl.decompose, LOGP, kl=LOGP[0]),
    bad("fields that depend on one another", kl.decompose, LOGP, a=LOGP, b=2 * LOGP),
)
