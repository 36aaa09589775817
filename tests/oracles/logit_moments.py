"""Moments at one row of raw logits, from every draw and its gradient; shares no code with the package."""

import itertools
import math

import torch

# value and gradient weight of a draw in terms of x = log p - log q, by hand
BY_HAND = {
    "k1": (lambda x: x, lambda x: 1.0),
    "k2": (lambda x: x * x / 2, lambda x: x),
    "k3": (lambda x: math.exp(-x) - 1 + x, lambda x: 1 - math.exp(-x)),
    "k3_plus_plus": (lambda x: math.exp(-x) - 1 + x, lambda x: x),
    "k4": (lambda x: x, lambda x: x),
    "k5": (lambda x: -x * math.exp(-x), lambda x: 1 - math.exp(-x)),
}
LOG2 = math.log(2.0)
# generators with f(1) = f'(1) = 0, as functions of t = P/Q
GENERATORS = {
    "reverse_kl": lambda t: t * torch.log(t) - t + 1,
    "forward_kl": lambda t: t - 1 - torch.log(t),
    "jensen_shannon": lambda t: (t * torch.log(t) - (t + 1) * (torch.log(t + 1) - LOG2)) / 2,
    "pearson": lambda t: t * t - 2 * t + 1,
}


def softmax(raw, temperature):
    """Probabilities of a row of logits; a masked token (-inf) has none."""
    top = max(x.item() for x in raw)
    parts = [torch.exp((x - top) / temperature) if math.isfinite(x.item()) else 0.0 * top for x in raw]
    total = sum(parts)
    return [x / total for x in parts]


def divergence(name, p, q):
    return sum(b * GENERATORS[name](a / b) for a, b in zip(p, q, strict=True) if float(b) > 0)


def of_a_draw(what, name, p, q, token, head):
    """(what is summed exactly, what the draw adds to it), both differentiable in p."""
    nothing = 0.0 * sum(p)
    if what == "exact":
        return divergence(name, p, q), nothing
    if what == "sampled":
        value, weight = BY_HAND[name]
        x = math.log(p[token].item() / q[token])
        return nothing, value(x) + weight(x) * (torch.log(p[token]) - torch.log(p[token]).detach())
    f = GENERATORS[name]
    total = sum((q[j] * f(p[j] / q[j]) for j in head if float(q[j]) > 0), nothing)
    if what == "head" or token in head:
        return total, nothing
    ratio = p[token] / p[token].detach()
    return total, ratio * q[token] / p[token] * f(p[token] / q[token])


def moments(case, rows, n, *, against, head=(), placement="loss", temperature=1.0, weighted=True, clip=None):
    """The eight numbers of a row: a dict. ``rows`` is (policy, reference, sampler), raw logits [vocab]."""
    q, mu = ([float(x) for x in softmax(row, temperature)] for row in rows[1:])
    chances, values, gradients = [], [], []
    for token, chance in enumerate(mu):
        if chance == 0:
            continue
        raw = rows[0].clone().requires_grad_()
        p = softmax(raw, temperature)
        rho = p[token].item() / chance if weighted else 1.0
        rho = rho if clip is None else min(max(rho, clip[0]), clip[1])
        summed, drawn = of_a_draw(*case, p, q, token, head)
        loss = summed + rho * drawn
        values.append(loss.item())
        if placement == "reward":
            loss = rho * (summed + drawn).item() * torch.log(p[token])
        gradients.append(torch.autograd.grad(loss, raw)[0])
        chances.append(chance)
    raw = rows[0].clone().requires_grad_()
    exact = divergence(against, softmax(raw, temperature), q)
    (exact_slope,) = torch.autograd.grad(exact, raw)
    groups = list(itertools.product(range(len(chances)), repeat=n))
    weight = [math.prod(chances[i] for i in group) for group in groups]
    each = [sum(values[i] for i in group) / n for group in groups]
    pull = [sum(gradients[i] for i in group) / n for group in groups]
    mean = math.fsum(w * x for w, x in zip(weight, each, strict=True))
    slope = sum(w * g for w, g in zip(weight, pull, strict=True))
    square = math.fsum(w * (x - mean) ** 2 for w, x in zip(weight, each, strict=True))
    size = math.fsum(w * (g - slope).square().sum().item() for w, g in zip(weight, pull, strict=True))
    return {
        "value": mean,
        "value_bias": mean - exact.item(),
        "value_variance": square,
        "gradient_norm": slope.norm().item(),
        "gradient_bias": (slope - exact_slope).norm().item(),
        "gradient_variance": size,
        "divergence": exact.item(),
        "divergence_gradient_norm": exact_slope.norm().item(),
    }


def likeliest(row, k):
    """The k largest entries of a row, by sorting."""
    return sorted(range(len(row)), key=lambda j: -float(row[j]))[:k]
