"""The record of a KL term: what it fills in, and every pair of choices that it refuses."""

from __future__ import annotations

from kl_companion.estimators.registry import ESTIMATORS
from kl_companion.kl_term import KLTerm, as_term


def test_a_name_is_a_term_in_the_loss() -> None:
    assert as_term("k3") == KLTerm("k3", "loss", "token", "auto", "detached", None, 1.0)
    assert as_term(ESTIMATORS["k3"]).entry is ESTIMATORS["k3"]
    term = KLTerm("k1", "reward")
    assert as_term(term) is term
    assert (KLTerm("k2").scope, KLTerm("exact_kl").scope, term.scope) == ("token", None, None)
    assert KLTerm("k2", level="sequence").scope == "sequence"
    assert not KLTerm("k2").needs_logits
    assert KLTerm("top_k_reverse_kl(2)").needs_logits
