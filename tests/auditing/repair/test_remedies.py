"""The loss that an audit prints instead passes that audit, with the strength of the one that was audited."""

import pytest

from kl_companion import ESTIMATORS, audit
from kl_companion.auditing import remedy
from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.repair.remedies import chosen_level, coefficient_for
from kl_companion.divergences import DIVERGENCES


@pytest.mark.slow
@pytest.mark.parametrize("divergence", list(DIVERGENCES))
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_every_remedy_passes_the_audit_that_prints_it(divergence, level):
    source = remedy(DIVERGENCES[divergence], level=level, beta=0.05)
    assert len(source.splitlines()) <= 6
    names = {}
    exec(source, names)
    for off_policy in (False, True):
        found = audit(names["remedy"], want=f"{level}_{divergence}", off_policy=off_policy, scale=4.0)
        assert found.met
        assert found.matches == pytest.approx({f"{level}_{divergence}": 0.05})


def test_the_remedy_keeps_the_strength_of_the_loss():
    def mine(logp, ref_logp):
        return 0.02 * ESTIMATORS["k3"].fn(logp, ref_logp)

    source = 'lambda batch: 0.02 * k3(batch["logp"], batch["ref_logp"])'
    without_source = eval(source, {"k3": ESTIMATORS["k3"].fn})

    for loss, factor in ((mine, "0.02 * (0.5 * (logp"), (without_source, "return 0.02 * kl")):
        assert factor in audit(loss, want="reverse_kl", off_policy=False, scale=1.0).remedy
    for loss, factor in ((mine, "kl = 0.5 * (((w - 1)"), (without_source, "return 0.01 * kl")):  # curvature 2
        assert factor in audit(loss, want="pearson", off_policy=False, scale=1.0).remedy

    def ineffective(logp, ref_logp):
        return 0.07 * (logp - ref_logp)

    remedy = audit(ineffective, want="reverse_kl", off_policy=False, scale=1.0).remedy
    assert "return 0.07 * (0.5 * (logp - ref_logp) ** 2)" in remedy


def found(*matches):
    return [Finding(Condition(False, False, 1.0), matches, 0.0, not matches, dict, lambda: 0.0)]


@pytest.mark.parametrize(
    ("want", "matches", "same_as", "named", "beta"),
    [
        (
            "reverse_kl",
            {"token_pearson": 0.5, "sequence_entropy": 3.0},
            None,
            None,
            1.0,
        ),  # curvature 2
        ("jensen_shannon", {"token_pearson": 0.5, "sequence_entropy": 3.0}, ("k3", 0.04), None, 4.0),  # 1/4
        ("reverse_kl", None, ("k3", 0.04), None, 0.04),
        ("reverse_kl", None, ("k3", -0.04), None, 1.0),
        ("reverse_kl", None, None, None, 1.0),
        ("pearson", {"token_reverse_kl": -0.3}, None, None, 0.15),
        ("reverse_kl", {"token_reverse_kl": -0.3}, None, 0.02, 0.02),  # what the parameter is
        ("reverse_kl", {"token_pearson": -0.15, "token_reverse_kl": 0.3}, None, None, 1.0),
    ],
)
def test_a_remedy_is_as_strong_near_the_reference_as_what_is_descended(want, matches, same_as, named, beta):
    findings = found(matches) if matches else found()
    assert coefficient_for(want, findings, same_as, named) == pytest.approx(beta)


def test_a_remedy_is_of_the_level_of_the_loss():
    of_answers = {"sequence_pearson": 1.0}
    assert chosen_level("reverse_kl", found(of_answers)) == "sequence"
    assert chosen_level("reverse_kl", found({"token_reverse_kl": 0.25}, of_answers)) == "token"
    assert chosen_level("token_pearson", found(of_answers)) == "token"
