"""A transformer small enough to differentiate exactly: its logits at every prefix of an enumerated world."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.tabular.worlds import Problem

Scores = Callable[[torch.Tensor], torch.Tensor]


class Network(NamedTuple):
    """A policy with parameters of its own.

    Attributes:
        parameters: [d] float64.
        logits: Differentiable function from parameters [d] to logits [rows, vocab].
    """

    parameters: torch.Tensor
    logits: Scores

    def jacobian(self) -> torch.Tensor:
        """Of the flattened logits by the parameters, at these parameters: [rows * vocab, d]."""
        out: torch.Tensor = torch.func.jacrev(lambda x: self.logits(x).flatten())(self.parameters)
        return out


def tiny_transformer(
    problem: Problem, *, width: int = 16, layers: int = 1, heads: int = 2, seed: int = 0
) -> Network:
    """A decoder with layer norms, causal attention and an MLP, read at every prefix of a world.

    It reads a start token and the tokens so far, and predicts the next one; all prefixes share its
    parameters. Weights are Gaussian with the usual 1/sqrt(inputs) scale.

    Args:
        problem: One world; only its sequences are used.
        width: Of the residual stream, a multiple of ``heads``.
        layers: Blocks of attention and MLP.
        heads: Of attention.
        seed: Of the weights.

    Raises:
        ValueError: a stack of worlds, a size below 1, or a width that the heads do not divide.
    """
    if problem.logits.ndim != 2:
        raise ValueError(f"got a stack of {len(problem.logits)} worlds, expected one world")
    if min(width, layers, heads) < 1 or width % heads:
        raise ValueError(
            f"width={width}, layers={layers}, heads={heads}: expected positive numbers, and a width that the "
            "heads divide"
        )
    rows, vocab = problem.logits.shape
    length = problem.sequences.shape[1]
    shapes = _shapes(vocab, length, width, layers)
    generator = torch.Generator().manual_seed(seed)
    # the first axis is the number of inputs, but for embeddings
    weights = [
        torch.randn(shape, generator=generator, dtype=torch.float64)
        / (1 if name in ("token", "place") else math.sqrt(shape[0]))
        for name, shape in shapes.items()
    ]
    start = torch.full_like(problem.sequences[:, :1], vocab)
    inputs = torch.cat([start, problem.sequences[:, :-1]], dim=1)
    cell = _first_cell(problem, rows)

    def logits(parameters: torch.Tensor) -> torch.Tensor:
        sizes = [math.prod(shape) for shape in shapes.values()]
        pieces = parameters.split(sizes)
        named = {name: x.view(s) for (name, s), x in zip(shapes.items(), pieces, strict=True)}
        return _decode(named, inputs, layers, heads).flatten(0, 1)[cell]

    return Network(torch.cat([w.flatten() for w in weights]), logits)


def _shapes(vocab: int, length: int, width: int, layers: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token": (vocab + 1, width), "place": (length, width)}
    for i in range(layers):
        shapes |= {f"attend{i}": (width, 3 * width), f"mix{i}": (width, width)}
        shapes |= {f"up{i}": (width, 2 * width), f"down{i}": (2 * width, width)}
    return shapes | {"out": (width, vocab)}


def _first_cell(problem: Problem, rows: int) -> torch.Tensor:
    """Where each prefix is read: the first sequence and position that it scores, flattened, [rows]."""
    where = problem.rows.masked_fill(problem.completion_mask == 0, -1).flatten()
    return torch.stack([(where == row).nonzero()[0, 0] for row in range(rows)])


def _decode(w: dict[str, torch.Tensor], inputs: torch.Tensor, layers: int, heads: int) -> torch.Tensor:
    count, length = inputs.shape
    x = w["token"][inputs] + w["place"]
    width = x.shape[-1]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for i in range(layers):
        q, k, v = (_norm(x) @ w[f"attend{i}"]).view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        attention = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf).softmax(-1)
        x = x + (attention @ v).transpose(1, 2).reshape(count, length, width) @ w[f"mix{i}"]
        x = x + torch.nn.functional.silu(_norm(x) @ w[f"up{i}"]) @ w[f"down{i}"]
    return _norm(x) @ w["out"]


def _norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])
