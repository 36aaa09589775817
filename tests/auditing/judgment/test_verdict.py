"""What is accepted as wanted, and the strength of a remedy, from findings that are written by hand."""

import pytest

from kl_companion import audit
from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.judgment.verdict import Audit, accepts, said_by_name
from kl_companion.estimators.registry import get_estimator
from tests.support.data import data

DATA = data(__file__)


ON, OFF = Condition(False, False, 1.0), Condition(True, False, 1.0)
ONE = {"token_reverse_kl": 0.25}


def case(condition=ON, *matches, curl=0.0, residual=0.0, zero=False, value=None):
    return Finding(condition, matches, residual, zero, lambda: value or {}, lambda: curl)


@pytest.mark.parametrize(("match", "accepted"), DATA["what_is_accepted_as_wanted"])
def test_what_is_accepted_as_wanted(match, accepted):
    assert accepts(case(ON, match), {"token_reverse_kl"}) is accepted


@pytest.mark.parametrize(
    ("findings", "reverse", "token_forward"),
    [
        ([case(ON, ONE)], True, False),
        ([case(ON, ONE), case(OFF, zero=True)], True, False),  # fresh samples count
        ([case(OFF, {"sequence_reverse_kl": 2.0})], True, False),
        ([case(ON, ONE), case(ON, {"token_forward_kl": 1.0})], False, False),
        ([case(ON, {"token_forward_kl": 1e-6, "expected_reward": -1.0})], False, True),
        ([case(ON, {"token_forward_kl": 1.0, "expected_reward": 1.0})], False, False),
        ([case(ON, {"token_reverse_kl": -0.25})], False, False),
        ([case(ON, {"expected_reward": -1.0})], False, False),
        ([case(ON, zero=True)], False, False),
        ([case(ON)], False, False),
    ],
)
def test_whether_a_loss_minimizes_a_divergence(findings, reverse, token_forward):
    found = Audit("it", tuple(findings))
    assert found.minimizes("reverse_kl") is reverse
    assert found.minimizes("token_forward_kl") is token_forward
    with pytest.raises(ValueError, match="'reverse'"):
        found.minimizes("reverse")
    assert found.met is None


def test_an_audit_shows_its_first_case():
    first = case(ON, ONE, {"sequence_entropy": 1.0}, curl=0.5, residual=0.25, value={"token_reverse_kl": 2.0})
    audit = Audit("it", (first, case(OFF, zero=True)))
    assert (audit.matches, audit.residual, audit.curl, audit.zero) == (ONE, 0.25, 0.5, False)
    assert audit.value_matches == {"token_reverse_kl": 2.0}
    assert (audit.headline, audit.compared, audit.distances) == ("reverse KL", "token_reverse_kl", ())
    nothing = Audit("it", (case(OFF, zero=True, curl=0.5),))
    assert (nothing.matches, nothing.curl, nothing.zero) == ({}, 0.0, True)


@pytest.mark.parametrize(("title", "estimator", "wanted"), DATA["what_a_name_or_a_known_estimator_says"])
def test_what_a_name_or_a_known_estimator_says(title, estimator, wanted):
    found = said_by_name(title, get_estimator(estimator) if estimator else None)
    assert (found and found[1]) == wanted


def held_to_the_sampler(logp, old_logp, mask, advantages):
    ratio = (logp - old_logp).exp()
    penalty = (logp - old_logp) ** 2 / 2 * ratio.detach()
    return ((0.2 * penalty - ratio * advantages[:, None]) * mask).sum(-1).mean()


def test_a_distance_to_the_sampler_can_be_wanted_and_is_judged_on_stale_samples():
    found = audit(held_to_the_sampler, scale=1.0, want="token_reverse_kl_to_sampler")
    assert found.met
    assert found.remedy is None
    assert found.minimizes("reverse_kl_to_sampler")
    assert not found.minimizes("forward_kl_to_sampler")
    assert not found.minimizes("reverse_kl")
    other = audit("k2", scale=1.0, want="token_reverse_kl_to_sampler")
    assert other.met is False
    assert other.remedy == "# no patch: changes are tried for distances to the reference only"
    assert "That is not what was wanted (token_reverse_kl_to_sampler)" in str(other)
    with pytest.raises(ValueError, match="wanted objective 'token_hellinger_to_sampler'"):
        audit("k2", scale=1.0, want="token_hellinger_to_sampler")
