"""The worlds of an audit reach what trainers clamp."""

import math

import pytest

from kl_companion import audit
from kl_companion.auditing.findings import Condition
from kl_companion.auditing.looking import worlds


def log_ratios(off_policy, scale):
    """(smallest, largest) log(ref/pi) of the tokens of all worlds."""
    places = [w.problem.rollout(w.problem.logits) for w in worlds(Condition(off_policy, True, scale), 3)]
    found = [(r.ref_logp - r.logp)[r.completion_mask.bool()] for r in places]
    return min(x.min().item() for x in found), max(x.max().item() for x in found)


def test_far_worlds_reach_a_clamp_at_ten_of_the_squared_log_ratio():
    for off_policy in (False, True):
        assert log_ratios(off_policy, 4.0)[1] > math.sqrt(20)
        low, high = log_ratios(off_policy, 1.0)
        assert max(-low, high) < 1.5


@pytest.mark.parametrize("clamp", [{"max": 10.0}, {"min": -10.0, "max": 10.0}])
def test_a_clamp_is_met_where_ratios_are_large(clamp):
    def clamped(logp, ref_logp):
        return ((logp - ref_logp) ** 2 / 2).clamp(**clamp)

    near, far = (audit(clamped, off_policy=False, scale=scale) for scale in (1.0, 4.0))
    assert near.matches == {"token_reverse_kl": 1.0}
    assert [f.matches for f in far.findings] == [(), ()]
