"""Exact expectations on a transformer: every completion of a tiny model listed, every gradient exact.

A tabular world gives each prefix its own logits. A transformer computes all of them from the same
parameters, so what a loss does to it is the table's gradient pulled back through the Jacobian of the
logits. `Oracle` holds both sides: the model, through which any loss is differentiated as it stands, and
the table of its logits, to which everything that is known about tables applies. All of it is float64.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.worlds.objectives import get_objective
from kl_companion.llm.optional import llm_extra
from kl_companion.rollout import Rollout
from kl_companion.tabular import MAX_EVALUATIONS, Loss, Problem, prefix_tree

_SAME = 1e-10
_ROWS_AT_ONCE = 128


def oracle_model(
    vocab: int, *, seed: int = 0, hidden: int = 16, layers: int = 1, heads: int = 2, head_scale: float = 1.5
) -> Any:
    """A random Qwen2 transformer in float64 whose next-token distributions are far from uniform.

    It knows ``vocab`` tokens and, as the last id, one that begins the prompt and is never sampled. (Were the
    prompt a token like the others, repeating it would give the same state at every position.)
    Weights are Gaussian with the scale 1/sqrt(inputs), those of the output head ``head_scale`` times
    larger; biases are Gaussian too, so that no parameter is without effect. The norms are replaced by
    torch's own, because those of the library compute in float32 whatever the weights are.

    Raises:
        ValueError: fewer than two tokens, a size below 1, or a width that twice the heads do not divide.
        ImportError: transformers is missing (extra `llm`).
    """
    if vocab < 2 or min(hidden, layers, heads) < 1 or hidden % (2 * heads):
        raise ValueError(
            f"vocab={vocab}, hidden={hidden}, layers={layers}, heads={heads}: expected at least two tokens, "
            "positive sizes, and a width that twice the heads divide"
        )
    with warnings.catch_warnings():  # in a notebook, a progress bar that is not shown asks for widgets
        warnings.filterwarnings("ignore", message="IProgress not found")
        transformers = llm_extra("transformers")
        make = transformers.Qwen2ForCausalLM
    config = transformers.Qwen2Config(
        vocab_size=vocab + 1,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=vocab,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):  # its own initialization is overwritten: leave no trace
        model = make(config).double().eval()
    for name, norm in list(model.named_modules()):
        if type(norm).__name__ == "Qwen2RMSNorm":
            parent, _, child = name.rpartition(".")
            own = torch.nn.RMSNorm(hidden, eps=norm.variance_epsilon, dtype=torch.float64)
            setattr(model.get_submodule(parent), child, own)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            if "norm" in name:
                weight.copy_(1 + 0.1 * noise)
            elif "embed" in name:
                weight.copy_(noise)
            else:
                scale = 1 / math.sqrt(weight.shape[-1])
                weight.copy_(noise * scale * (head_scale if name == "lm_head.weight" else 1.0))
    return model


def between(start: Any, end: Any, share: float) -> Any:
    """A copy of the model ``start``, its parameters moved by ``share`` of the way to those of ``end``."""
    moved = copy.deepcopy(start)
    with torch.no_grad():
        for weight, other in zip(moved.parameters(), end.parameters(), strict=True):
            weight.lerp_(other, share)
    return moved


def _scores(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [count, length, vocab] that score ``tokens`` [count, length] after the token that begins."""
    begin = model.config.vocab_size - 1
    inputs = torch.cat([torch.full_like(tokens[:, :1], begin), tokens[:, :-1]], dim=1)
    # the plain attention has exact gradients in float64 and can be differentiated for many rows at once
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        scores: torch.Tensor = model(input_ids=inputs, use_cache=False).logits[..., :begin]
    if scores.dtype != torch.float64:
        raise ValueError(f"the model's logits are {scores.dtype}, expected torch.float64: call .double()")
    return scores


class GradientMoments(NamedTuple):
    """Of the gradient of one completion, in parameter space.

    Attributes:
        mean: [parameters].
        noise: Square root of the trace of its covariance.
    """

    mean: torch.Tensor
    noise: float


@dataclass(frozen=True, eq=False)
class Oracle:
    """A transformer, its reference and its sampler on one prompt, with all completions listed.

    Make one with `enumerate_completions`.

    Attributes:
        policy: The model that is differentiated.
        problem: The table of its logits, one row per prefix, with those of reference and sampler.
        scores: The policy's logits on every completion, [count, length, vocab], with their graph.
    """

    policy: Any
    problem: Problem
    scores: torch.Tensor

    @cached_property
    def parameters(self) -> list[torch.Tensor]:
        """Of the policy, in the order of every flat gradient here."""
        return list(self.policy.parameters())

    @cached_property
    def probability(self) -> torch.Tensor:
        """With which each completion is sampled, [count], detached."""
        return self.rollout(self.scores.detach()).sampled_from.mul(self.problem.completion_mask).sum(-1).exp()

    def rollout(self, scores: torch.Tensor, which: Sequence[int] | None = None) -> Rollout:
        """The completions ``which`` (all by default) as a batch, scored by the policy's ``scores``."""
        p, every = self.problem, torch.arange(len(scores)) if which is None else torch.tensor(which)
        rows = p.rows[every]
        return Rollout.from_logits(
            p.sequences[every],
            p.completion_mask[every],
            scores[every],
            p.ref_logits[rows],
            behavior_logits=scores.detach()[every] if p.behavior_logits is None else p.behavior_logits[rows],
            rewards=p.rewards[every],
        )

    def back(self, field: torch.Tensor) -> torch.Tensor:
        """Back-propagate a gradient on ``scores`` through the transformer, [parameters]."""
        found = torch.autograd.grad(
            self.scores, self.parameters, field, retain_graph=True, materialize_grads=True
        )
        return torch.cat([g.flatten() for g in found])

    @cached_property
    def jacobian(self) -> torch.Tensor:
        """Of the logits at every prefix by the parameters, [rows * vocab, parameters]."""
        p = self.problem
        cells = _first_cells(p)
        scores = _scores(self.policy, p.sequences[cells[:, 0]])[
            torch.arange(len(cells)), cells[:, 1]
        ].flatten()
        blocks = []
        for chosen in torch.eye(len(scores), dtype=torch.float64).split(_ROWS_AT_ONCE):
            found = torch.autograd.grad(
                scores,
                self.parameters,
                chosen,
                retain_graph=True,
                is_grads_batched=True,
                materialize_grads=True,
            )
            blocks.append(torch.cat([g.flatten(1) for g in found], 1))
        return torch.cat(blocks)

    @cached_property
    def kernel(self) -> torch.Tensor:
        """The Jacobian times its transpose, [rows * vocab, rows * vocab]: inner products of gradients."""
        return self.jacobian @ self.jacobian.T

    def pull_back(self, field: torch.Tensor) -> torch.Tensor:
        """A gradient on the table, [rows, vocab], as one on the parameters: Jacobian' times field."""
        return field.flatten() @ self.jacobian

    def on_rows(self, each: torch.Tensor) -> torch.Tensor:
        """Gradients on ``scores``, [count, length, vocab], as rows of the table, [count, rows * vocab]."""
        rows, vocab = self.problem.logits.shape
        index = self.problem.rows.unsqueeze(-1) * vocab + torch.arange(vocab)
        flat = each.new_zeros(len(each), rows * vocab)
        return flat.scatter_add(1, index.flatten(1), each.flatten(1))


def _first_cells(problem: Problem) -> torch.Tensor:
    """A (sequence, position) at which each prefix is scored, [rows, 2]."""
    where = problem.rows.masked_fill(problem.completion_mask == 0, -1)
    return torch.stack([(where == row).nonzero()[0] for row in range(len(problem.logits))])


def enumerate_completions(
    policy: Any, reference: Any, length: int, *, sampler: Any = None, eos: bool = False
) -> Oracle:
    """List every completion of ``length`` tokens after a prompt of one token.

    Args:
        policy: A causal language model in float64. The last id of its vocabulary is the prompt; it is never
            sampled, and its logit is left out.
        reference: Another one of the same vocabulary.
        length: Tokens of a completion.
        sampler: Another one, that samples; None is the policy itself.
        eos: Token 0 ends a completion early.

    Raises:
        ValueError: vocabularies that differ, a model that is not float64 or not causal, or too many
            completions.
    """
    vocab = policy.config.vocab_size - 1
    for name, model in {"reference": reference, "sampler": sampler}.items():
        if model is not None and model.config.vocab_size - 1 != vocab:
            got = model.config.vocab_size - 1
            raise ValueError(f"{name} has {got} tokens, expected {vocab} like the policy")
    listed = prefix_tree(vocab, length, eos=eos)
    scores = _scores(policy, listed.sequences)
    cells = _first_cells(listed)

    def table(model: Any) -> torch.Tensor:
        with torch.no_grad():
            found = scores if model is policy else _scores(model, listed.sequences)
        return found.detach()[cells[:, 0], cells[:, 1]]

    problem = listed._replace(
        logits=table(policy),
        ref_logits=table(reference),
        behavior_logits=None if sampler is None else table(sampler),
    )
    gap = (scores.detach() - problem.logits[problem.rows]).abs() * problem.completion_mask.unsqueeze(-1)
    if not gap.max() < _SAME:
        raise ValueError(
            f"logits after the same prefix differ by {gap.max().item():.1e} with what follows, expected a "
            "causal model without dropout"
        )
    return Oracle(policy, problem, scores)


def _scalar(loss: Loss, rollout: Rollout) -> torch.Tensor:
    value = loss(rollout)
    if value.numel() != 1 or value.isnan().any():
        raise ValueError(f"the loss returned {value.detach()}, expected one number")
    return value.reshape(())


def expected_gradient(oracle: Oracle, loss: Loss, *, group_size: int = 1) -> torch.Tensor:
    """E[gradient of the loss] over the parameters, [parameters]: every batch is formed and differentiated.

    Args:
        oracle: The enumerated model.
        loss: Any function of a `Rollout` of ``group_size`` completions that returns a scalar.
        group_size: Completions per batch; more than one for losses that couple a group.

    Raises:
        ValueError: no scalar, NaN, or too many batches.
    """
    count = len(oracle.scores)
    if group_size < 1 or count**group_size > MAX_EVALUATIONS:
        raise ValueError(
            f"{count} completions in groups of {group_size}: expected groups of at least one, and at most "
            f"{MAX_EVALUATIONS} of them"
        )
    leaf = oracle.scores.detach().requires_grad_()
    total = leaf.sum() * 0
    for group in itertools.product(range(count), repeat=group_size):
        weight = oracle.probability[list(group)].prod()
        total = total + weight * _scalar(loss, oracle.rollout(leaf, group))
    (field,) = torch.autograd.grad(total, leaf)
    return oracle.back(field)


def objective_gradient(oracle: Oracle, objective: Mapping[str, float]) -> torch.Tensor:
    """Gradient over the parameters of a sum of named objectives, [parameters].

    Args:
        oracle: The enumerated model.
        objective: ``{name: coefficient}``, as in `kl_companion.auditing.Audit.matches`.

    Raises:
        ValueError: an unknown objective.
    """
    leaf = oracle.scores.detach().requires_grad_()
    rollout = oracle.rollout(leaf)
    total = leaf.sum() * 0
    for name, coefficient in objective.items():
        total = total + coefficient * get_objective(name).scalar(rollout)
    (field,) = torch.autograd.grad(total, leaf)
    return oracle.back(field)


def sample_gradients(oracle: Oracle, loss: Loss) -> torch.Tensor:
    """Gradient of the loss of each completion alone, on the table, [count, rows * vocab].

    All completions go through the loss in one batch, so it has to be the mean of what each of them
    contributes (as ``how="sum"`` is).

    Raises:
        ValueError: a loss that couples the completions of a batch.
    """
    count = len(oracle.scores)
    leaf = oracle.scores.detach().requires_grad_()
    whole = _scalar(loss, oracle.rollout(leaf))
    (each,) = torch.autograd.grad(whole + 0 * leaf.sum(), leaf)
    each = each * count
    for i in (0, count // 3, count - 1):
        own = oracle.scores.detach()[i : i + 1].requires_grad_()
        alone = _scalar(loss, oracle.rollout(own.expand(count, -1, -1), [i]))
        (found,) = torch.autograd.grad(alone + 0 * own.sum(), own)
        if (found[0] - each[i]).norm() > _SAME * (1 + found.norm()):
            raise ValueError("the loss couples the completions of a batch, expected a mean over completions")
    return oracle.on_rows(each)


def gradient_moments(oracle: Oracle, loss: Loss) -> GradientMoments:
    """Mean and noise of the gradient of one sampled completion, exact; arguments as `sample_gradients`."""
    return _moments(oracle, sample_gradients(oracle, loss))


def _moments(oracle: Oracle, each: torch.Tensor) -> GradientMoments:
    p = oracle.probability
    mean = p @ each
    apart = each - mean
    variance = p @ ((apart @ oracle.kernel) * apart).sum(-1)
    return GradientMoments(oracle.pull_back(mean), variance.clamp(min=0).sqrt().item())


def leave_one_out_moments(oracle: Oracle, loss: Loss, costs: torch.Tensor, group: int) -> GradientMoments:
    """Mean and noise per completion of sum_i (cost_i - mean of the others' costs) score_i / group.

    ``noise`` is sqrt(group) times that of a group's gradient: its square over n is the variance of n
    completions in groups of this size. On-policy.

    Args:
        oracle: The enumerated model, on-policy.
        loss: minus the log-prob of completions, whose gradient is minus the score.
        costs: [count], detached.
        group: Completions that answer one prompt, at least two.
    """
    p, score = oracle.probability, -sample_gradients(oracle, loss)
    x = costs - p @ costs
    gram = score @ oracle.kernel @ score.T
    once = _moments(oracle, x.unsqueeze(-1) * score)
    size = once.mean.square().sum()
    square = gram.diagonal()
    apart = (x.unsqueeze(1) - x) ** 2 * (square.unsqueeze(1) + square - 2 * gram) / 4
    pair = p @ apart @ p - size
    variance = 2 / (group * (group - 1)) * (2 * (group - 2) * once.noise**2 / 4 + pair)
    return GradientMoments(once.mean, (group * variance).clamp(min=0).sqrt().item())


def samples_to_overtake(bias: float, noise: float, other_bias: float, other_noise: float) -> float:
    """The number of samples beyond which an estimate has the smaller mean squared error than another.

    The error of n samples is bias^2 + noise^2 / n. 1 if it is ahead from the first sample and stays so,
    NaN if it falls, or stays, behind.
    """
    gain = other_bias**2 - bias**2
    price = noise**2 - other_noise**2
    if abs(gain) <= 1e-9 * (other_bias**2 + bias**2):
        return 1.0 if price < -1e-9 * other_noise**2 else math.nan
    return math.nan if gain < 0 else max(1.0, price / gain)
