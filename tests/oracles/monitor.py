"""What a monitor has to find, written out for tiny vocabularies; shares no code with the package."""

import itertools
import math

import torch


def k1(u):
    """Of a log-ratio log policy/reference."""
    return u


def k2(u):
    return u * u / 2


def k3(u):
    return math.exp(-u) - 1 + u


def softmax(scores, temperature=1.0):
    """Probabilities of one row of logits."""
    top = max(scores)
    weights = [math.exp((x - top) / temperature) for x in scores]
    return [w / sum(weights) for w in weights]


def kl(p, q):
    """KL(p || q); a token without mass under p adds nothing."""
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def mean_and_error(rows, estimator):
    """Expectation and standard deviation of the mean of an estimator over all draws of all tokens.

    ``rows`` holds (p, q) of every position; every combination of tokens is counted.
    """
    first = second = 0.0
    for draw in itertools.product(*(range(len(p)) for p, _ in rows)):
        chance = math.prod(p[y] for (p, _), y in zip(rows, draw, strict=True))
        if chance == 0:
            continue
        value = sum(estimator(math.log(p[y] / q[y])) for (p, q), y in zip(rows, draw, strict=True)) / len(
            rows
        )
        first += chance * value
        second += chance * value**2
    return first, math.sqrt(max(0.0, second - first**2))


def ratio_interval(sums, lengths, quantile):
    """Mean per token of answers with these sums and lengths, and an interval by linearization."""
    n = len(sums)
    mean = sum(sums) / sum(lengths)
    residuals = [a - mean * length for a, length in zip(sums, lengths, strict=True)]
    spread = math.sqrt(n / (n - 1) * sum(r * r for r in residuals)) / sum(lengths)
    return mean, mean - quantile * spread, mean + quantile * spread


def pull(logits, ends, loss):
    """Minus the derivative of a loss of log-probs [tokens, vocab] by a common shift of the ends' logits."""
    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    where = torch.zeros(logits.shape[-1], dtype=torch.float64)
    where[list(ends)] = 1.0
    loss((logits + shift * where).log_softmax(-1)).backward()
    return -shift.grad.item()


def engine(scores, token, temperature, top_p=1.0, top_k=0):
    """Log-prob of a token under a sampler that warms and cuts, its kept mass, the log-prob before the cut."""
    p = softmax(scores, temperature)
    order = sorted(range(len(p)), key=lambda y: -p[y])
    kept = order[: top_k or len(p)]
    mass = sum(p[y] for y in kept)
    nucleus, held = [], 0.0
    for y in kept:
        if held >= top_p * mass and top_p < 1:
            break
        nucleus.append(y)
        held += p[y]
    if token not in nucleus:
        return -math.inf, held, math.log(p[token])
    return math.log(p[token] / held), held, math.log(p[token])
