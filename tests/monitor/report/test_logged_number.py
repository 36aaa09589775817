"""The logged number: negative values of K1, the size of a bias, and when it is not its own estimator."""

import math

import pytest

from kl_companion.monitor.report import logged_number, read_run
from tests.support import monitored_runs as runs


def first(tmp_path, change, rule, **settings):
    return rule(read_run(runs.write(tmp_path, runs.changed(change), settings)))


def test_negative_values_of_k1_are_noise(tmp_path):
    def change(i, row):
        return {"logged": -0.004, "logged_noise": -0.024, "logged_error": 0.016} if i in (7, 9) else {}

    found = first(tmp_path, change, logged_number.negative, estimator="k1")
    assert found.level == "fine"
    assert found.says == (
        "The logged number is negative at 2 of 40 observations, −0.004 at the lowest (step 80): that is "
        "noise of K1, 1.5 standard errors from its "
        "expectation."
    )


def test_a_negative_value_of_k1_far_from_its_expectation_is_no_noise(tmp_path):
    def change(i, row):
        return {"logged": -0.1, "logged_noise": -0.12, "logged_error": 0.016}

    assert first(tmp_path, change, logged_number.negative, estimator="k1") is None
    found = first(tmp_path, change, logged_number.not_its_noise, estimator="k1")
    assert "is not K1 of these tokens: it is 7.5 standard errors away" in found.says


@pytest.mark.parametrize(
    ("factor", "level", "said"),
    [
        (1.09, None, ""),
        (1.12, "attention", "K2 overstates the KL by 12 %"),
        (1.6, "wrong", "K2 overstates the KL by 60 %"),
        (0.8, "attention", "K2 understates the KL by 20 %"),
    ],
)
def test_bias_in_units_of_the_kl(tmp_path, factor, level, said):
    found = first(tmp_path, runs.logging(factor, 0.01), logged_number.bias, estimator="k2")
    assert (found and found.level) == level
    assert said in (found.says if found else "")
    assert not found or "K2 has the gradient of the reverse KL" in found.why


@pytest.mark.parametrize("last", [None, math.nan])
def test_bias_without_a_last_number_takes_none_apart(tmp_path, last):
    def change(i, row):
        biased = logging(i, row)
        return biased | {"logged": last, "logged_noise": last} if i == 39 else biased

    logging = runs.logging(1.3, 0.01)
    found = first(tmp_path, change, logged_number.bias, estimator="k2")
    assert "The last logged number" not in found.why
    assert "NaN" not in found.why


def test_bias_of_another_estimator_says_nothing_of_k2(tmp_path):
    found = first(tmp_path, runs.logging(1.3, 0.01), logged_number.bias, estimator="k4")
    assert found.says.startswith("K4 overstates the KL by 30 %")
    assert "K2" not in found.why


@pytest.mark.parametrize(("share", "found"), [(0.4, False), (0.55, True)])
def test_noise_of_half_the_kl_is_noted(tmp_path, share, found):
    seen = first(tmp_path, runs.logging(1, share), logged_number.noise, estimator="k1")
    assert (seen is not None) == found
    if seen:
        assert "A mean of 31 values would be known to 10 %. On the same tokens K3 would have" in seen.why


def test_without_an_estimator_the_two_numbers_are_compared(tmp_path):
    unknown = dict.fromkeys(("logged_expected", "logged_bias", "logged_noise", "logged_error"))
    found = first(
        tmp_path,
        lambda _i, _r: {**unknown, "logged": 0.5, "kl": 0.25},
        logged_number.what_it_is,
        estimator=None,
    )
    assert found.says == "Your logged 0.5 is the trainer's number; the exact KL is 0.25."


def test_a_negative_loss_is_normal(tmp_path):
    found = first(tmp_path, lambda i, _: {"loss": -0.01 if i < 4 else 0.01}, logged_number.negative_loss)
    assert found.says == "The loss is negative at 4 of 40 observations, which is normal."
    assert first(tmp_path, lambda _i, _r: {"loss": 0.0}, logged_number.negative_loss) is None


@pytest.mark.parametrize(
    ("bias", "noise", "error", "said"),
    [
        (0.0, 0.002, 0.001, "Your logged 0.022 is 0.002 too high: noise (step 400)."),
        (-0.004, 0.001, 0.001, "Your logged 0.017 is 0.003 too low: bias (step 400)."),
        (0.001, 0.001, 0.001, "Your logged 0.022 is 0.002 too high: bias and noise (step 400)."),
        (0.001, 0.005, 0.001, "Your logged 0.026 is 0.006 too high: more than noise (step 400)."),
        (0.0, 0.000001, 0.001, "Your logged 0.02 is the exact KL (step 400)."),
    ],
)
def test_the_difference_has_a_cause(tmp_path, bias, noise, error, said):
    def change(i, row):
        return {
            "kl": 0.02, "logged": 0.02 + bias + noise, "logged_expected": 0.02 + bias, "logged_bias": bias,
            "logged_noise": noise, "logged_error": error,
        }  # fmt: skip

    assert first(tmp_path, change, logged_number.what_it_is).says == said


def test_an_estimator_of_the_forward_kl_is_compared_with_that(tmp_path):
    change = lambda _i, _r: {"logged": 0.05, "forward_kl": 0.04, "kl": 0.03}  # noqa: E731
    found = first(tmp_path, change, logged_number.what_it_is, estimator="kf_plus_plus(forward_kl)")
    assert found.says == "Your logged 0.05 estimates the forward KL, which is 0.04."
    assert found.why == "The reverse KL is 0.03."


def shifted(z, error=0.1, every=1):
    def change(i, row):
        size = error * row["kl"]
        noise = z * size if i % every == 0 else 0.0
        return {"logged": row["kl"] + noise, "logged_noise": noise, "logged_error": size}

    return change


@pytest.mark.parametrize(
    ("change", "count", "found"),
    [
        (shifted(4.5), 1, True),
        (shifted(3.5), 1, False),
        (shifted(2.0), 40, True),  # always to one side
        (shifted(2.0), 9, False),
        (shifted(1.3), 40, False),
        (shifted(30.0, every=3), 40, False),  # a few large ones are what K3's long tail is
        (shifted(5.0, error=0.01), 40, False),  # beyond noise, and a twentieth of the KL
    ],
)
def test_what_noise_explains(tmp_path, change, count, found):
    run = read_run(runs.write(tmp_path, runs.changed(change, count=count)))
    assert (logged_number.not_its_noise(run) is not None) == found


def test_the_numbers_of_a_logged_number_that_is_another(tmp_path):
    change = lambda _i, _r: {"kl": 0.02, "logged": 0.05, "logged_expected": 0.021, "logged_noise": 0.029}  # noqa: E731
    found = first(tmp_path, change, logged_number.not_its_noise)
    assert "On average it is 0.05 where 0.021 is expected and the exact KL is 0.02." in found.why


def test_the_number_of_another_divergence(tmp_path):
    change = lambda _i, _r: {"kl": 0.02, "logged_bias": 0.03}  # noqa: E731
    found = first(tmp_path, change, logged_number.bias, estimator="k5")
    assert found.says == "K5 estimates the forward KL, 0.05 nats per token; the reverse KL is 0.02."


@pytest.mark.parametrize(("kl", "found"), [(0.00009, False), (0.00011, True)])
def test_near_the_first_step_relative_sizes_say_nothing(tmp_path, kl, found):
    change = lambda _i, _r: {"kl": kl, "logged_bias": kl, "logged_error": kl}  # noqa: E731
    assert (first(tmp_path, change, logged_number.bias) is not None) == found
    assert (first(tmp_path, change, logged_number.noise) is not None) == found


@pytest.mark.parametrize("missing", ["logged_error", "logged_noise"])
def test_negative_values_without_an_error_are_not_explained(tmp_path, missing):
    change = lambda _i, _r: {"logged": -0.004, missing: None}  # noqa: E731
    assert first(tmp_path, change, logged_number.negative, estimator="k1") is None


def test_the_last_number_is_taken_apart_in_the_verdict_on_its_bias(tmp_path):
    change = lambda _i, _r: {  # noqa: E731
        "kl": 0.02, "logged": 0.031, "logged_bias": 0.01, "logged_noise": 0.001, "logged_error": 0.002,
    }  # fmt: skip
    found = first(tmp_path, change, logged_number.bias, estimator="k4")
    assert found.why.endswith(
        "log another estimator. The last logged number is 0.031. Of the difference, 0.01 is bias and 0.001 "
        "is noise, whose standard error is "
        "0.002."
    )
    gone = first(tmp_path, lambda i, r: change(i, r) | {"logged": None}, logged_number.bias, estimator="k4")
    assert gone.why.endswith("log another estimator.")
