"""One right answer of several tokens: rests of gradient steps on whole trees, by enumeration and autograd."""

import itertools
import math

import pytest
import torch

from kl_book.long_answers import failures_at_rest, shortfall_of_the_token_level
from kl_companion.theory import success_at_rest


class Tree:
    """Every answer of so many right-or-wrong tokens, the last all right, with a logit for every prefix."""

    def __init__(self, q, length):
        self.answers = torch.tensor(list(itertools.product((0, 1), repeat=length)), dtype=torch.float64)
        starts = [[tuple(a[:t]) for t in range(length)] for a in self.answers.long().tolist()]
        rows = {prefix: i for i, prefix in enumerate(dict.fromkeys(p for s in starts for p in s))}
        self.rows = torch.tensor([[rows[p] for p in s] for s in starts])
        self.reference = torch.full((len(rows),), math.log(q / (1 - q)), dtype=torch.float64)
        self.rewards = self.answers.prod(-1)

    def logp(self, logits):
        """[answers, length]."""
        return torch.nn.functional.logsigmoid((2 * self.answers - 1) * logits[self.rows])

    def rest(self, loss, rate, steps=250):
        """Probabilities of the answers where gradient steps stop."""
        logits = self.reference
        for _ in range(steps):
            leaf = logits.clone().requires_grad_()
            (slope,) = torch.autograd.grad(loss(self.logp(leaf), self.logp(self.reference)), leaf)
            logits = logits - rate * slope
        assert slope.abs().max() < 1e-9
        return self.logp(logits)

    def advantages(self, p, size):
        """Expected advantage of every answer, the others of its group drawn from p."""
        total = torch.zeros_like(p)
        for others in map(list, itertools.product(range(len(p)), repeat=size - 1)):
            group = torch.cat([self.rewards[:, None], self.rewards[others].expand(len(p), -1)], -1)
            spread = group.std(-1, correction=0)
            total += p[others].prod() * torch.where(spread > 0, (self.rewards - group.mean(-1)) / spread, 0.0)
        return total


@pytest.mark.parametrize(("size", "length"), [(2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize(("q", "beta"), [(0.5, 0.1), (0.8, 0.3)])
def test_grpo_with_token_k3_rests_there(q, beta, size, length):
    tree = Tree(q, length)

    def loss(logp, ref_logp):
        p = logp.detach().sum(-1).exp()
        k3 = ((ref_logp - logp).exp() - 1 - ref_logp + logp).sum(-1)
        return (p * (beta * k3 - tree.advantages(p, size) * logp.sum(-1))).sum()

    rest = tree.rest(loss, 8.0)
    expected = 1 - rest[-1].sum().exp().item()
    assert failures_at_rest(q, beta, size, length) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(
    ("q", "beta", "length"), [(0.5, 0.42, 3), (0.3, 0.3, 4), (0.9, 0.65, 3), (0.5, 2.0, 2)]
)
def test_the_token_level_rests_below_the_best_policy(q, beta, length):
    tree = Tree(q, length)

    def loss(logp, ref_logp):
        p, ratio = logp.detach().sum(-1).exp(), logp - ref_logp
        return (p * (beta * (ratio**2 / 2).sum(-1) - tree.rewards * logp.sum(-1))).sum()  # K2 of tokens

    rest = tree.rest(loss, 2 / beta, steps=400)
    p, ref_logp = rest.sum(-1).exp(), tree.logp(tree.reference).sum(-1)
    there = (p * (tree.rewards - beta * (rest.sum(-1) - ref_logp))).sum()
    best = beta * (ref_logp + tree.rewards / beta).logsumexp(-1)
    assert shortfall_of_the_token_level(q, beta, length) == pytest.approx((best - there).item(), abs=1e-9)


def test_one_token_is_the_known_case():
    for size in (2, 5, 8):
        expected = 1 - success_at_rest(0.3, 0.2, size).item()
        assert failures_at_rest(0.3, 0.2, size, 1) == pytest.approx(expected, abs=1e-12)
    assert shortfall_of_the_token_level(0.3, 0.2, 1) == pytest.approx(0, abs=1e-12)
