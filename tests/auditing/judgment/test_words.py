"""Registered names as a reader sees them: no underscore, and the words of the card."""

import pytest

from kl_book.explorer.formulas import objectives as of_explorer
from kl_companion import audit
from kl_companion.auditing.judgment.words import divergence_words, in_words, objective_words
from kl_companion.auditing.worlds.objectives import OBJECTIVES

SAID = {
    "1 token_reverse_kl": "reverse KL, next token",
    "token_reverse_kl - token_forward_kl": "reverse KL, next token - forward KL, next token",
    "2 token_reverse_kl": "2 x reverse KL, next token",
    "1/2 sequence_entropy + 3 token_entropy": "1/2 x entropy, whole answer + 3 x entropy, next token",
    "reverse_kl - forward_kl": "reverse KL - forward KL",
    "zero": "zero",
    "unnamed": "unnamed",
    "token_amari_alpha(0.5)": "Amari alpha divergence (0.5), next token",
    "token_top_3_mass": "probability of the policy's 3 likeliest tokens",
    "token_conditional_reverse_kl_policy_top_2": "reverse KL of the policy's top 2, renormalized",
}


@pytest.mark.parametrize("text", SAID)
def test_a_line_of_a_table_in_words(text):
    assert in_words(text) == SAID[text]


def test_a_sum_in_words_is_that_of_the_card():
    assert in_words({"token_reverse_kl": 1.0, "token_entropy": -0.5}) == (
        "reverse KL, next token - 0.5 x entropy, next token"
    )
    assert in_words({}) == ""
    found = audit("k3", off_policy=False, scale=1.0)
    assert f"minimizes {in_words(found.matches)}." in str(found)


def test_the_explorer_has_the_words_of_the_audit():
    for name, text in of_explorer().items():
        assert text == f'"{OBJECTIVES[name].short}"'
        assert "_" not in text
    assert divergence_words("pearson") == "Pearson chi-squared divergence"
    assert objective_words("nothing at all") == "nothing at all"
