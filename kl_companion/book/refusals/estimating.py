"""Bad input to estimators, divergences and their registers."""

from __future__ import annotations

import sympy
import torch

from kl_companion.book.names import kl
from kl_companion.book.refusals.case import Case, bad
from kl_companion.book.refusals.samples import (
    ALL,
    DISJOINT,
    HEAD,
    LOGITS,
    LOGP,
    MASK,
    REF_ALL,
    REF_LOGP,
    TOKENS,
)
from kl_companion.divergences import T

_SAMPLED = ("k1", "k2", "k3", "k3_plus_plus", "k4", "k5")
_EXACT = ("exact_kl", "exact_forward_kl")
_TOP_K = ("top_k_reverse_kl", "top_k_forward_kl")


def _of_sampled(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        bad("[batch, seq] against [batch, seq, vocab]", fn, LOGP, REF_ALL),
        bad("lengths that are shifted by one", fn, LOGP[:, 1:], REF_LOGP),
        bad("a list instead of a tensor", fn, LOGP.tolist(), REF_LOGP.tolist()),
        bad("integers where floats are needed", fn, TOKENS, TOKENS),
    )


def _of_rows(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        bad("logits instead of log-probs", fn, LOGITS, REF_ALL, validate=True),
        bad("probabilities instead of log-probs", fn, ALL.exp(), REF_ALL.exp(), validate=True),
        bad("log-probs of sampled tokens instead of whole rows", fn, LOGP, REF_LOGP, validate=True),
        bad("two vocabularies", fn, ALL, REF_ALL[..., :4].log_softmax(-1)),
        bad("disjoint supports, an infinite divergence", fn, *DISJOINT, validate=True),
        bad("a list instead of a tensor", fn, ALL.tolist(), REF_ALL),
    )


def _of_head(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        bad("logits instead of log-probs", fn, LOGITS, REF_ALL, TOKENS, k=2, validate=True),
        bad("k beyond the vocabulary", fn, ALL, REF_ALL, TOKENS, k=9),
        bad("neither k nor indices", fn, ALL, REF_ALL, TOKENS),
        bad("a token id out of the vocabulary", fn, ALL, REF_ALL, TOKENS + 1, k=2, validate=True),
        bad("tokens of int32", fn, ALL, REF_ALL, TOKENS.int(), k=2),
        bad("a misspelled form", fn, ALL, REF_ALL, TOKENS, k=2, form="bregmann"),
    )


def _registered(name: str) -> object:
    return kl.register_estimator(name, target="reverse_kl", source="a page")(_registered)


CASES = (
    *(case for name in _SAMPLED for case in _of_sampled(name)),
    bad("a word where a number is needed", kl.k_lambda, "half"),
    Case("k_lambda", "[batch, seq] against [batch, seq, vocab]", lambda: kl.k_lambda(0.5)(LOGP, REF_ALL)),
    bad("a misspelled divergence", kl.kf_plus_plus, "pearsson"),
    bad("a misspelled form", kl.kf_plus_plus, "pearson", "generics"),
    Case(
        "kf_plus_plus",
        "[batch, seq] against [batch, seq, vocab]",
        lambda: kl.kf_plus_plus("pearson")(LOGP, REF_ALL),
    ),
    *(case for name in _EXACT for case in _of_rows(name)),
    bad("a misspelled divergence", kl.f_divergence, "pearsons", ALL, REF_ALL),
    bad("a number for a name", kl.f_divergence, 2, ALL, REF_ALL),
    bad("logits instead of log-probs", kl.f_divergence, "pearson", LOGITS, REF_ALL, validate=True),
    bad("disjoint supports", kl.f_divergence, "pearson", *DISJOINT, validate=True),
    *(case for name in _TOP_K for case in _of_head(name)),
    bad("a misspelled divergence", kl.top_k_f_divergence, "neymann", ALL, REF_ALL, TOKENS, k=2),
    bad("tokens of another shape", kl.top_k_f_divergence, "neyman", ALL, REF_ALL, TOKENS[:, 1:], k=2),
    bad(
        "a head that holds a token twice",
        kl.top_k_f_divergence,
        "neyman",
        ALL,
        REF_ALL,
        TOKENS,
        indices=HEAD * 0,
        validate=True,
    ),
    bad(
        "the sampler's head without the sampler",
        kl.top_k_f_divergence,
        "neyman",
        ALL,
        REF_ALL,
        TOKENS,
        k=2,
        head_from="sampler",
    ),
    bad(
        "a negative weight of the tail",
        kl.top_k_f_divergence,
        "neyman",
        ALL,
        REF_ALL,
        TOKENS,
        k=2,
        tail_weight=-MASK,
        validate=True,
    ),
    bad("logits instead of log-probs", kl.truncated_kl, LOGITS, REF_ALL, k=2, validate=True),
    bad("k beyond the vocabulary", kl.truncated_kl, ALL, REF_ALL, k=9),
    bad("k and indices", kl.truncated_kl, ALL, REF_ALL, k=2, indices=HEAD),
    bad("a misspelled divergence", kl.truncated_f_divergence, "revers_kl", ALL, REF_ALL, k=2),
    bad("a list instead of a tensor", kl.truncated_f_divergence, "reverse_kl", ALL.tolist(), REF_ALL, k=2),
    bad("a k that is no whole number", kl.TopK, kl.DIVERGENCES["pearson"], 2.5),
    bad("an unknown owner of the head", kl.TopK, kl.DIVERGENCES["pearson"], 2, head_from="teacher"),
    bad("a name instead of a divergence", kl.TopK, "pearson", 2),
    bad("a misspelled name", kl.get_estimator, "k33"),
    bad("a function instead of a name", kl.get_estimator, kl.k3),
    bad("a family's member without a number", kl.get_estimator, "k_lambda(half)"),
    bad("a misspelled name", kl.get_divergence, "reversed_kl"),
    bad("None for a name", kl.get_divergence, None),
    bad("a family's member without a number", kl.get_divergence, "amari_alpha(x)"),
    bad("a word where a number is needed", kl.amari_alpha, "half"),
    bad("a tensor where a number is needed", kl.amari_alpha, torch.ones(2)),
    bad("a word where a number is needed", kl.power_divergence, "two"),
    bad("a tensor where a number is needed", kl.power_divergence, torch.ones(2)),
    bad("f(1) is not 0", kl.register_divergence, "bad", T**2, source="a page"),
    bad("not convex", kl.register_divergence, "bad", 1 - T**2, source="a page"),
    bad("another symbol than t", kl.register_divergence, "bad", sympy.Symbol("x") - 1, source="a page"),
    bad("a kink without its slope", kl.register_divergence, "bad", abs(T - 1), source="a page"),
    bad("a name that is taken", kl.register_divergence, "reverse_kl", -sympy.log(T), source="a page"),
    Case("register_estimator", "a name that is taken", lambda: _registered("k3")),
    bad("an unknown target", kl.register_estimator, "mine", target="reverse", source="a page"),
    bad(
        "unknown inputs", kl.register_estimator, "mine", target="reverse_kl", source="a page", inputs="logits"
    ),
)
