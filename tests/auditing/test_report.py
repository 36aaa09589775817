"""What an audit says, word by word, from findings made by hand."""

import pytest

from kl_companion.auditing.findings import Condition, Finding
from kl_companion.auditing.report import number, paragraph
from kl_companion.auditing.verdict import Audit, accepts, remedy_for

ON, OFF = Condition(False, False, 1.0), Condition(True, False, 1.0)
REVERSE = "token_reverse_kl is the reverse KL, KL(policy || reference), of every next token, with the states"
REVERSE += " that are visited held fixed."
ENTROPY = "sequence_entropy is the entropy of whole sequences."


def case(condition=ON, *matches, curl=0.0, residual=0.0, zero=False, value=None):
    return Finding(condition, matches, residual, zero, value or {}, lambda: curl)


ONE = {"token_reverse_kl": 0.25}
TWO = {"token_reverse_kl": -0.25, "sequence_entropy": 2 / 3}


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (case(zero=True, curl=1.0), "nothing: its expected gradient is zero"),
        (
            case(curl=0.25, residual=0.5),
            "no objective at all (no known one fits, residual 0.5; curl 0.25)",
        ),
        (
            case(curl=1e-5, residual=0.5),
            "an objective that has no name here (no known one fits, residual 0.5; no curl)",
        ),
        (case(ON, ONE, residual=1e-16), "0.25 x token_reverse_kl (residual 1e-16; no curl)"),
        (case(ON, ONE, curl=1e-5), "0.25 x token_reverse_kl (residual 0e+00; no curl)"),
        (
            case(ON, ONE, curl=0.125, residual=1e-16),
            "0.25 x token_reverse_kl (residual 1e-16; curl 0.12: the gradient of no function)",
        ),
        (
            case(ON, TWO),
            "- 0.25 x token_reverse_kl + 0.666667 x sequence_entropy (residual 0e+00; no curl)",
        ),
        (
            case(ON, ONE, {"sequence_entropy": 1.0}, {"expected_reward": 1.0}),
            "0.25 x token_reverse_kl or, equally, 1 x sequence_entropy (residual 0e+00; no curl)",
        ),
    ],
)
def test_a_verdict(given, verdict):
    glossary = {"token_reverse_kl": REVERSE, "sequence_entropy": ENTROPY}
    said = " ".join(glossary[n] for n in glossary if any(n in m for m in given.matches[:2]))
    wanted = f"On-policy, it descends {verdict}, at small ratios without end-of-sequence. "
    assert paragraph("it", [given], placement="reward") == (wanted + said).strip()


@pytest.mark.parametrize(
    ("match", "accepted"),
    [
        ({"token_reverse_kl": 0.25}, True),
        ({"token_reverse_kl": -0.25}, False),  # a part of it is ascended
        ({"expected_reward": -0.5, "token_reverse_kl": 0.25}, True),
        ({"token_forward_kl": 0.25}, False),
        ({"token_reverse_kl": 0.25, "token_forward_kl": 0.25}, False),
        ({"expected_reward": -0.5}, False),
    ],
)
def test_what_is_accepted_as_wanted(match, accepted):
    assert accepts(case(ON, match), {"token_reverse_kl"}) is accepted


def test_cases_that_say_the_same_are_one_sentence():
    large = Condition(False, True, 4.0)
    alike = [case(ON, ONE), case(large, {"token_reverse_kl": 0.25 + 1e-9})]
    said = paragraph("it", alike, placement="reward")
    assert said.startswith(
        "On-policy, it descends 0.25 x token_reverse_kl (residual 0e+00; no curl), at small"
    )
    assert f"at small and large ratios. {REVERSE}" in said
    apart = [case(ON, ONE), case(large, ONE, zero=True), case(Condition(False, True, 9.0), ONE)]
    said = paragraph("it", apart, placement="reward")
    assert "it descends at small and scale-9 ratios, 0.25 x token_reverse_kl" in said
    assert "; at large ratios with end-of-sequence, nothing: its expected gradient is zero. " in said


def test_sampling_comes_in_order_and_given_problems_first():
    findings = [case(OFF, zero=True), case(ON, zero=True), case(None, zero=True)]
    said = paragraph("it", findings, same_as=("k3", 0.04))
    nothing = "nothing: its expected gradient is zero"
    where = "at small ratios without end-of-sequence"
    assert said == (
        "Sample by sample, it is 0.04 x k3, differentiated. "
        f"it descends {nothing}, on the given problems. "
        f"On-policy, it descends {nothing}, {where}. Off-policy, it descends {nothing}, {where}. "
        "Its value estimates none of the known objectives."
    )


def test_what_a_value_estimates():
    known = case(value={"sequence_reverse_kl": 1 / 3, "token_reverse_kl": 1.0})
    assert "Its value estimates 0.333333 x sequence_reverse_kl." in paragraph("it", [known, case()])
    assert "Its value estimates none" in paragraph("it", [case(), known])
    assert "Its value" not in paragraph("it", [known], placement="reward")
    assert number(1 / 3) == "0.333333"


def test_an_audit_shows_its_first_case():
    first = case(ON, ONE, {"sequence_entropy": 1.0}, curl=0.5, residual=0.25, value={"token_reverse_kl": 2.0})
    audit = Audit("it", (first, case(OFF, zero=True)))
    assert (audit.matches, audit.residual, audit.curl, audit.zero) == (ONE, 0.25, 0.5, False)
    assert audit.value_matches == {"token_reverse_kl": 2.0}
    assert str(audit) == audit.note == paragraph("it", audit.findings)
    nothing = Audit("it", (case(OFF, zero=True, curl=0.5),))
    assert (nothing.matches, nothing.curl, nothing.zero) == ({}, 0.0, True)
    assert "Its value" not in Audit("it", (first,), "reward").note


def test_a_remedy_is_as_strong_near_the_reference_as_what_is_descended():
    given = [case(ON, {"token_pearson": 0.5, "sequence_entropy": 3.0})]  # curvature 2
    assert "return kl " in remedy_for("reverse_kl", given, None)  # curvature 1
    assert "return 4 * kl " in remedy_for("jensen_shannon", given, ("k3", 0.04))  # curvature 1/4
    nothing = [case(ON, zero=True)]
    assert "return 0.04 * kl " in remedy_for("reverse_kl", nothing, ("k3", 0.04))
    assert "return kl " in remedy_for("reverse_kl", nothing, ("k3", -0.04))
    assert "return kl " in remedy_for("reverse_kl", nothing, None)
    assert ".mean()" in remedy_for("reverse_kl", [case(ON, {"sequence_pearson": 1.0})], None)
    assert ".mean()" not in remedy_for("reverse_kl", [case(ON, ONE, {"sequence_pearson": 1.0})], None)
