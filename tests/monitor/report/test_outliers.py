"""Single values that stand out: which token it is, on which side, and how much of the number it makes."""

import math

import pytest

from kl_companion.monitor.report import outliers, read_run
from tests.support import monitored_runs as runs


def token(log_ratio, logp, word="<tool>"):
    return {
        "answer": 2,
        "position": 9,
        "token": word,
        "before": "call ",
        "log_ratio": log_ratio,
        "logp": logp,
        "ref_logp": logp - log_ratio,
    }


def one(tmp_path, row, tokens, rule, **settings):
    rows = runs.healthy()
    rows[20] |= row
    said = [{"step": r["step"], "tokens": tokens if r is rows[20] else []} for r in rows]
    return rule(read_run(runs.write(tmp_path, rows, settings, said)))


def test_a_token_that_the_reference_never_says(tmp_path):
    found = one(tmp_path, {"largest_log_ratio": 31.0}, [token(31.0, -0.1)], outliers.impossible_token)
    assert found.says == 'A token has a log-ratio of 31 nats at step 210: "<tool>".'
    assert "with probability 0.9, the reference 1 in 32 trillion" in found.why
    assert "a mask of logits that only one of them gets" in found.todo


def test_a_token_that_the_policy_never_says_is_no_sample_of_it(tmp_path):
    row = {"largest_log_ratio": 21.0, "logged": 1.6e5}
    found = one(tmp_path, row, [token(-21.0, -21.7)], outliers.impossible_token)
    assert "though the policy gives it the probability 1 in 2.7 billion and the reference 0.5" in found.why
    assert "The logged number is 160,000 there" in found.why
    assert "shifted by one position" in found.todo


def test_what_can_be_chance_is_no_impossible_token(tmp_path):
    assert one(tmp_path, {"largest_log_ratio": 19.9}, [], outliers.impossible_token) is None


@pytest.mark.parametrize(
    ("row", "said", "why"),
    [
        (
            {"logged": math.nan, "loss": math.nan},
            "the logged number is NaN and the loss is NaN",
            "are in order",
        ),
        ({"logged": math.inf, "largest_log_ratio": 90.0}, "is infinity", "overflows in any precision"),
        ({"logged": math.inf, "largest_log_ratio": 12.0}, "is infinity", "overflows in float16"),
        ({"kl": math.inf}, "the exact KL is infinity", "gives a token no probability"),
    ],
)
def test_what_is_no_number(tmp_path, row, said, why):
    found = one(tmp_path, row, [], outliers.not_a_number)
    assert found.says.startswith("At step 210 the ")
    assert said in found.says
    assert why in found.why
    assert (found.level, found.step) == ("wrong", 210)


def test_a_jump_is_measured_by_the_estimators_own_formula(tmp_path):
    # K1 of one token of 5 nats in 1000 tokens is 0.005 of the 0.008; the median of the others is far below
    rows = runs.changed(lambda _i, _r: {"logged": 0.001, "tokens": 1000})
    rows[20] |= {"logged": 0.008, "largest_log_ratio": 5.0}
    said = [{"step": rows[20]["step"], "tokens": [token(5.0, -0.2)]}]
    found = outliers.spike(read_run(runs.write(tmp_path, rows, {"estimator": "k1"}, said)))
    assert found.says == (
        "At step 210 the logged number jumps to 0.008, 8 times the usual: 1 of 1,000 tokens make 62 % of it."
    )
    # K2 of it is 12.5, more than all; K3 of it is 4.01, half of the number
    assert "make 50 % of it" in outliers.spike(read_run(runs.write(tmp_path, rows, {}, said))).says
    rows[20]["logged"] = 0.0039
    assert outliers.spike(read_run(runs.write(tmp_path, rows, {"estimator": "k1"}, said))) is None


def test_a_jump_of_all_tokens_is_none_of_few(tmp_path):
    assert one(tmp_path, {"logged": 0.5}, [token(2.0, -0.2)], outliers.spike) is None


@pytest.mark.parametrize(("share", "level"), [(0.009, None), (0.02, "attention"), (0.2, "wrong")])
def test_a_dead_zone_by_its_size(tmp_path, share, level):
    run = read_run(
        runs.write(tmp_path, runs.changed(lambda _i, _r: {"dead_zone": share}), {"clamp": [None, 5]})
    )
    found = outliers.dead_zone(run)
    assert (found and found.level) == level
    assert not found or "to […, 5] leaves" in found.says


@pytest.mark.parametrize(("times", "low", "found"), [(5, 4.0, True), (3, 2.5, False), (5, 0.9, False)])
def test_a_jump_of_the_exact_kl_is_measured_by_its_neighbors(tmp_path, times, low, found):
    # the KL grows fivefold over the run, which is no jump
    rows = runs.changed(lambda i, _: {"kl": 0.01 * (1 + i / 10), "kl_low": 0.009, "kl_high": 0.06})
    usual = rows[25]["kl"]
    rows[25] |= {"kl": times * usual, "kl_low": low * usual}
    seen = outliers.jump(read_run(runs.write(tmp_path, rows)))
    assert (seen is not None) == found
    assert (
        not seen or seen.says == "At step 260 the exact KL jumps to 0.175, 4.9 times that of its neighbors."
    )


def test_what_is_usual_leaves_the_observation_itself_out(tmp_path):
    rows = runs.changed(lambda i, _: {"kl": float(i)}, count=13)
    seen = outliers.usual(read_run(runs.write(tmp_path, rows)), "kl")
    assert (seen[0], seen[6], seen[12]) == (3.0, 7.0, 9.0)


def test_few_observations_have_no_jump(tmp_path):
    rows = runs.changed(lambda i, _: {"kl": 1.0 if i == 3 else 0.01, "kl_low": 0.5}, count=4)
    assert outliers.jump(read_run(runs.write(tmp_path, rows))) is None


def test_how_often_it_happens_is_said_where_it_happens_again(tmp_path):
    rows = runs.healthy()
    rows[20]["largest_log_ratio"] = 25.0
    once = outliers.impossible_token(read_run(runs.write(tmp_path, rows)))
    assert "It happens" not in once.why
    assert "practically never. The logged number is" in once.why
    rows[30]["largest_log_ratio"] = 24.0
    twice = outliers.impossible_token(read_run(runs.write(tmp_path, rows)))
    assert twice.step == 210
    assert "It happens at steps 210 and 310. K1 adds" in twice.why


def test_the_highest_of_several_jumps_is_told_with_its_exact_kl(tmp_path):
    rows = runs.changed(lambda _i, _r: {"logged": 0.001, "kl": 0.0015, "tokens": 1000})
    for i, logged in ((10, 0.009), (25, 0.008)):
        rows[i] |= {"logged": logged, "largest_log_ratio": 5.0}
    said = [{"step": rows[i]["step"], "tokens": [token(5.0, -0.2), token(math.inf, -0.2)]} for i in (10, 25)]
    found = outliers.spike(read_run(runs.write(tmp_path, rows, {"estimator": "k1"}, said)))
    assert found.step == 110
    assert "2 of 1,000 tokens make 56 % of it." in found.says
    assert "with a log-ratio of 5. The exact KL of the same tokens is 0.0015." in found.why
    assert "Such jumps are seen at steps 110 and 260." in found.why
    rows[25]["kl"], rows[10]["kl"] = 0.02, 0.03
    rows[25]["kl_low"] = rows[10]["kl_low"] = 0.015
    both = outliers.jump(read_run(runs.write(tmp_path, rows)))
    assert (both.step, "Such jumps are seen at steps 110 and 260." in both.why) == (110, True)


def test_without_an_estimator_no_share_is_told(tmp_path):
    assert one(tmp_path, {"logged": 0.5}, [token(-7.0, -7.2)], outliers.spike, estimator=None) is None
    assert one(tmp_path, {"logged": 0.5}, [token(-7.0, -7.2)], outliers.spike, estimator="exact_kl") is None
