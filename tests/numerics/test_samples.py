"""Estimators of one sample, at every ratio and in every dtype: the exact number or an error, never NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf, workdps

from kl_companion import ESTIMATORS, get_estimator
from kl_companion.checks import check_samples
from tests.numerics.bounds import DTYPES, around, log_ratios
from tests.numerics.settings import EXAMPLES
from tests.oracles.exactly import OF_SAMPLES

SAMPLED = [name for name, estimator in ESTIMATORS.items() if estimator.inputs == "sampled"]
FORMS = [f"kf_plus_plus({d}, {form})" for d in ("reverse_kl", "pearson") for form in ("generic", "published")]


def test_every_registered_estimator_has_an_exact_form() -> None:
    assert set(SAMPLED) == set(OF_SAMPLES)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SAMPLED)
def test_value_and_gradient_are_those_of_sixty_digits(name: str, dtype: torch.dtype, data: Any) -> None:
    pairs = data.draw(st.lists(st.tuples(st.floats(-1e4, 0), log_ratios()), min_size=1, max_size=3))
    logp = torch.tensor([a for a, _ in pairs], dtype=dtype, requires_grad=True)
    ref_logp = torch.tensor([a + u for a, u in pairs], dtype=dtype)
    value = ESTIMATORS[name].fn(logp, ref_logp)
    (slope,) = torch.autograd.grad(value.sum(), logp)
    eps = torch.finfo(dtype).eps
    for k in range(len(pairs)):
        with workdps(60):
            u = mpf(ref_logp[k].item()) - mpf(logp[k].item())
            for got, exact, least in zip((value[k], slope[k]), OF_SAMPLES[name], (0.0, 1.0), strict=True):
                wanted = around(exact, u, eps, dtype, least)
                assert wanted.holds(got.item()), (float(u), got, wanted)


@EXAMPLES
@given(data=st.data())
@pytest.mark.parametrize("name", [*SAMPLED, *FORMS])
def test_what_is_no_log_probability_is_refused(name: str, data: Any) -> None:
    wrong = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    which, at = data.draw(st.sampled_from(["logp", "ref_logp"])), data.draw(st.integers(0, 2))
    given_ = {"logp": torch.tensor([-1.0, -2.0, -3.0]), "ref_logp": torch.tensor([-2.0, -2.0, -1.0])}
    given_[which][at] = wrong
    with pytest.raises(ValueError, match=rf"^{which} is {wrong} at \[{at}\], expected finite log-prob"):
        check_samples(**given_)
    others = get_estimator(name).fn(**given_)[[i for i in range(3) if i != at]]
    assert others.isfinite().all()


def test_log_ratios_whose_sum_alone_is_too_large_are_taken() -> None:
    logp = torch.tensor([-3e38, -3e38])
    check_samples(logp, torch.zeros(2))
    assert torch.equal(ESTIMATORS["k1"].fn(logp, torch.zeros(2)), logp)
