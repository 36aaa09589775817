"""Registered names as a page has them: a minus sign and a cross, and the words of the card."""

from kl_book.words import gradient_words, typeset
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.recommendations import LENGTHS, RECOMMENDATIONS


def test_a_page_has_a_minus_sign_and_a_cross():
    assert typeset("2 token_reverse_kl - token_entropy") == "2 × reverse KL, next token − entropy, next token"
    assert typeset({"reverse_kl": -1.0}) == "− reverse KL"


def test_gradients_of_the_guide_are_in_the_audit_s_words():
    assert gradient_words("zero") == "has zero expected gradient"
    assert gradient_words("other") == "has the gradient of no KL"
    parts = [p for r in RECOMMENDATIONS.values() for p in (r, *r.alternatives, *r.pitfalls)]
    for part in (*parts, *LENGTHS):
        assert "_" not in gradient_words(part.objective)
    assert gradient_words("token_reverse_kl") == f"has the gradient of {OBJECTIVES['token_reverse_kl'].short}"
