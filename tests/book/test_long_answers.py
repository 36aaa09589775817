"""One right answer of several tokens: rests of gradient steps on whole trees, by enumeration and autograd."""

import pytest

from kl_book.long_answers import reverse_kl_of_tokens, shortfall_of_the_token_level
from tests.oracles.decisions import DecisionTree


@pytest.mark.parametrize(
    ("q", "beta", "length"), [(0.5, 0.42, 3), (0.3, 0.3, 4), (0.9, 0.65, 3), (0.5, 2.0, 2)]
)
def test_the_token_level_rests_below_the_best_policy(q, beta, length):
    tree = DecisionTree(q, length)

    def loss(logp, ref_logp):
        p, ratio = logp.detach().sum(-1).exp(), logp - ref_logp
        return (p * (beta * (ratio**2 / 2).sum(-1) - tree.rewards * logp.sum(-1))).sum()  # K2 of tokens

    rest = tree.rest(loss, 2 / beta, steps=400)
    p, ref_logp = rest.sum(-1).exp(), tree.logp(tree.reference).sum(-1)
    there = (p * (tree.rewards - beta * (rest.sum(-1) - ref_logp))).sum()
    success, kl = reverse_kl_of_tokens(q, beta, length)
    assert success == pytest.approx(p[-1].item(), abs=1e-9)
    assert kl == pytest.approx((p * (rest.sum(-1) - ref_logp)).sum().item(), abs=1e-9)
    best = beta * (ref_logp + tree.rewards / beta).logsumexp(-1)
    assert shortfall_of_the_token_level(q, beta, length) == pytest.approx((best - there).item(), abs=1e-9)


def test_one_token_costs_nothing():
    assert shortfall_of_the_token_level(0.3, 0.2, 1) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((1.0, 0.1, 3), "reference is 1.0, expected a number above 0 and below 1"),
        ((0.5, 0.0, 3), "beta is 0.0, expected a number above 0"),
        ((0.5, 0.1, 0), "length is 0, expected a whole number of at least 1"),
    ],
)
def test_numbers_outside_their_range(numbers, message):
    for function in (reverse_kl_of_tokens, shortfall_of_the_token_level):
        with pytest.raises(ValueError, match=message):
            function(*numbers)
