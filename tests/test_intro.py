"""The decision guide says what the audits say."""

import re
from pathlib import Path

import pytest
import sympy

from kl_companion import ESTIMATORS, audit, gradient_weight, implied_f
from kl_companion.divergences import DIVERGENCES, T
from kl_companion.theory.calculus import value_is_unbiased

TEXT = (Path(__file__).resolve().parents[1] / "book/intro.md").read_text()
TERM = re.compile(r"`([\w()]+)` in the (loss|reward)")


def rows(heading):
    """Cells of the table that follows a line of the page."""
    after = TEXT.split(heading, 1)[1].lstrip()
    table = re.search(r"(?:^\|.*\n)+", after, re.M).group(0)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def found(term, placement):
    verdict = audit(term, placement=placement, off_policy=False, scale=1.0)
    if verdict.zero:
        return "zero"
    first, *rest = verdict.matches.items()
    assert first[1] == pytest.approx(1)
    return first[0] + "".join(f" {'-' if c < 0 else '+'} {n}" for n, c in rest if abs(c) == pytest.approx(1))


GUIDE = [(r[1], r[2].strip("`")) for r in rows("### The term to differentiate")]
GUIDE += [(r[0], r[1].strip("`")) for r in rows("And what the usual alternatives do:")]


def test_the_guide_has_its_rows():
    assert len(GUIDE) >= 9
    assert len(rows("### The number to log")) >= 4


@pytest.mark.parametrize(("cell", "objective"), GUIDE)
def test_a_row_of_the_guide_is_what_the_audit_finds(cell, objective):
    term, placement = TERM.fullmatch(cell).groups()
    assert found(term, placement) == objective


def test_what_the_first_paragraph_says_of_its_loss():
    def shown(logp, ref_logp):
        return (ref_logp - logp).exp() - (ref_logp - logp) - 1

    def detached(logp, ref_logp):
        return (ref_logp - logp).exp().detach() - (ref_logp - logp) - 1

    options = {"off_policy": False, "scale": 1.0}
    assert audit(shown, **options).matches == {"token_forward_kl": 1.0}
    assert "sequence_reverse_kl" in audit(shown, **options).value_matches
    assert audit(detached, **options).zero
    curvature = sympy.diff(implied_f(gradient_weight("k3", "reward")), T, 2)
    assert curvature.subs(T, 2) > 0 > curvature.subs(T, sympy.Rational(1, 2))


def test_what_is_logged_is_unbiased():
    for situation, cell, _ in rows("### The number to log"):
        name = re.search(r"`(\w+)`", cell).group(1)
        target = "forward_kl" if "forward" in situation else "reverse_kl"
        assert ESTIMATORS[name].target == target
        if ESTIMATORS[name].inputs == "sampled":
            assert value_is_unbiased(name, target)
    assert not value_is_unbiased("k2", "reverse_kl")


def test_both_kls_have_curvature_one():
    assert DIVERGENCES["reverse_kl"].curvature == DIVERGENCES["forward_kl"].curvature == 1
