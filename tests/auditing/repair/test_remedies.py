"""The loss that an audit prints instead passes that audit, with the strength of the one that was audited."""

import pytest

from kl_companion import ESTIMATORS, audit
from kl_companion.auditing import remedy
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
