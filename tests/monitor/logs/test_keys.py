"""Which framework and releases a log is of, and what its keys are there."""

import pytest

from kl_companion.monitor.logs.keys import (
    AVERAGES,
    METRICS,
    Release,
    bounds,
    looks_like_kl,
    name_release,
    overlaps,
    plain,
    possible_metrics,
)
from tests.support.data import data

DATA = data(__file__)


ESTIMATORS = {"", "exact", "K1", "-K1", "K2", "K3", "ratio x K1"}
KINDS = {"kl", "scaled", "share", "ratio", "entropy", "sigma", "difference", "extreme", "tv", "other"}


def test_the_words_of_the_table():
    for m in METRICS:
        assert m.kind in KINDS, m
        assert m.estimator in ESTIMATORS, m
        assert m.average in AVERAGES, m
        assert m.factor in ("", "beta", "-beta"), m
        assert bool(m.factor) == (m.kind == "scaled"), m


@pytest.mark.parametrize(("keys", "text"), DATA["the_framework_by_its_keys"])
def test_the_framework_by_its_keys(keys, text):
    assert name_release(keys.split(" ") if "KL" not in keys else [keys]).text == text


def test_the_user_decides():
    assert name_release(["x"], "trl grpo", "0.19.1") == Release(
        "TRL GRPO", "0.19.1", "0.19.1", ("Unsloth", "TRL RLOO"), True
    )
    with pytest.raises(ValueError, match="framework is 'tlr', expected one of"):
        name_release(["x"], "tlr")


@pytest.mark.parametrize(("key", "framework", "release", "estimator", "average"), DATA["a_key_in_a_release"])
def test_a_key_in_a_release(key, framework, release, estimator, average):
    metric = possible_metrics(key, Release(framework, release, release, chosen=True))[0]
    assert (metric.estimator, metric.average) == (estimator, average)


def test_releases():
    assert bounds("0.16-1.8") == ("0.16", "1.8")
    assert bounds("2025-12+") == ("2025-12", "")
    assert bounds("before 2025-12") == ("", "2025-12")
    assert overlaps("0.16-1.8", "1.8.2", "1.8.2")
    assert not overlaps("0.16-1.8", "1.9", "")
    assert not overlaps("1.9+", "1.8.2", "1.8.2")


def test_names():
    assert plain("completions / mean_length") == "completions/mean_length"
    assert plain("train/train_rollout_logprob_abs_diff") == "train_rollout_logprob_abs_diff"
    assert plain("train_kl") == "kl"
    yes = ["my_kl", "kl_loss", "actor/token_kl/mean", "k3", "approxkl", "policy/kl_div"]
    no = ["kl_coef", "kl_loss_coef", "weekly", "loss", "kl/max", "init_kl_beta", "klm"]
    assert [looks_like_kl(x) for x in yes] == [True] * len(yes)
    assert [x for x in no if looks_like_kl(x)] == []
