"""What is measured: the inputs of each work, and its gradient in float64 on a few rows.

A work is one computation that several variants (`benchmarks.peers`) do in their own way: loss = mean over
tokens of a divergence or a log-prob, and its gradient. Logits have the spread of a language model's (standard
deviation 3), policy and reference differ by half a nat per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from kl_companion.estimators.top_k import top_k_f_divergence

SPREAD, APART, HEAD = 3.0, 0.5, 32
ROWS = 4  # tokens whose gradient is compared with float64
CHUNK = 8192  # entries of the vocabulary that a float64 matrix product takes at a time
LINEAR = ("linear_kl",)


@dataclass
class Inputs:
    """Tensors of one work; those that it does not use are empty. Shapes: N tokens, V entries, D hidden."""

    x: torch.Tensor  # [N, V], requires grad
    y: torch.Tensor  # [N, V]
    tokens: torch.Tensor  # [N]
    weights: torch.Tensor  # [N], 1/N each
    indices: torch.Tensor  # [N, k]: the reference's likeliest
    ref_logp_head: torch.Tensor  # [N, k]
    ref_logp: torch.Tensor  # [N]
    hidden: torch.Tensor  # [N, D], requires grad
    ref_hidden: torch.Tensor  # [N, D]
    weight: torch.Tensor  # [V, D], requires grad
    ref_weight: torch.Tensor  # [V, D]
    kept: torch.Tensor | None = None  # what x was, for variants that use its memory up
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def refill(self) -> None:
        """Make x again what it was."""
        if self.kept is not None:
            with torch.no_grad():
                self.x.copy_(self.kept)


def make_inputs(
    work: str, dtype: torch.dtype, tokens: int, vocab: int, hidden: int = 0, device: str = "cpu"
) -> Inputs:
    """Seeded inputs of a work."""
    g = torch.Generator(device).manual_seed(0)
    empty = torch.empty(0, device=device)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, device=device, dtype=torch.float32)

    one_each = torch.full((tokens,), 1 / tokens, device=device)
    sampled = torch.randint(vocab, (tokens,), generator=g, device=device)
    if work in LINEAR:
        weight = noise(vocab, hidden).mul_(SPREAD / hidden**0.5)
        ref_weight = noise(vocab, hidden).mul_(APART / hidden**0.5).add_(weight).to(dtype)
        states = noise(tokens, hidden)
        ref_states = (states + 0.05 * noise(tokens, hidden)).to(dtype)
        return Inputs(
            *(empty, empty, sampled, one_each, empty, empty, empty),
            hidden=states.to(dtype).requires_grad_(),
            ref_hidden=ref_states,
            weight=weight.to(dtype).requires_grad_(),
            ref_weight=ref_weight,
        )
    x = noise(tokens, vocab).mul_(SPREAD)
    y = noise(tokens, vocab).mul_(APART).add_(x).to(dtype)
    x = x.to(dtype).requires_grad_()
    indices = head = at_token = empty
    if work == "top_k":
        indices = y.topk(min(HEAD, vocab // 2), dim=-1).indices
        lse = torch.stack([row.float().logsumexp(-1) for row in y])
        head = y.gather(-1, indices).float() - lse.unsqueeze(-1)
        at_token = y.gather(-1, sampled.unsqueeze(-1)).squeeze(-1).float() - lse
    return Inputs(x, y, sampled, one_each, indices, head, at_token, empty, empty, empty, empty)


def reverse_kl(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference) of raw logits as most people write it, [N, V] -> [N]."""
    logp, ref_logp = x.log_softmax(-1), y.log_softmax(-1)
    return (logp.exp() * (logp - ref_logp)).sum(-1)


def forward_kl(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """KL(reference || policy) of raw logits, [N, V] -> [N]."""
    return reverse_kl(y, x)


def jensen_shannon(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean of both KLs to the half-half mixture, [N, V] -> [N]."""
    logp, ref_logp = x.log_softmax(-1), y.log_softmax(-1)
    middle = torch.logaddexp(logp, ref_logp) - math.log(2.0)
    return 0.5 * (logp.exp() * (logp - middle) + ref_logp.exp() * (ref_logp - middle)).sum(-1)


def pearson(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Sum of (P - Q)^2 / Q, [N, V] -> [N]."""
    p, q = x.softmax(-1), y.softmax(-1)
    return ((p - q) ** 2 / q).sum(-1)


def squared_hellinger(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Half the sum of (sqrt P - sqrt Q)^2, [N, V] -> [N]."""
    return 0.5 * (x.softmax(-1).sqrt() - y.softmax(-1).sqrt()).square().sum(-1)


def logp(x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of the tokens, [N, V] and [N] -> [N]."""
    return x.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def logp_entropy(x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of the tokens plus entropies, [N, V] and [N] -> [N]."""
    logp_all = x.log_softmax(-1)
    entropy = -(logp_all.exp() * logp_all).sum(-1)
    return logp_all.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) + entropy


Formula = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DIVERGENCES: dict[str, Formula] = {
    "reverse_kl": reverse_kl,
    "forward_kl": forward_kl,
    "jensen_shannon": jensen_shannon,
    "pearson": pearson,
    "squared_hellinger": squared_hellinger,
}
FORMULAS = DIVERGENCES | {"logp": logp, "logp_entropy": logp_entropy}


def _wide_product(states: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """states @ weight.T in float64, without a float64 copy of the whole weight."""
    wide = states.detach().double()
    return torch.cat([wide @ part.double().T for part in weight.detach().split(CHUNK)], dim=-1)


def true_values(truth: str, i: Inputs, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of the first rows and the logits that they are of, in float64: [rows] and a leaf [rows, V]."""
    if truth == "linear_kl":
        x = _wide_product(i.hidden[:rows], i.weight).requires_grad_()
        return reverse_kl(x, _wide_product(i.ref_hidden[:rows], i.ref_weight)), x
    x = i.x[:rows].detach().double().requires_grad_()
    if truth in ("logp", "logp_entropy"):
        return FORMULAS[truth](x, i.tokens[:rows]), x
    y = i.y[:rows].double()
    if truth == "top_k":
        logp_all, ref_logp_all = x.log_softmax(-1), y.log_softmax(-1)
        head, tokens = i.indices[:rows], i.tokens[:rows]
        return top_k_f_divergence("reverse_kl", logp_all, ref_logp_all, tokens, indices=head), x
    return FORMULAS[truth](x, y), x


def true_gradient(truth: str, i: Inputs, rows: int = ROWS) -> torch.Tensor:
    """Gradient of the mean over all tokens by the logits, or by the hidden states, of the first rows."""
    values, x = true_values(truth, i, rows)
    (gradient,) = torch.autograd.grad(values.sum() * i.weights[0].double(), x)
    if truth != "linear_kl":
        return gradient
    parts = zip(gradient.split(CHUNK, dim=-1), i.weight.detach().split(CHUNK), strict=True)
    return torch.stack([g @ w.double() for g, w in parts]).sum(0)


def relative_error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Length of the difference over the length of the truth."""
    return ((found.double() - truth).norm() / truth.norm()).item()
