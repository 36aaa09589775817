"""Every loss with a ratio, and every aggregation, has the objective that the calculation by hand says."""

import pytest

from kl_companion import audit, kl_loss
from tests.support.data import data

DATA = data(__file__)


# E_mu[rho x] is E_pi[x]: an attached ratio gives its whole gradient, a detached one the part through x
TOKEN = {"token": "token", "prefix": "policy_token", "sequence": "policy_token"}
WEIGHTED = {
    ("k1", "detached"): lambda scope: {},
    ("k1", "attached"): lambda scope: WHOLE_KL[scope],
    ("k2", "detached"): lambda scope: {f"{TOKEN[scope]}_reverse_kl": 1.0},
    ("k2", "attached"): lambda scope: {SQUARED[scope]: 1.0},
    ("k3", "detached"): lambda scope: {f"{TOKEN[scope]}_forward_kl": 1.0},
    ("k3", "attached"): lambda scope: WHOLE_KL[scope],
    ("k3_plus_plus", "detached"): lambda scope: {f"{TOKEN[scope]}_reverse_kl": 1.0},
    ("k4", "detached"): lambda scope: {f"{TOKEN[scope]}_reverse_kl": 1.0},
    # the ratio and the estimate both bring the gradient
    ("k4", "attached"): lambda scope: (
        {"token_reverse_kl": 2.0}
        if scope == "token"
        else {"sequence_reverse_kl": 1.0, "policy_token_reverse_kl": 1.0}
    ),
}
WHOLE_KL = {
    "token": {"token_reverse_kl": 1.0},
    "prefix": {"sequence_reverse_kl": 1.0},
    "sequence": {"sequence_reverse_kl": 1.0},
}
SQUARED = {
    "token": "token_squared_log_ratio",
    "prefix": "summed_squared_log_ratio",
    "sequence": "summed_squared_log_ratio",
}


def cases(loss, **options):
    return audit(loss, scale=1.0, **options).findings


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["token", "prefix", "sequence"])
@pytest.mark.parametrize(("estimator", "ratio"), WEIGHTED)
def test_token_level_losses_with_a_ratio(estimator, ratio, scope):
    wanted = WEIGHTED[estimator, ratio](scope)
    found = cases(lambda ro: kl_loss(ro, estimator, importance=scope, ratio=ratio), off_policy=True)
    assert len(found) == 2
    for case in found:
        assert case.residual < 1e-10
        assert case.zero is (not wanted)
        assert any(m == pytest.approx(wanted) for m in case.matches) or not wanted


@pytest.mark.parametrize(("estimator", "ratio", "wanted"), DATA["sequence_level_losses_with_a_ratio"])
def test_sequence_level_losses_with_a_ratio(estimator, ratio, wanted):
    def loss(ro):
        return kl_loss(ro, estimator, level="sequence", importance="sequence", ratio=ratio)

    for case in cases(loss, off_policy=True):
        assert case.residual < 1e-10
        assert any(m == pytest.approx(wanted) for m in case.matches)


LENGTHS = {
    ("k1", "sequence_mean"): {"expected_inverse_length": 1.0},
    ("k2", "sequence_mean"): {"sampled_mean_squared_log_ratio": 1.0},
    ("k3", "sequence_mean"): {"expected_inverse_length": 1.0, "sampled_mean_reference_ratio": 1.0},
    ("k4", "sequence_mean"): {"sampled_mean_squared_log_ratio": 1.0},
    ("k1", "constant"): {},
    ("k2", "constant"): {"token_reverse_kl": 0.25},
    ("k3", "constant"): {"token_forward_kl": 0.25},
    ("k4", "constant"): {"token_reverse_kl": 0.25},
}


@pytest.mark.parametrize(("estimator", "how"), LENGTHS)
def test_losses_divided_by_a_length(estimator, how):
    """A constant is a smaller beta; a sequence's own length is another objective."""
    wanted, length = LENGTHS[estimator, how], 4.0 if how == "constant" else None
    found = cases(lambda ro: kl_loss(ro, estimator, how=how, length=length), off_policy=False)
    (case,) = (c for c in found if c.condition.eos)
    assert case.residual < 1e-10
    assert case.zero is (not wanted)
    assert any(m == pytest.approx(wanted) for m in case.matches) or not wanted
