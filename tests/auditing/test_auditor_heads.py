"""Audits of losses that read heads: the mass of the head is named when a split leaves it behind."""

import pytest
import torch

from kl_companion import audit, prefix_tree
from kl_companion.auditing.reading.subject import as_subject
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field, objectives, value
from kl_companion.auditing.worlds.plan import reads_heads
from kl_companion.cli import main
from kl_companion.divergences import get_divergence
from kl_companion.estimators import Estimator, get_estimator
from kl_companion.estimators.top_k import TopK
from tests.support.objectives import oracle

REVERSE, FORWARD = {"token_reverse_kl": 1.0}, {"token_forward_kl": 1.0}
HEADS = {f"token_{whose}top_{k}_mass" for whose in ("", "reference_") for k in (1, 2)}


def matched(found, wanted, *, only=False):
    """Every case is explained by ``wanted``, exactly; with ``only`` by nothing else as short."""
    for case in found.findings:
        assert case.residual < 1e-10, (case.condition, case.residual)
        assert any(m == pytest.approx(wanted) for m in case.matches), (case.condition, case.matches)
        assert not only or len(case.matches) == 1, (case.condition, case.matches)
    return True


UNBIASED = [
    ("top_k_reverse_kl(0)", REVERSE),
    ("top_k_reverse_kl(3)", REVERSE),
    ("top_k_reverse_kl(2, generic)", REVERSE),
    ("top_k_reverse_kl(3, published)", REVERSE),
    ("top_k_forward_kl(1)", FORWARD),
    ("top_k_f_divergence(pearson, 1)", {"token_pearson": 1.0}),
    ("top_k_f_divergence(pearson, 2, published)", {"token_pearson": 1.0}),  # f'(1) = 0: the forms agree
    ("top_k_f_divergence(total_variation, 1, generic)", {"token_total_variation": 1.0}),
]
PUBLISHED = [
    ("top_k_reverse_kl(1, published)", REVERSE | {"token_top_1_mass": 1.0}),
    ("top_k_forward_kl(1, published)", FORWARD | {"token_reference_top_1_mass": -1.0}),
    ("top_k_forward_kl(2, published)", FORWARD | {"token_reference_top_2_mass": -1.0}),
    (
        "top_k_f_divergence(amari_alpha(0.5), 1, published)",
        {"token_amari_alpha(0.5)": 1.0, "token_top_1_mass": -4.0},
    ),
]


@pytest.mark.parametrize(("name", "wanted"), UNBIASED)
def test_splits_that_leave_nothing_behind(name, wanted):
    found = audit(name, off_policy=False, scale=4.0)
    assert matched(found, wanted)
    assert all(m == pytest.approx(wanted) for c in found.findings for m in c.matches)
    (divergence,) = wanted
    assert found.value_matches[divergence] == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wanted"), PUBLISHED)
def test_published_splits_leave_the_mass_of_the_head(name, wanted):
    found = audit(name, off_policy=False)
    assert matched(found, wanted)
    assert any(
        len(c.matches) == 1 for c in found.findings
    )  # where policy and reference differ in their heads
    divergence = next(iter(wanted))
    assert found.value_matches[divergence] == pytest.approx(1.0)  # the value hides it
    assert not audit(name, off_policy=False, want=divergence, scale=4.0).met


@pytest.mark.parametrize("whose", ["policy", "reference"])
@pytest.mark.parametrize(("form", "mass"), [("bregman", 0), ("published", 1)])
def test_whose_head_is_named(form, mass, whose):
    choices = TopK(get_divergence("reverse_kl"), 1, None, whose, form)
    mine = Estimator("my own head", choices, "reverse_kl", "top_k", "test")
    name = "token_top_1_mass" if whose == "policy" else "token_reference_top_1_mass"
    wanted = REVERSE | ({name: 1.0} if mass else {})
    assert matched(audit(mine, off_policy=False, scale=4.0), wanted)


def test_the_remedy_of_a_published_loss_passes_the_audit_that_prints_it():
    found = audit("top_k_reverse_kl(1, published)", want="reverse_kl", off_policy=False, scale=4.0)
    assert found.met is False
    names = {}
    exec(found.remedy, names)
    for off_policy in (False, True):
        assert audit(names["remedy"], want="reverse_kl", off_policy=off_policy, scale=4.0).met


# What the audit tries, and when.


def test_heads_are_tried_for_losses_that_read_them():
    with_heads, without = (objectives(off_policy=False, heads=h) for h in (True, False))
    assert set(with_heads) - set(without) == HEADS
    assert {n for n, o in OBJECTIVES.items() if o.heads_only and not o.cut} == HEADS


def test_an_estimator_by_name_and_as_an_entry_read_the_same():
    entry = get_estimator("top_k_reverse_kl(1)")
    assert reads_heads(as_subject(entry).entry, None)
    assert audit(entry, off_policy=False, scale=4.0).matches == pytest.approx(REVERSE)


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("name", sorted(HEADS))
def test_masses_where_policy_and_reference_have_other_heads(name, scale):
    problem = prefix_tree(3, 2, seed=2, eos=True, off_policy=True, scale=scale)
    theta = problem.logits.clone().requires_grad_()
    truth = oracle(name, problem, theta)
    (gradient,) = torch.autograd.grad(truth, theta)
    assert value(OBJECTIVES[name], problem) == pytest.approx(truth.item(), rel=1e-12)
    torch.testing.assert_close(field(OBJECTIVES[name], problem), gradient, rtol=1e-11, atol=1e-14)
    other = (
        name.replace("reference_", "") if "reference" in name else name.replace("token_", "token_reference_")
    )
    assert (field(OBJECTIVES[other], problem) - gradient).norm() > 1e-3


def test_words_of_the_masses():
    for name in HEADS:
        words = OBJECTIVES[name].words
        assert words.startswith("the policy's probability of the ")
        assert ("reference's" in words) == ("reference" in name)
        assert ("2 likeliest tokens" in words) == ("top_2" in name)
    text = " ".join(str(audit("top_k_reverse_kl(1, published)", off_policy=False, scale=4.0)).split())
    assert "minimizes reverse KL, next token + probability of the policy's likeliest token" in text


# The command line.


def test_derivations_of_forms(capsys):
    assert main(["derive", "kf_plus_plus(pearson, generic)"]) == 0
    assert "1 x pearson" in capsys.readouterr().out
    assert main(["derive", "kf_plus_plus(reverse_kl, published)"]) == 0
    out = capsys.readouterr().out
    assert "1 x reverse_kl" in out
    assert "-log(w)" in out


@pytest.mark.parametrize("placement", ["reward", "full"])
def test_a_head_in_the_reward_has_no_derivation_of_one_sample(placement, capsys):
    assert main(["derive", "top_k_reverse_kl(2)", "--placement", placement]) == 2
    captured = capsys.readouterr()
    assert "a derivation got 'top_k_reverse_kl(2)', which reads next-token distributions" in captured.err
    assert captured.out == ""


@pytest.mark.slow
def test_an_audit_of_a_head_from_the_command_line(capsys):
    line = ["audit", "top_k_reverse_kl(1, published)", "--want", "reverse_kl", "--scale", "4", "--quiet"]
    assert main(line) == 1
    assert "probability of the policy's likeliest token" in " ".join(capsys.readouterr().out.split())


def test_lists_name_heads(capsys):
    assert main(["list", "estimators"]) == 0
    assert "top_k_reverse_kl(32)" in capsys.readouterr().out
    assert main(["list", "objectives"]) == 0
    assert "token_reference_top_1_mass" in capsys.readouterr().out
