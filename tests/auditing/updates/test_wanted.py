"""What a text says that an update is meant to maximize."""

import pytest

from kl_companion.auditing.updates.wanted import wanted_of


@pytest.mark.parametrize(
    ("text", "objectives", "beta"),
    [
        ("E[R] - 0.04 * sequence_reverse_kl", {"sequence_reverse_kl"}, 0.04),
        ("E[r]-1e-3*token_forward_kl", {"token_forward_kl", "policy_token_forward_kl"}, 1e-3),
        ("E[R] - beta * sequence_reverse_kl", {"sequence_reverse_kl"}, None),
        ("E[R] - sequence_reverse_kl", {"sequence_reverse_kl"}, None),
        (" E[ R ] ", set(), 0.0),
        (
            "E[R] - 2 * reverse_kl",
            {"token_reverse_kl", "policy_token_reverse_kl", "sequence_reverse_kl"},
            2.0,
        ),
    ],
)
def test_what_is_read(text, objectives, beta):
    found = wanted_of(text)
    assert (found.text, found.objectives, found.beta) == (text, objectives, beta)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("reverse_kl", r"want is 'reverse_kl', expected 'E\[R\]' or 'E\[R\] - beta \* sequence_reverse_kl'"),
        ("E[R] + 0.1 * reverse_kl", r"want is 'E\[R\] \+ 0.1"),
        ("E[R] - gamma * reverse_kl", "want has the coefficient 'gamma', expected beta or a number"),
        ("E[R] - -1 * reverse_kl", "want has the coefficient -1, expected one that is not negative"),
        ("E[R] - 0.1 * revers_kl", "Did you mean 'reverse_kl'"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        wanted_of(text)
