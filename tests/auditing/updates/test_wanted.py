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
        ("E[R] - 2 * reverse_kl", {f"{x}_reverse_kl" for x in ("token", "policy_token", "sequence")}, 2.0),
    ],
)
def test_what_is_read(text, objectives, beta):
    found = wanted_of(text)
    assert (found.text, found.objectives, found.beta) == (text, objectives, beta)
