"""Bad input to estimators, divergences and their registers."""

from __future__ import annotations

from functools import partial

import sympy
import torch

import kl_companion as kl
from kl_companion.divergences import T
from kl_companion.refusals.case import Case
from kl_companion.refusals.samples import ALL, DISJOINT, HEAD, LOGITS, LOGP, MASK, REF_ALL, REF_LOGP, TOKENS

_SAMPLED = ("k1", "k2", "k3", "k3_plus_plus", "k4", "k5")
_EXACT = ("exact_kl", "exact_forward_kl")
_TOP_K = ("top_k_reverse_kl", "top_k_forward_kl")


def _of_sampled(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        Case(name, "[batch, seq] against [batch, seq, vocab]", partial(fn, LOGP, REF_ALL)),
        Case(name, "lengths that are shifted by one", partial(fn, LOGP[:, 1:], REF_LOGP)),
        Case(name, "a list instead of a tensor", partial(fn, LOGP.tolist(), REF_LOGP.tolist())),
        Case(name, "integers where floats are needed", partial(fn, TOKENS, TOKENS)),
    )


def _of_rows(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        Case(name, "logits instead of log-probs", partial(fn, LOGITS, REF_ALL)),
        Case(name, "probabilities instead of log-probs", partial(fn, ALL.exp(), REF_ALL.exp())),
        Case(name, "log-probs of sampled tokens instead of whole rows", partial(fn, LOGP, REF_LOGP)),
        Case(name, "two vocabularies", partial(fn, ALL, REF_ALL[..., :4].log_softmax(-1))),
        Case(name, "disjoint supports, an infinite divergence", partial(fn, *DISJOINT)),
        Case(name, "a list instead of a tensor", partial(fn, ALL.tolist(), REF_ALL)),
    )


def _of_head(name: str) -> tuple[Case, ...]:
    fn = getattr(kl, name)
    return (
        Case(name, "logits instead of log-probs", partial(fn, LOGITS, REF_ALL, TOKENS, k=2)),
        Case(name, "k beyond the vocabulary", partial(fn, ALL, REF_ALL, TOKENS, k=9)),
        Case(name, "neither k nor indices", partial(fn, ALL, REF_ALL, TOKENS)),
        Case(name, "a token id out of the vocabulary", partial(fn, ALL, REF_ALL, TOKENS + 1, k=2)),
        Case(name, "tokens of int32", partial(fn, ALL, REF_ALL, TOKENS.int(), k=2)),
        Case(name, "a misspelled form", partial(fn, ALL, REF_ALL, TOKENS, k=2, form="bregmann")),
    )


def _registered(name: str) -> object:
    return kl.register_estimator(name, target="reverse_kl", source="a page")(_registered)


CASES = (
    *(case for name in _SAMPLED for case in _of_sampled(name)),
    Case("k_lambda", "a word where a number is needed", lambda: kl.k_lambda("half")),
    Case("k_lambda", "[batch, seq] against [batch, seq, vocab]", lambda: kl.k_lambda(0.5)(LOGP, REF_ALL)),
    Case("kf_plus_plus", "a misspelled divergence", lambda: kl.kf_plus_plus("pearsson")),
    Case("kf_plus_plus", "a misspelled form", lambda: kl.kf_plus_plus("pearson", "generics")),
    Case(
        "kf_plus_plus",
        "[batch, seq] against [batch, seq, vocab]",
        lambda: kl.kf_plus_plus("pearson")(LOGP, REF_ALL),
    ),
    *(case for name in _EXACT for case in _of_rows(name)),
    Case("f_divergence", "a misspelled divergence", lambda: kl.f_divergence("pearsons", ALL, REF_ALL)),
    Case("f_divergence", "a number for a name", lambda: kl.f_divergence(2, ALL, REF_ALL)),
    Case("f_divergence", "logits instead of log-probs", lambda: kl.f_divergence("pearson", LOGITS, REF_ALL)),
    Case("f_divergence", "disjoint supports", lambda: kl.f_divergence("pearson", *DISJOINT)),
    *(case for name in _TOP_K for case in _of_head(name)),
    Case(
        "top_k_f_divergence",
        "a misspelled divergence",
        lambda: kl.top_k_f_divergence("neymann", ALL, REF_ALL, TOKENS, k=2),
    ),
    Case(
        "top_k_f_divergence",
        "tokens of another shape",
        lambda: kl.top_k_f_divergence("neyman", ALL, REF_ALL, TOKENS[:, 1:], k=2),
    ),
    Case(
        "top_k_f_divergence",
        "a head that holds a token twice",
        lambda: kl.top_k_f_divergence("neyman", ALL, REF_ALL, TOKENS, indices=HEAD * 0),
    ),
    Case(
        "top_k_f_divergence",
        "the sampler's head without the sampler",
        lambda: kl.top_k_f_divergence("neyman", ALL, REF_ALL, TOKENS, k=2, head_from="sampler"),
    ),
    Case(
        "top_k_f_divergence",
        "a negative weight of the tail",
        lambda: kl.top_k_f_divergence("neyman", ALL, REF_ALL, TOKENS, k=2, tail_weight=-MASK),
    ),
    Case("truncated_kl", "logits instead of log-probs", lambda: kl.truncated_kl(LOGITS, REF_ALL, k=2)),
    Case("truncated_kl", "k beyond the vocabulary", lambda: kl.truncated_kl(ALL, REF_ALL, k=9)),
    Case("truncated_kl", "k and indices", lambda: kl.truncated_kl(ALL, REF_ALL, k=2, indices=HEAD)),
    Case(
        "truncated_f_divergence",
        "a misspelled divergence",
        lambda: kl.truncated_f_divergence("revers_kl", ALL, REF_ALL, k=2),
    ),
    Case(
        "truncated_f_divergence",
        "a list instead of a tensor",
        lambda: kl.truncated_f_divergence("reverse_kl", ALL.tolist(), REF_ALL, k=2),
    ),
    Case("TopK", "a k that is no whole number", lambda: kl.TopK(kl.DIVERGENCES["pearson"], 2.5)),
    Case(
        "TopK",
        "an unknown owner of the head",
        lambda: kl.TopK(kl.DIVERGENCES["pearson"], 2, head_from="teacher"),
    ),
    Case("TopK", "a name instead of a divergence", lambda: kl.TopK("pearson", 2)),
    Case("get_estimator", "a misspelled name", lambda: kl.get_estimator("k33")),
    Case("get_estimator", "a function instead of a name", lambda: kl.get_estimator(kl.k3)),
    Case("get_estimator", "a family's member without a number", lambda: kl.get_estimator("k_lambda(half)")),
    Case("get_divergence", "a misspelled name", lambda: kl.get_divergence("reversed_kl")),
    Case("get_divergence", "None for a name", lambda: kl.get_divergence(None)),
    Case("get_divergence", "a family's member without a number", lambda: kl.get_divergence("amari_alpha(x)")),
    Case("amari_alpha", "a word where a number is needed", lambda: kl.amari_alpha("half")),
    Case("amari_alpha", "a tensor where a number is needed", lambda: kl.amari_alpha(torch.ones(2))),
    Case("power_divergence", "a word where a number is needed", lambda: kl.power_divergence("two")),
    Case("power_divergence", "a tensor where a number is needed", lambda: kl.power_divergence(torch.ones(2))),
    Case(
        "register_divergence", "f(1) is not 0", lambda: kl.register_divergence("bad", T**2, source="a page")
    ),
    Case(
        "register_divergence", "not convex", lambda: kl.register_divergence("bad", 1 - T**2, source="a page")
    ),
    Case(
        "register_divergence",
        "another symbol than t",
        lambda: kl.register_divergence("bad", sympy.Symbol("x") - 1, source="a page"),
    ),
    Case(
        "register_divergence",
        "a kink without its slope",
        lambda: kl.register_divergence("bad", abs(T - 1), source="a page"),
    ),
    Case(
        "register_divergence",
        "a name that is taken",
        lambda: kl.register_divergence("reverse_kl", -sympy.log(T), source="a page"),
    ),
    Case("register_estimator", "a name that is taken", lambda: _registered("k3")),
    Case(
        "register_estimator",
        "an unknown target",
        lambda: kl.register_estimator("mine", target="reverse", source="a page"),
    ),
    Case(
        "register_estimator",
        "unknown inputs",
        lambda: kl.register_estimator("mine", target="reverse_kl", source="a page", inputs="logits"),
    ),
)
