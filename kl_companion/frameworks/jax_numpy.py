"""Operations of PyTorch under the names of ``jax.numpy``, to run installed text that is written in JAX.

JAX is not installed. The text of a framework is its own; ``jnp``, ``jax`` and ``optax`` are the few functions
below, nearly all of them one function of PyTorch. The tests compare every one of them with numpy.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Array(torch.Tensor):
    """A tensor with the method of JAX's arrays that PyTorch's have not; what is computed of it is one too."""

    def astype(self, dtype: Any) -> torch.Tensor:
        """The same numbers in another dtype."""
        return astype(self, dtype)


def array(x: torch.Tensor) -> torch.Tensor:
    """The tensor as an `Array`, its gradient kept."""
    return x.as_subclass(Array)


def float32(x: float) -> torch.Tensor:
    """A number in single precision; JAX uses the name as a dtype as well."""
    return torch.tensor(x, dtype=torch.float32)


def astype(x: torch.Tensor, dtype: Any) -> torch.Tensor:
    """The tensor in a dtype of PyTorch, or in `float32`."""
    return x.to(torch.float32 if dtype is float32 else dtype)


def clip(x: Any, min: Any = None, max: Any = None) -> torch.Tensor:
    """The tensor or number, between two bounds."""
    return torch.clamp(torch.as_tensor(x), min=min, max=max)


def softmax_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Of the distributions ``labels``, [..., vocab]; [...]."""
    return -(labels * logits.log_softmax(-1)).sum(-1)


def kl_divergence(log_predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """KL(targets || predictions) of distributions [..., vocab]; [...]."""
    return (torch.xlogy(targets, targets) - targets * log_predictions).sum(-1)


jnp = SimpleNamespace(
    abs=torch.abs,
    astype=astype,
    broadcast_to=torch.broadcast_to,
    clip=clip,
    exp=torch.exp,
    expand_dims=lambda x, axis: x.unsqueeze(axis),
    float32=float32,
    greater=torch.gt,
    inf=torch.inf,
    max=torch.max,
    maximum=torch.maximum,
    mean=torch.mean,
    min=torch.min,
    minimum=torch.minimum,
    square=torch.square,
    sum=lambda x, axis=None: x.sum(dim=axis),
    take_along_axis=lambda x, index, axis: x.gather(axis, index),
    where=torch.where,
)
jax = SimpleNamespace(
    Array=torch.Tensor,
    lax=SimpleNamespace(rsqrt=torch.rsqrt, stop_gradient=torch.Tensor.detach, top_k=torch.topk),
    nn=SimpleNamespace(
        log_softmax=lambda x, axis=-1: x.log_softmax(axis), softmax=lambda x, axis=-1: x.softmax(axis)
    ),
)
optax = SimpleNamespace(kl_divergence=kl_divergence, softmax_cross_entropy=softmax_cross_entropy)
