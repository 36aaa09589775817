"""The coefficient of the KL: set by the user, printed, given back by the log, or not recoverable."""

import pytest

from kl_companion.monitor.logs import LogOptions, log_report
from kl_companion.monitor.logs.beta import beta_of
from kl_companion.monitor.logs.units import amount_of
from tests.support.small_logs import small_log

KL = "0.02, 0.05, 0.03, 0.08, 0.04, 0.06, 0.07, 0.09"
LOSS = "0.0008, 0.002, 0.0012, 0.0032, 0.0016, 0.0024, 0.0028, 0.0036"  # 0.04 times, of 4 digits


def quantities(columns, config=None, **options):
    return log_report(
        small_log({"completion_length": "100 x 8", **columns}, config), LogOptions(**options)
    ).quantities


def test_recovered_from_the_loss():
    beta = beta_of(quantities({"kl": KL, "loss": LOSS}))
    assert beta.value == pytest.approx(0.04)
    assert beta.source == "recovered as loss / kl of 8 rows"


def test_not_recovered_where_the_rows_differ():
    other = LOSS.replace("0.0032", "-0.5").replace("0.0016", "0.7").replace("0.0012", "0.01")
    beta = beta_of(quantities({"kl": KL, "loss": other}))
    assert (beta.value, beta.text.endswith("not recoverable")) == (None, True)


def test_bounds_of_a_loss_that_prints_zero():
    beta = beta_of(quantities({"kl": "0.0005 x 8", "loss": "0 x 8"}))
    assert (beta.value, beta.low, beta.high, beta.default) == (None, 0, pytest.approx(0.1), 0.04)


def test_printed_confirmed_and_overruled():
    printed = {"kl": KL, "loss": LOSS}, {"KL coef": 0.04}
    assert beta_of(quantities(*printed)).text == "β = 0.04, printed in the log and confirmed by loss / kl"
    assert beta_of(quantities(*printed, beta=0.1)).text == "β = 0.1, set by --beta"


def test_a_coefficient_that_a_controller_moves():
    """The cost of each row is divided by the coefficient of the same row."""
    moved = {
        "critic/kl": "0.1 x 8",
        "critic/kl_coeff": "0.001 x 4, 0.002 x 4",
        "critic/score/mean": "0.5001 x 8",
    }
    q = quantities({**moved, "critic/rewards/mean": "0.4901 x 4, 0.4801 x 4"})
    assert beta_of(q).text == "β = 0.002, logged as critic/kl_coeff, at the end"
    amount = amount_of(q)
    assert (amount.first, amount.last) == (pytest.approx(10), pytest.approx(10))
