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

ESTIMATORS = {"", "exact", "K1", "-K1", "K2", "K3", "ratio x K1"}
KINDS = {"kl", "scaled", "share", "ratio", "entropy", "sigma", "difference", "extreme", "tv", "other"}


def test_the_words_of_the_table():
    for m in METRICS:
        assert m.kind in KINDS, m
        assert m.estimator in ESTIMATORS, m
        assert m.average in AVERAGES, m
        assert m.factor in ("", "beta", "-beta"), m
        assert bool(m.factor) == (m.kind == "scaled"), m


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("kl completion_length", "TRL GRPO 0.14 to 0.15"),
        ("kl completion_length num_tokens clip_ratio", "TRL GRPO 0.16"),
        ("train/kl train/completions/mean_length", "TRL GRPO 0.17+"),
        ("kl completions/mean_length entropy sampling/x", "TRL GRPO 0.23+"),
        ("kl completion_length completions/mean_length", "Unsloth"),
        ("kl global_step/max_steps completions/mean_length", "ms-swift"),
        ("actor/pg_loss actor/entropy_loss critic/kl", "verl 0.1 to 0.3"),
        ("actor/pg_loss actor/entropy rollout_corr/kl", "verl 0.6+"),
        ("objective/kl objective/non_score_reward val/ratio policy/approxkl_avg", "TRL PPO 0.12 to 1.12"),
        ("optim/kl_sample_train_v1", "tinker-cookbook"),
        ("train/tis_abs train/ppo_kl", "slime"),
        ("Generation KL Error", "NeMo-RL"),
        ("Mismatch KL", "prime-rl"),
        ("loss/avg_kl_max", "SkyRL"),
        ("behave_approx_kl", "AReaL"),
        ("objective/kl0_avg", "open-instruct 2025-12+"),
        ("objective/kl_avg", "open-instruct to 2025-12"),
        ("policy_loss kl vllm_kl", "OpenRLHF 0.8+"),
        ("loss my_kl", "no framework that is known here"),
    ],
)
def test_the_framework_by_its_keys(keys, text):
    assert name_release(keys.split(" ") if "KL" not in keys else [keys]).text == text


def test_the_user_decides():
    assert name_release(["x"], "trl grpo", "0.19.1") == Release(
        "TRL GRPO", "0.19.1", "0.19.1", ("Unsloth", "TRL RLOO"), True
    )
    with pytest.raises(ValueError, match="framework is 'tlr', expected one of"):
        name_release(["x"], "tlr")


@pytest.mark.parametrize(
    ("key", "framework", "release", "estimator", "average"),
    [
        ("kl", "TRL GRPO", "0.15.2", "K3", "answers"),
        ("kl", "TRL GRPO", "1.8.3", "K3", "tokens"),
        ("train/kl", "TRL RLOO", "0.22", "K1", "tokens"),
        ("objective/kl1_avg", "open-instruct", "2026-01", "K2", "tokens"),
        ("actor/kl_loss", "verl", "0.6.1", "K3", "tokens"),
        ("approx_kl", "AReaL", "1.0", "-K1", "tokens"),
        ("loss/kl_avg", "open-instruct", "", "K3", "tokens"),
    ],
)
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
