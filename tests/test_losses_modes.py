"""Losses under vmap, in graphs, on meta and inference tensors; and what they read on the host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kl_companion import aggregate, kl_loss, kl_reward, kl_terms, policy_gradient_loss
from kl_companion.rollout import Rollout, credit, importance_ratio, importance_weight
from tests.support.transforms import SETTINGS, compiled_by_default
from tests.support.warm import command

ROWS, BATCH, VOCAB = 3, 2, 5


def mask_of(length: int) -> torch.Tensor:
    """[rows, batch, seq]: holes, and rows of another length."""
    mask = torch.ones(ROWS, BATCH, length, dtype=torch.float64)
    mask[0, 0, 0] = 0
    mask[:, 1, -1] = 0
    return mask


def sampled(length: int) -> tuple[torch.Tensor, ...]:
    """Log-probs of policy, reference and sampler, and a mask, [rows, batch, seq]."""
    draw = torch.Generator().manual_seed(length)
    shape = (ROWS, BATCH, length)
    return (*(-torch.rand(shape, generator=draw, dtype=torch.float64) for _ in range(3)), mask_of(length))


def scores(length: int) -> tuple[torch.Tensor, ...]:
    """Logits of policy, reference and sampler [rows, batch, seq, vocab], a mask and token ids."""
    draw = torch.Generator().manual_seed(length)
    shape = (ROWS, BATCH, length, VOCAB)
    logits = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(3))
    return (*logits, mask_of(length), torch.randint(VOCAB, shape[:-1], generator=draw))


def of_samples(loss: Callable[..., torch.Tensor], *args: Any, **options: Any) -> Callable[..., torch.Tensor]:
    """A function of the tensors of `sampled`; gradients of zero are taken for what is detached."""

    def function(logp, ref_logp, behavior_logp, mask):
        rollout = Rollout(torch.zeros_like(mask, dtype=torch.long), mask, logp, ref_logp, behavior_logp)
        return loss(rollout, *args, **options) + 0 * logp.sum()

    return function


def of_logits(loss: Callable[..., torch.Tensor], *args: Any, **options: Any) -> Callable[..., torch.Tensor]:
    """A function of the tensors of `scores`."""

    def function(logits, ref_logits, behavior_logits, mask, tokens):
        rollout = Rollout.from_logits(tokens, mask, logits, ref_logits, behavior_logits=behavior_logits)
        return loss(rollout, *args, **options) + 0 * logits.sum()

    return function


ATTACHED = {"importance": "prefix", "ratio": "attached", "clip": (0.5, 2.0)}
OF_SAMPLES = {
    "k1": of_samples(kl_loss, "k1"),
    "k3, ratio in the graph": of_samples(kl_loss, "k3", **ATTACHED),
    "k2 of sequences": of_samples(kl_loss, "k2", level="sequence"),
    "k1 as a score": of_samples(kl_loss, "k1", credit=0.9),
    "a function": of_samples(kl_loss, lambda logp, ref_logp: (logp - ref_logp) ** 2, how="token_mean"),
    "kf++, divided by a constant": of_samples(kl_loss, "kf_plus_plus(pearson)", how="constant", length=4),
    "terms": of_samples(kl_terms, "k3", how="sequence_mean"),
    "reward": of_samples(kl_reward, "k3"),
    "reward of tokens": of_samples(kl_reward, "k3", level="token", credit=0.5),
    "policy gradient": of_samples(lambda r: policy_gradient_loss(r, r.ref_logp)),
    "ratio": of_samples(importance_ratio, scope="token"),
    "weight": of_samples(importance_weight, scope="sequence"),
    "aggregate": lambda x, ref, mu, mask: aggregate(x, mask, "token_mean"),
    "credit": lambda x, ref, mu, mask: credit(x, mask, discount=0.9),
    "future": lambda x, ref, mu, mask: credit(x, mask),
}
OF_LOGITS = {
    "k1": of_logits(kl_loss, "k1"),
    "exact": of_logits(kl_loss, "exact_kl"),
    "top k": of_logits(kl_loss, "top_k_reverse_kl(2)"),
    "exact reward": of_logits(kl_reward, "exact_kl", level="token"),
}
CASES = [*((OF_SAMPLES, sampled, x) for x in OF_SAMPLES), *((OF_LOGITS, scores, x) for x in OF_LOGITS)]


BY_DEFAULT = {"k3, ratio in the graph", "reward of tokens", "policy gradient", "top k"}


@pytest.mark.parametrize("setting", [x for x in SETTINGS if x != "compile"])
@pytest.mark.parametrize(("functions", "arguments", "name"), CASES)
def test_in_every_setting(functions, arguments, name, setting) -> None:
    if setting == "vmap":  # the first axis is mapped: each row is a batch of its own
        SETTINGS[setting](functions[name], arguments)
    else:
        SETTINGS[setting](functions[name], lambda length: tuple(x[1] for x in arguments(length)))


def in_graphs() -> None:
    """Compile every function without breaks, and a loss of rollouts that were made before."""
    for functions, arguments, name in CASES:

        def of_a_batch(length, arguments=arguments):
            return tuple(x[1] for x in arguments(length))

        SETTINGS["compile"](functions[name], of_a_batch)
        if name in BY_DEFAULT:
            compiled_by_default(functions[name], of_a_batch)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda rollout: kl_loss(rollout, "k3"), fullgraph=True, backend=backend)
    for length in (3, 4, 7, 9):
        *logps, mask = (x[1] for x in sampled(length))
        rollout = Rollout(torch.zeros_like(mask, dtype=torch.long), mask, *logps)
        torch.testing.assert_close(compiled(rollout), kl_loss(rollout, "k3"))
    assert len(graphs) <= 2, graphs


@pytest.mark.slow
def test_in_graphs_of_any_length() -> None:
    """In a process of its own: the graph cannot trace the tests' checker of types."""
    code = "from tests.test_losses_modes import in_graphs; in_graphs()"
    done = subprocess.run([*command(), "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
