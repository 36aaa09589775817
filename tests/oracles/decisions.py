"""One right answer of several tokens as a whole tree: every answer listed, gradients by autograd."""

import itertools
import math

import torch


class DecisionTree:
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
