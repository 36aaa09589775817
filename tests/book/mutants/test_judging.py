"""Who notices what: each judge on losses whose answer is known beforehand."""

import pytest
import torch

from kl_book.mutants import FORMULAS, LOSSES, judged
from kl_book.mutants.judging import agrees, conforms, equivalent, formula, verdict
from kl_companion.frameworks.installed import installed_version

pytestmark = pytest.mark.skipif(
    installed_version("polgrad") is None, reason="polgrad is not in the folder of audits"
)


def k2(logprobs, ref_logprobs, response_mask):
    return ((logprobs - ref_logprobs) ** 2 / 2 * response_mask).sum(-1).mean()


def twice_k2(logprobs, ref_logprobs, response_mask):
    return 2 * k2(logprobs, ref_logprobs, response_mask)


def k2_with_a_constant(logprobs, ref_logprobs, response_mask):
    return k2(logprobs, ref_logprobs, response_mask) + 1


def refused(logprobs, zebra):
    return logprobs * zebra


def not_a_number(logprobs, ref_logprobs, **others):
    return logprobs.sum() * float("nan")


@pytest.mark.parametrize("name", LOSSES)
def test_an_unchanged_loss_conforms_in_both_ways(name):
    reference = formula(FORMULAS[name])
    assert conforms(LOSSES[name], reference)
    assert agrees(LOSSES[name], reference)


def test_a_formula_has_every_word_of_the_entry():
    assert formula(FORMULAS["dual_clip_k3"]).clip.ratio_cap == 3.0
    assert formula(FORMULAS["clip_k2"]).norm_len == 8
    found = formula(FORMULAS["gspo"])
    assert (found.ratio.value, found.aggregation.value) == ("sequence", "seq_mean_token_mean")
    assert (found.kl.kind.value, found.kl.coef) == ("k3", 0.05)
    assert formula(FORMULAS["cispo_k1"]).surrogate.value == "cispo"


def test_a_verdict_tells_coefficients_apart_and_not_values():
    one, two = verdict(k2), verdict(twice_k2)
    assert one.sentence == "reverse KL, next token"
    assert two.sentence == "2 x reverse KL, next token"
    assert len(one.conditions) == 8
    assert one.conditions != two.conditions
    assert verdict(k2_with_a_constant).conditions == one.conditions


def test_a_refusal_is_a_verdict_of_its_own():
    found = verdict(refused)
    assert found.conditions == ()
    assert found.sentence.startswith("refused: ")
    assert "\n" not in found.sentence


def of_the_kl(change):
    """The loss with K2, with something else for it."""

    def loss(**batch):
        return LOSSES["clip_k2"](**batch) + change(**batch)

    return loss


def test_the_assertion_sees_the_surrogate_and_not_the_kl():
    reference = formula(FORMULAS["clip_k2"])
    inside = of_the_kl(lambda logprobs, ref_logprobs, **_: (logprobs - ref_logprobs).sum())
    assert conforms(inside, reference)
    assert not agrees(inside, reference)
    beside = of_the_kl(lambda logprobs, **_: 1e-6 * logprobs.sum())
    assert not conforms(beside, reference)
    assert not agrees(beside, reference)


def test_the_assertion_of_polgrad_passes_what_is_no_number():
    reference = formula(FORMULAS["clip_k2"])
    assert conforms(not_a_number, reference)  # the page says so: with another version, look again
    assert not agrees(not_a_number, reference)
    assert verdict(not_a_number).sentence.startswith("refused: ")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (lambda logprobs, **_: 0 * logprobs.sum(), True),
        (lambda logprobs, **_: 0 * logprobs.sum() + 1e-3, False),
        (lambda logprobs, **_: 1e-3 * (logprobs - logprobs.detach()).sum(), False),
        (lambda logprobs, response_mask, **_: 1e-3 * (logprobs * ~response_mask).sum(), False),
        (
            lambda logprobs, old_logprobs, **_: 1e-3 * (logprobs - old_logprobs).abs().clamp(min=9).sum(),
            False,
        ),
        (lambda logprobs, ref_logprobs, **_: (logprobs - ref_logprobs - 21).clamp(min=0).sum(), False),
        (lambda logprobs, **_: logprobs.sum(-1), False),
        (lambda logprobs, **_: torch.zeros(()) / 0 + logprobs.sum(), False),
    ],
)
def test_equivalent_is_the_same_value_and_gradient(change, same):
    assert equivalent(LOSSES["clip_k2"], of_the_kl(change)) is same


def test_rows_of_a_few_mutants_are_spread_over_the_loss_and_said_in_words():
    rows = judged("clip_k2", 3)
    assert [r["mutant"] for r in rows] == [1, 1 + (step := rows[1]["mutant"] - 1), 1 + 2 * step]
    assert step > 5
    for row in rows:
        assert row["loss"] == "clip_k2"
        assert {row[c] for c in ("equivalent", "audit", "assert_conforms", "formula")} <= {"yes", "no"}
    assert rows[0]["formula"] == "yes"
    assert rows[0]["equivalent"] == "no"
