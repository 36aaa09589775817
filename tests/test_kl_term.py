"""The record of a KL term: what it fills in, and every pair of choices that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

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


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"estimator": "exact_k"}, "Did you mean 'exact_kl'"),
        ({"estimator": "k33", "placement": "reward"}, "unknown estimator 'k33'"),
        ({"placement": "bath"}, "unknown placement 'bath'. Did you mean 'both'"),
        ({"level": "word"}, "unknown level"),
        ({"ratio": "both"}, "unknown ratio"),
        ({"importance": "both"}, "unknown importance"),
        ({"placement": "reward", "credit": 1.5}, "credit is 1.5"),
        ({"estimator": "exact_kl", "placement": "reward", "credit": 0.0}, "its gradient is zero"),
        ({"credit": 0.5}, "expected 'reward' and 'token'"),
        ({"placement": "reward", "importance": "token"}, "the policy gradient brings its own ratio"),
        ({"placement": "reward", "clip": (0.0, 2.0)}, "the policy gradient brings its own ratio"),
        ({"estimator": "exact_kl", "level": "sequence"}, "expected a sampled estimator"),
        (
            {"level": "sequence", "importance": "token"},
            "='token': expected importance None or 'sequence'",
        ),
        ({"importance": None, "ratio": "attached"}, "ratio='attached', clip=None got importance=None"),
        ({"estimator": "exact_kl", "clip": (0.0, 2.0)}, "got importance=None: .* the scope of the ratio"),
        ({"estimator": "top_k_reverse_kl(2)", "importance": "prefix"}, "the sampled tail only"),
        ({"estimator": "top_k_reverse_kl(2)", "ratio": "attached"}, "the sampled tail only"),
        ({"estimator": "top_k_reverse_kl(2)", "placement": "score"}, "credit=1.0: expected .* no credit"),
        ({"estimator": "top_k_forward_kl(2)", "level": "sequence"}, "reads next-token distributions"),
        ({"placement": "score", "importance": None, "ratio": "attached"}, "got importance=None"),
        ({"placement": "both", "importance": None, "clip": (0.5, 2.0)}, "got importance=None"),
        ({"placement": "both", "level": "sequence"}, "placement='both', .* expected 'token'"),
        ({"placement": "score", "level": "sequence"}, "placement='score', .* or no credit"),
        ({"placement": "reward", "ratio": "attached"}, "the policy gradient brings its own ratio"),
        ({"placement": "reward", "level": "sequence", "credit": 0.5}, "expected 'reward' and 'token'"),
        ({"level": "sequence", "importance": "prefix"}, "got importance='prefix': expected importance None"),
        ({"credit": "all"}, "credit is 'all', expected a number"),
        ({"credit": float("nan")}, "credit is nan, expected a number from 0 to 1"),
        ({"clip": (2.0, 1.0)}, r"clip is \(2.0, 1.0\), expected \(lowest, highest\)"),
        ({"missing": "skip"}, "unknown missing 'skip'"),
        ({"estimator": 3}, "estimator is 3, expected a name or a function"),
    ],
)
def test_choices_that_do_not_go_together(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KLTerm(**choices)
