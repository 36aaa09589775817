"""Every function of the kernels under `torch.func`, on meta, on views, in inference, with default dtypes."""

from __future__ import annotations

import pytest
import torch

from kl_companion.kernels import (
    fused_f_divergence,
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
    fused_top_k_f_divergence,
    linear_f_divergence,
    linear_forward_kl,
    linear_kl,
    linear_logp,
    linear_logp_and_entropy,
    linear_top_k_f_divergence,
)
from tests.support.fused_cases import noise
from tests.support.transforms import SETTINGS

VOCAB, WIDTH, ROWS = 7, 4, 3
LAYER, REF_LAYER, BIAS = noise(1, VOCAB, WIDTH), noise(2, VOCAB, WIDTH), noise(3, VOCAB)


def logits(seed, length):
    return noise(seed, length, ROWS, VOCAB)


def hidden(seed, length):
    return noise(seed, length, ROWS, WIDTH)


def ids(length, *more):
    return (torch.arange(length * ROWS) % VOCAB).view(length, ROWS, *more)


def head(length):
    return (ids(length, 1) + torch.tensor([1, 2])) % VOCAB


def shipped(length):
    """Head and its log-probs, and that of the token."""
    logp = logits(5, length).log_softmax(-1)
    return head(length), logp.gather(-1, head(length)), logp.gather(-1, ids(length, 1)).squeeze(-1)


def mask(length):
    return torch.arange(length * ROWS).view(length, ROWS) % 4 > 0


def on(like, x):
    """A constant on the device of an argument."""
    return x.to(like.device)


CASES = {
    "fused_kl": (fused_kl, lambda n: (logits(4, n), logits(5, n))),
    "fused_forward_kl": (fused_forward_kl, lambda n: (logits(4, n), logits(5, n))),
    "fused_kl, scaled": (
        lambda x, y, m: fused_kl(x, y, mask=m, logit_scale=0.5, temperature=2.0, ref_temperature=0.7),
        lambda n: (logits(4, n), logits(5, n), mask(n)),
    ),
    "fused_f_divergence": (
        lambda x, y: fused_f_divergence("jensen_shannon", x, y),
        lambda n: (logits(4, n), logits(5, n)),
    ),
    "fused_logp": (fused_logp, lambda n: (logits(4, n), ids(n))),
    "fused_logp of two": (fused_logp, lambda n: (logits(4, n), head(n))),
    "fused_logp_and_entropy": (
        lambda x, t, m: torch.stack(fused_logp_and_entropy(x, t, mask=m)),
        lambda n: (logits(4, n), ids(n), mask(n)),
    ),
    "fused_top_k_f_divergence": (
        lambda x, t, m, *rest: fused_top_k_f_divergence("reverse_kl", x, t, *rest, mask=m),
        lambda n: (logits(4, n), ids(n), mask(n), *shipped(n)),
    ),
    "linear_kl": (
        lambda h, r: linear_kl(
            h, on(h, LAYER), ref_hidden=r, ref_weight=on(h, REF_LAYER), bias=on(h, BIAS), soft_cap=3.0
        ),
        lambda n: (hidden(6, n), hidden(7, n)),
    ),
    "linear_forward_kl": (
        lambda h, y: linear_forward_kl(h, on(h, LAYER), ref_logits=y, ref_logit_scale=2.0),
        lambda n: (hidden(6, n), logits(5, n)),
    ),
    "linear_f_divergence": (
        lambda h, y, m: linear_f_divergence("squared_hellinger", h, on(h, LAYER), ref_logits=y, mask=m),
        lambda n: (hidden(6, n), logits(5, n), mask(n)),
    ),
    "linear_logp": (lambda h, t: linear_logp(h, on(h, LAYER), t), lambda n: (hidden(6, n), ids(n))),
    "linear_logp_and_entropy": (
        lambda h, t: torch.stack(linear_logp_and_entropy(h, on(h, LAYER), t, bias=on(h, BIAS))),
        lambda n: (hidden(6, n), ids(n)),
    ),
    "linear_top_k_f_divergence": (
        lambda h, t, *rest: linear_top_k_f_divergence("pearson", h, on(h, LAYER), t, *rest),
        lambda n: (hidden(6, n), ids(n), *shipped(n)),
    ),
}


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "compile"])
@pytest.mark.parametrize("name", list(CASES))
def test_settings(name, setting):
    SETTINGS[setting](*CASES[name])


def test_the_second_derivative_of_plain_torch():
    x, y = logits(4, 1)[0, 0], logits(5, 1)[0, 0]
    got = torch.func.hessian(lambda x: fused_kl(x, y))(x)
    p, q = x.softmax(-1), y.log_softmax(-1)
    f = p.log() - q
    kl = (p * f).sum()
    slope = p * (f - kl)
    want = torch.diag(slope + p) - torch.outer(p, slope + p) - torch.outer(slope, p)
    torch.testing.assert_close(got, want)
