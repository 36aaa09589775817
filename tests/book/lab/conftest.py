"""The fixtures of all tests of language models, and small worlds of the oracle."""

from __future__ import annotations

import pytest

from tests.support.llm.fixtures import model_cache, sharp, task, tiny

__all__ = ["model_cache", "sharp", "task", "tiny"]


@pytest.fixture(scope="module")
def models():
    """A policy, a reference near it and a sampler nearer still, of four tokens, in float64."""
    from kl_book.lab.oracle import between, oracle_model

    policy, other, third = (oracle_model(4, seed=seed) for seed in range(3))
    return policy, between(policy, other, 0.7), between(policy, third, 0.3)


@pytest.fixture(scope="module")
def on_policy(models):
    """Every completion of three tokens."""
    from kl_book.lab.oracle import enumerate_completions

    return enumerate_completions(*models[:2], 3)


@pytest.fixture(scope="module")
def off_policy(models):
    """Every completion of two tokens, drawn by another policy."""
    from kl_book.lab.oracle import enumerate_completions

    policy, reference, sampler = models
    return enumerate_completions(policy, reference, 2, sampler=sampler)


@pytest.fixture(scope="module")
def nine():
    """Nine completions, for what is enumerated over groups, or for every estimator in every place."""
    from kl_book.lab.oracle import between, enumerate_completions, oracle_model

    policy, reference = (oracle_model(3, seed=seed, hidden=8) for seed in (3, 4))
    return enumerate_completions(policy, between(policy, reference, 0.6), 2)
