"""What a gradient says: against autograd of a log-softmax, and formulas of K1 to K5 written by hand."""

import math

import pytest
import torch

from kl_companion.monitor.doctor import readings

LOGITS = torch.tensor([0.3, -0.8, 1.1, 0.25], dtype=torch.float64)
DELTA = torch.tensor([-2.5, -1.1, -0.3, 0.2, 0.9, 1.7, 3.2], dtype=torch.float64)


def gradient(loss):
    """By the logits."""
    z = LOGITS.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(z), z)
    return found


@pytest.mark.parametrize("token", range(4))
@pytest.mark.parametrize(("temperature", "c"), [(1.0, 1.0), (0.7, -0.3), (2.5, 4.0), (0.31, -1e-4)])
def test_token_temperature_and_coefficient_are_read_back(token, temperature, c):
    found = gradient(lambda z: c * (z / temperature).log_softmax(-1)[token])
    row = readings.read_row(found, LOGITS)
    assert row.token == token
    assert (row.temperature, row.coefficient) == pytest.approx((temperature, c), rel=1e-9)


def test_a_gradient_in_float32_is_read_too():
    found = gradient(lambda z: 0.2 * (z / 0.7).float().log_softmax(-1)[1].double())
    row = readings.read_row(found, LOGITS)
    assert row.token == 1
    assert (row.temperature, row.coefficient) == pytest.approx((0.7, 0.2), rel=1e-3)


def reverse_kl(z):
    reference = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    p = z.softmax(-1)
    return (p * (p / reference).log()).sum()


@pytest.mark.parametrize(
    "loss",
    [
        reverse_kl,
        lambda z: -(z.softmax(-1) * z.log_softmax(-1)).sum(),
        lambda z: z.log_softmax(-1)[0] - 0.5 * z.log_softmax(-1)[2],
        lambda z: z.log_softmax(-1)[0] + 0.01 * z.log_softmax(-1)[2],
    ],
    ids=["kl", "entropy", "two tokens", "nearly one token"],
)
def test_the_gradient_of_anything_else_is_no_score(loss):
    row = readings.read_row(gradient(loss), LOGITS)
    assert row.token == -1
    assert math.isnan(row.temperature)
    assert row.coefficient == gradient(loss).abs().max()


def test_where_nothing_acts_there_is_no_row():
    assert readings.read_row(torch.zeros(4, dtype=torch.float64), LOGITS) is None
    assert readings.read_row(torch.full((4,), 9e-13, dtype=torch.float64), LOGITS) is None
    assert readings.read_row(torch.full((4,), 2e-12, dtype=torch.float64), LOGITS) is not None


# with d = log(pi / pi_ref): values, and derivatives by log pi, in the usual order and with the two exchanged
VALUES = {
    "k1": lambda d: d,
    "k2": lambda d: d**2 / 2,
    "k3": lambda d: torch.exp(-d) - 1 + d,
    "abs": lambda d: torch.where(d < 0, -d, d),
}
SLOPES = {
    "k1": lambda d: torch.ones_like(d),
    "k2": lambda d: d,
    "k3": lambda d: 1 - torch.exp(-d),
    "k3_plus_plus": lambda d: d,
    "k4": lambda d: d,
    "k5": lambda d: 1 - torch.exp(-d),
    "abs": lambda d: torch.where(d < 0, -1.0, 1.0).double(),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_in_both_orders(name):
    torch.testing.assert_close(readings.value(name, DELTA), VALUES[name](DELTA))
    torch.testing.assert_close(readings.value(name, DELTA, exchanged=True), VALUES[name](-DELTA))


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_by_the_log_prob_of_the_policy(name):
    torch.testing.assert_close(readings.slope(name, DELTA), SLOPES[name](DELTA))


@pytest.mark.parametrize("name", VALUES)
def test_slopes_with_the_two_exchanged_and_with_a_ratio(name):
    torch.testing.assert_close(readings.slope(name, DELTA, exchanged=True), -SLOPES[name](-DELTA))
    with_ratio = SLOPES[name](DELTA) + VALUES[name](DELTA)  # d/dl of exp(l - sg l) h(l)
    torch.testing.assert_close(readings.slope(name, DELTA, ratio=True), with_ratio)


@pytest.mark.parametrize("name", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("weight", [0.05, 3.0])
def test_an_estimator_in_the_loss_is_known_by_slope_and_value(name, weight):
    form = readings.fit_slope(DELTA, weight * SLOPES[name](DELTA), weight * VALUES[name](DELTA) + 7.0)
    assert (form.name, form.exchanged, form.ratio, form.beside) == (name, False, False, 0.0)
    assert form.weight == pytest.approx(weight)


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_exchanged_in_the_loss(name):
    found, loss = -0.3 * SLOPES[name](-DELTA), 0.3 * VALUES[name](-DELTA)
    form = readings.fit_slope(DELTA, found, loss)
    if name == "k2":  # which is the same in both orders
        assert (form.name, form.exchanged) == ("k2", False)
    else:
        assert (form.name, form.exchanged) == (name, True)
    assert form.weight == pytest.approx(0.3)


def test_what_has_the_gradient_of_k2_is_told_from_it_by_its_value():
    assert readings.fit_slope(DELTA, 0.2 * DELTA, 0.2 * VALUES["k3"](DELTA)).name == "k3_plus_plus"
    assert readings.fit_slope(DELTA, 0.2 * DELTA, 0.2 * DELTA).name == "k4"
    assert readings.fit_slope(DELTA, 0.2 * DELTA, torch.zeros(7, dtype=torch.float64)).name == "k2"
    with_ratio = readings.fit_slope(DELTA, 1 + DELTA, DELTA)
    assert (with_ratio.name, with_ratio.ratio) == ("k1", True)


@pytest.mark.parametrize("beside", [-0.4, 0.01])
def test_another_term_that_scores_the_token_is_told_apart(beside):
    form = readings.fit_slope(DELTA, 0.2 * SLOPES["k3"](DELTA) + beside, 0.2 * VALUES["k3"](DELTA) - 1.0)
    assert (form.name, form.exchanged) == ("k3", False)
    assert (form.weight, form.beside) == pytest.approx((0.2, beside))


def test_a_gradient_that_no_reference_changes_is_k1_only_with_its_value():
    ones = torch.ones(7, dtype=torch.float64)
    assert readings.fit_slope(DELTA, ones, 0 * DELTA) is None
    assert readings.fit_slope(DELTA, -ones, 0 * DELTA) is None
    assert readings.fit_slope(DELTA, ones, DELTA).name == "k1"


@pytest.mark.parametrize("name", ["k2", "k3"])
@pytest.mark.parametrize("beside", [0.0, 0.3])
def test_a_term_that_is_subtracted_has_a_negative_weight(name, beside):
    form = readings.fit_slope(DELTA, beside - 0.2 * SLOPES[name](DELTA), -0.2 * VALUES[name](DELTA))
    assert (form.name, form.exchanged, form.ratio) == (name, False, False)
    assert (form.weight, form.beside) == pytest.approx((-0.2, beside))
    form = readings.fit_change(DELTA, beside - 0.2 * VALUES[name](DELTA))
    assert (form.name, form.exchanged, form.weight) == (name, False, pytest.approx(-0.2))


@pytest.mark.parametrize("found", [DELTA**3, 0 * DELTA, DELTA + 0.01 * DELTA**2])
def test_what_is_no_estimator(found):
    assert readings.fit_slope(DELTA, found, 0 * DELTA) is None


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_penalty_in_the_reward_is_known_by_how_it_changes(name, sign):
    form = readings.fit_change(DELTA, 0.3 * VALUES[name](sign * DELTA) + 5.0)
    assert (form.name, form.exchanged) == (name, sign == -1 and name != "k2")
    assert form.weight == pytest.approx(0.3)
    assert readings.fit_change(DELTA, DELTA**3) is None


def test_same_is_relative_to_the_accuracy_of_float32():
    one = torch.ones(2, dtype=torch.float64)
    assert readings.same(one, one + 9e-6)
    assert not readings.same(one, one + 1.1e-5)
    assert not readings.same(1e3 * one, 1e3 * one + torch.tensor([0.0, 0.011]))
    assert readings.same(0 * one, 0 * one)


def test_words_and_titles():
    assert readings.words(["a"]) == "a"
    assert readings.words(["a", "b", "c"]) == "a, b and c"
    assert readings.TermForm("k3_plus_plus", False, 1.0).title == "K3 with the gradient of K2 (K3++)"
    assert readings.TermForm("abs", False, 1.0).title == "the absolute log-ratio"
