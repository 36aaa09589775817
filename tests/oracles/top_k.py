"""Top-k divergences token by token, with loops and probabilities; shares no code with the package.

A row is a tensor of logits [vocab]; a head is a list of token ids. Generators are functions of t = P/Q.
"""

import math

import torch

LOG2 = math.log(2.0)

# normalized by hand to f(1) = f'(1) = 0
NORMALIZED = {
    "reverse_kl": lambda t: t * torch.log(t) - t + 1,
    "forward_kl": lambda t: t - 1 - torch.log(t),
    "jensen_shannon": lambda t: (t * torch.log(t) - (t + 1) * (torch.log(t + 1) - LOG2)) / 2,
    "squared_hellinger": lambda t: (1 + t) / 2 - torch.sqrt(t),
    "pearson": lambda t: t * t - 2 * t + 1,
    "neyman": lambda t: t - 2 + 1 / t,
    "total_variation": lambda t: torch.abs(1 - t) / 2,
    "amari_alpha(0.5)": lambda t: 16 / 3 - 16 / 3 * t**0.75 + 4 * (t - 1),
    "power_divergence(1.5)": lambda t: 4 / 3 * t**1.5 - 2 * t + 2 / 3,
}
# f'(1) of the generators as they are registered: t log t, -log t and Amari's; the others have none
SLOPE = {"reverse_kl": 1.0, "forward_kl": -1.0, "amari_alpha(0.5)": -4.0}


def probabilities(logits):
    parts = [torch.exp(x) for x in logits]
    total = sum(parts)
    return [x / total for x in parts]


def written(name, form):
    """(the generator that a form writes, the multiple of log r that its tail drops)."""
    f, slope = NORMALIZED[name], SLOPE.get(name, 0.0)
    if form == "bregman":
        return f, 0.0
    return (lambda t: f(t) + slope * (t - 1)), slope if form == "published" else 0.0


def estimate(name, form, p, q, token, head, weight=1.0):
    """One sample: the exact sum over the head, and the sampled term when the token is outside it."""
    f, dropped = written(name, form)
    total = torch.zeros((), dtype=torch.float64)
    for j in head:
        total = total + q[j] * f(p[j] / q[j])
    if token in head:
        return total
    ratio = p[token] / p[token].detach()
    return total + weight * (
        ratio * q[token] / p[token] * f(p[token] / q[token]) - dropped * torch.log(ratio)
    )


def divergence(name, p, q):
    return sum(b * NORMALIZED[name](a / b) for a, b in zip(p, q, strict=True))


def mass(p, head):
    return sum((p[j] for j in head), torch.zeros((), dtype=torch.float64))


def likeliest(scores, k):
    """The k largest, by sorting."""
    return sorted(range(len(scores)), key=lambda j: -float(scores[j]))[:k]
