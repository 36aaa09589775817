"""Gradients of an enumerated transformer from loops written by hand; the package is not used."""

import itertools
import math

import torch

VOCAB, LENGTH = 4, 3


# Written by hand: one forward pass for one prefix, one term for one token.


def next_logp(model, prefix):
    begin = model.config.vocab_size - 1
    logits = model(input_ids=torch.tensor([[begin, *prefix]]), use_cache=False).logits[0, -1]
    return logits[:begin].log_softmax(-1)


def flat_gradient(scalar, model):
    found = torch.autograd.grad(scalar, list(model.parameters()), materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


def by_hand(term, policy, reference, sampler, length):
    """sum_y mu(y) grad(term of y's tokens), where term gets (logp, ref_logp, all, ref_all) per token."""
    total = 0.0
    for y in itertools.product(range(policy.config.vocab_size - 1), repeat=length):
        prefixes = [y[:t] for t in range(length)]
        mine = [next_logp(policy, prefix) for prefix in prefixes]
        with torch.no_grad():
            ref = [next_logp(reference, prefix) for prefix in prefixes]
            mu = math.exp(sum(next_logp(sampler, y[:t])[y[t]].item() for t in range(length)))
        total = total + mu * term(
            [a[i] for a, i in zip(mine, y, strict=True)],
            [b[i] for b, i in zip(ref, y, strict=True)],
            mine,
            ref,
        )
    return flat_gradient(total, policy)


def k1_term(p, q, all_p, all_q):
    return sum(p) - sum(q)


def k2_term(p, q, all_p, all_q):
    return sum((a - b) ** 2 / 2 for a, b in zip(p, q, strict=True))


def k3_term(p, q, all_p, all_q):
    return sum(torch.exp(b - a) - 1 - (b - a) for a, b in zip(p, q, strict=True))


def k3_reward_term(p, q, all_p, all_q):
    return k3_term(p, q, all_p, all_q).detach() * sum(p)


def k3_sequence_term(p, q, all_p, all_q):
    return k3_term([sum(p)], [sum(q)], all_p, all_q)


def cumulative_term(p, q, all_p, all_q):
    ahead = [sum(p[u] - q[u] for u in range(t, len(p))).detach() for t in range(len(p))]
    return sum(c * a for c, a in zip(ahead, p, strict=True))


def exact_term(p, q, all_p, all_q):
    return sum((a.exp() * (a - b)).sum() for a, b in zip(all_p, all_q, strict=True))
