"""Divergences, log-probs, entropy and top-k from raw logits, row by row; shares no code with the package.

Everything is written on float64 log-probs, entry by entry, and differentiated by autograd. A token that
is -inf on both sides is taken out of its row before anything is summed.
"""

import math

import torch

LOG2 = math.log(2.0)
INF = math.inf


def _jensen_shannon(lp, lq):
    middle = torch.logaddexp(lp, lq) - LOG2
    return (lp.exp() * (lp - middle) + lq.exp() * (lq - middle)) / 2


def amari(alpha):
    """4/(1 - a^2) (Q - P^e Q^(1-e)), e = (1 + a)/2, made flat at P = Q by a multiple of P - Q."""
    e, c = (1 + alpha) / 2, 4 / (1 - alpha**2)
    return lambda lp, lq: c * (lq.exp() - (e * lp + (1 - e) * lq).exp()) + c * e * (lp.exp() - lq.exp())


def power(a):
    """(P^a Q^(1-a) - Q - a (P - Q)) / (a (a - 1))."""
    return lambda lp, lq: (
        ((a * lp + (1 - a) * lq).exp() - lq.exp() - a * (lp.exp() - lq.exp())) / (a * (a - 1))
    )


# Q f(P/Q) with f(1) = f'(1) = 0, from log P and log Q
ENTRY = {
    "reverse_kl": lambda lp, lq: lp.exp() * (lp - lq) - lp.exp() + lq.exp(),
    "forward_kl": lambda lp, lq: lq.exp() * (lq - lp) - lq.exp() + lp.exp(),
    "jensen_shannon": _jensen_shannon,
    "squared_hellinger": lambda lp, lq: ((lp / 2).exp() - (lq / 2).exp()) ** 2 / 2,
    "pearson": lambda lp, lq: (2 * lp - lq).exp() - 2 * lp.exp() + lq.exp(),
    "neyman": lambda lp, lq: (2 * lq - lp).exp() - 2 * lq.exp() + lp.exp(),
    "total_variation": lambda lp, lq: (lp.exp() - lq.exp()).abs() / 2,
    "amari_alpha(0.5)": amari(0.5),
    "power_divergence(1.5)": power(1.5),
}
# (f(0), lim f(t)/t): what a unit of mass costs that the other side does not have
EDGES = {
    "reverse_kl": (1.0, INF),
    "forward_kl": (INF, 1.0),
    "jensen_shannon": (LOG2 / 2, LOG2 / 2),
    "squared_hellinger": (0.5, 0.5),
    "pearson": (1.0, INF),
    "neyman": (INF, 1.0),
    "total_variation": (0.5, 0.5),
    "amari_alpha(0.5)": (4 / 3, 4.0),
    "power_divergence(1.5)": (2 / 3, INF),
}
# f'(1) of the generators as they are registered: t log t, -log t and Amari's; the others have none
SLOPE = {"reverse_kl": 1.0, "forward_kl": -1.0, "amari_alpha(0.5)": -4.0}


def scaled(logits, temperature=1.0, soft_cap=None):
    """float64 rows [rows, vocab] with the largest logit at 0; the soft-cap comes before the temperature."""
    x = logits.double().reshape(math.prod(logits.shape[:-1]), logits.shape[-1])
    if soft_cap is not None:
        x = soft_cap * torch.tanh(x / soft_cap)
    return (x - x.detach().amax(-1, keepdim=True)) / temperature


def _terms(name, lp, lq):
    """sum of Q f(P/Q) over what is given; log-probs may be -inf."""
    no_p, no_q = lp.isneginf(), lq.isneginf()
    both = ~no_p & ~no_q
    total = ENTRY[name](lp[both], lq[both]).sum()
    for cost, mass in zip(EDGES[name], (lq[no_p & ~no_q], lp[no_q & ~no_p]), strict=True):
        if len(mass):
            total = total + cost * mass.exp().sum()
    return total


def divergence(name, logits, ref_logits, *, temperature=1.0, soft_cap=None, ref_soft_cap=None):
    """D_f(policy || reference) of every row: [..., vocab] -> [...]."""
    out = []
    policy, reference = scaled(logits, temperature, soft_cap), scaled(ref_logits, temperature, ref_soft_cap)
    for x, y in zip(policy, reference, strict=True):
        kept = ~(x.isneginf() & y.isneginf())
        out.append(_terms(name, x[kept].log_softmax(-1), y[kept].log_softmax(-1)))
    return _stacked(out, logits)


def _stacked(values, logits):
    lead = logits.shape[:-1]
    return torch.stack(values).reshape(lead) if values else logits.double().sum(-1)


def logp(logits, tokens, *, temperature=1.0, soft_cap=None):
    """Log-probs of given tokens: one a row, [...], or several, [..., k]."""
    rows = scaled(logits, temperature, soft_cap)
    ids_of_rows = tokens.reshape(len(rows), math.prod(tokens.shape) // max(1, len(rows)))
    picked = [x.log_softmax(-1)[ids] for x, ids in zip(rows, ids_of_rows, strict=True)]
    return torch.stack(picked).reshape(tokens.shape) if picked else logits.double().sum() + tokens.double()


def entropy(logits, *, temperature=1.0, soft_cap=None):
    """-sum P log P of every row."""
    out = []
    for x in scaled(logits, temperature, soft_cap):
        lp = x[~x.isneginf()].log_softmax(-1)
        out.append(-(lp.exp() * lp).sum())
    return _stacked(out, logits)


def top_k(
    name, logits, tokens, indices, ref_logp_head, ref_logp, *, form="bregman", tail_weight=None,
    temperature=1.0, soft_cap=None,
):  # fmt: skip
    """Exact sum over the given head; where the token is outside it, one sampled term."""
    rows = scaled(logits, temperature, soft_cap)
    size = indices.shape[-1]
    heads, tokens_flat = indices.expand(*logits.shape[:-1], size).reshape(len(rows), size), tokens.reshape(-1)
    lq_heads, lq_tokens = ref_logp_head.double().reshape(len(rows), size), ref_logp.double().reshape(-1)
    weights = torch.ones(len(rows)) if tail_weight is None else tail_weight.reshape(-1)
    slope = SLOPE.get(name, 0.0)
    out = []
    for x, head, token, lq_head, lq, weight in zip(
        rows, heads, tokens_flat, lq_heads, lq_tokens, weights.double(), strict=True
    ):
        lp = x.log_softmax(-1)
        total = _terms(name, lp[head], lq_head)
        if form != "bregman":
            total = total + slope * (lp[head].exp() - lq_head.exp()).sum()
        if token not in head:
            u = lp[token]
            value = ENTRY[name](u, lq)
            if form != "bregman":
                value = value + slope * (u.exp() - lq.exp())
            log_r = u - u.detach()
            sampled = log_r.exp() * value / u.exp()
            total = total + weight * (sampled - (slope * log_r if form == "published" else 0.0))
        out.append(total)
    return _stacked(out, logits)


def linear(hidden, weight, bias=None):
    """hidden [..., D] times weight [V, D], float64."""
    logits = hidden.double() @ weight.double().T
    return logits if bias is None else logits + bias.double()


def gradients(value, leaves, weights=None):
    """Gradients of sum(weights * value) by the leaves, each in float64."""
    total = value.sum() if weights is None else (weights.double() * value).sum()
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def leaf(x):
    """A float64 copy that autograd differentiates by."""
    return x.detach().double().clone().requires_grad_()
