"""Bad input to the functions that read raw logits, or hidden states and an output layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kl_companion.book.names import kl
from kl_companion.book.refusals.case import Case, bad
from kl_companion.book.refusals.samples import (
    BATCH,
    HIDDEN,
    LOGITS,
    LOGP,
    MASK,
    REF_LOGITS,
    REF_LOGP,
    SEQ,
    TOKENS,
    WEIGHT,
)

_HEAD = torch.tensor([0, 1]).expand(BATCH, SEQ, 2)
_HEAD_LOGP = torch.full((BATCH, SEQ, 2), -1.0)


def _divergence(name: str, *first: str) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), *first)
    off = REF_LOGITS.masked_fill(torch.arange(5) == 0, -torch.inf)
    disjoint = partial(fn, LOGITS.masked_fill(off > -torch.inf, -torch.inf), off, validate=True)
    return (
        Case(name, "two vocabularies", partial(fn, LOGITS, REF_LOGITS[..., :4])),
        Case(name, "a temperature of 0", partial(fn, LOGITS, REF_LOGITS, temperature=0)),
        Case(name, "a temperature in words", partial(fn, LOGITS, REF_LOGITS, temperature="low")),
        Case(name, "integers where floats are needed", partial(fn, LOGITS.long(), REF_LOGITS)),
        Case(name, "weights of another shape", partial(fn, LOGITS, REF_LOGITS, weights=torch.ones(3))),
        Case(name, "disjoint supports, to be validated", disjoint),
        Case(name, "a mask of another shape", partial(fn, LOGITS, REF_LOGITS, mask=MASK[0])),
        Case(name, "a scale of 0", partial(fn, LOGITS, REF_LOGITS, logit_scale=0)),
        Case(
            name,
            "a parameter, overwritten",
            partial(fn, LOGITS.clone().requires_grad_(), REF_LOGITS, inplace=True),
        ),
    )


def _of_tokens(name: str, *scores: torch.Tensor) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), *scores)
    return (
        Case(name, "tokens of int32", partial(fn, TOKENS.int())),
        Case(name, "a token id out of the vocabulary", partial(fn, TOKENS - 1, validate=True)),
        Case(name, "lengths that are shifted by one", partial(fn, TOKENS[:, 1:])),
        Case(name, "a temperature of 0", partial(fn, TOKENS, temperature=0)),
    )


def _linear(name: str, *first: str) -> tuple[Case, ...]:
    fn: Any = partial(getattr(kl, name), *first)
    good = {"ref_hidden": HIDDEN, "ref_weight": WEIGHT}
    return (
        Case(name, "no teacher", partial(fn, HIDDEN, WEIGHT)),
        Case(name, "hidden states of another width", partial(fn, HIDDEN[..., :4], WEIGHT, **good)),
        Case(
            name,
            "a teacher of another vocabulary",
            partial(fn, HIDDEN, WEIGHT, ref_logits=REF_LOGITS[..., :4]),
        ),
        Case(
            name,
            "a teacher that is trained",
            partial(fn, HIDDEN, WEIGHT, ref_logits=REF_LOGITS.clone().requires_grad_()),
        ),
        Case(name, "two dtypes", partial(fn, HIDDEN.double(), WEIGHT, **good)),
        Case(name, "an unknown memory", partial(fn, HIDDEN, WEIGHT, **good, memory="slow")),
        Case(name, "a soft cap of 0", partial(fn, HIDDEN, WEIGHT, **good, soft_cap=0.0)),
    )


def _given_head(name: str, *scores: torch.Tensor) -> tuple[Case, ...]:
    fn = partial(getattr(kl, name), "reverse_kl", *scores)
    return (
        Case(name, "a head of int32", partial(fn, TOKENS, _HEAD.int(), _HEAD_LOGP, REF_LOGP)),
        Case(name, "log-probs of another head", partial(fn, TOKENS, _HEAD, _HEAD_LOGP[..., :1], REF_LOGP)),
        Case(
            name,
            "logits instead of log-probs",
            partial(fn, TOKENS, _HEAD, -_HEAD_LOGP, REF_LOGP, validate=True),
        ),
        Case(name, "tokens of another shape", partial(fn, TOKENS[:, 1:], _HEAD, _HEAD_LOGP, REF_LOGP)),
        Case(
            name,
            "a weight of the tail of another shape",
            partial(fn, TOKENS, _HEAD, _HEAD_LOGP, REF_LOGP, tail_weight=MASK[0]),
        ),
    )


CASES = (
    *_divergence("fused_f_divergence", "pearson"),
    bad("a misspelled divergence", kl.fused_f_divergence, "reverse_lk", LOGITS, REF_LOGITS),
    *_divergence("fused_kl"),
    *_divergence("fused_forward_kl"),
    *_of_tokens("fused_logp", LOGITS),
    bad("log-probs [batch, seq] for logits", kl.fused_logp, LOGP, TOKENS, validate=True),
    bad(
        "a masked token, to be validated",
        kl.fused_logp,
        LOGITS.masked_fill(torch.arange(5) == 0, -torch.inf),
        TOKENS,
        validate=True,
    ),
    bad("expanded logits, overwritten", kl.fused_logp, LOGITS[:1].expand(2, -1, -1), TOKENS, inplace=True),
    *_of_tokens("fused_logp_and_entropy", LOGITS),
    *_given_head("fused_top_k_f_divergence", LOGITS),
    *_linear("linear_f_divergence", "pearson"),
    *_linear("linear_kl"),
    *_linear("linear_forward_kl"),
    *_of_tokens("linear_logp", HIDDEN, WEIGHT),
    bad("an output layer that is transposed", kl.linear_logp, HIDDEN, WEIGHT[:, :4], TOKENS),
    *_of_tokens("linear_logp_and_entropy", HIDDEN, WEIGHT),
    *_given_head("linear_top_k_f_divergence", HIDDEN, WEIGHT),
)
