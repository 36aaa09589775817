"""Log-probs and exact per-token KLs of two language models on given completions, in bounded memory.

The KL of two policies over completions is the expected sum of KLs between their next-token distributions,
KL = E sum_t KL(pi(. | y_<t) || pi_ref(. | y_<t)), y drawn from pi (the chain rule). The sum over the
vocabulary is done exactly; only the completions are sampled: each token's log-ratio is replaced by its mean
given the prefix (Rao-Blackwellization); the expectation stays the same. Usually the noise is a fraction of
that of the log-ratio, but that is no law. A sum of such means is not itself a conditional mean: where a token
that the reference finds unlikely leads to a future without KL, the noise of the log-ratio cancels and that of
the sum does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from kl_companion.checks import check_choice
from kl_companion.eval_mode import evaluating
from kl_companion.kernels.fused import (
    fused_forward_kl,
    fused_kl,
    fused_logp,
    fused_logp_and_entropy,
)
from kl_companion.llm.generation import Samples, answer_samples, generate
from kl_companion.llm.models import LanguageModel, same_vocabulary
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.tasks import Example, Task
from kl_companion.rollout.vocabularies import common_columns

DIRECTIONS = ("reverse", "forward")
_ENTRIES = 2**27  # of one model's logits at a time: half a gigabyte in float32


class KLEstimate(NamedTuple):
    """An estimate of a KL over completions, in nats.

    Attributes:
        kl: Mean over completions of the sum of exact next-token KLs.
        se: Its standard error: between prompts, whose completions are one cluster; between completions where
            there is one prompt only; NaN for a single completion.
        per_token: The same sum, divided by the number of tokens.
        length: Mean number of tokens that a completion chose, end-of-sequence included.
        entropy: Of a whole completion under the model that wrote it: the mean sum of next-token entropies.
    """

    kl: float
    se: float
    per_token: float
    length: float
    entropy: float


class Measured(NamedTuple):
    """What `measure` finds for every completion, all [batch], sums over its chosen tokens.

    Attributes:
        kl: Of exact next-token KLs.
        entropy: Of next-token entropies of the model that wrote the completion.
        length: Of ones.
        mass: Of the probability of the k likeliest tokens, or None.
    """

    kl: torch.Tensor
    entropy: torch.Tensor
    length: torch.Tensor
    mass: torch.Tensor | None


def sequence_kl(
    policy: LanguageModel,
    reference: LanguageModel,
    task: Task,
    examples: Sequence[Example],
    *,
    n: int = 1,
    generator: torch.Generator,
    temperature: float = 1.0,
    direction: str = "reverse",
    batch: int | None = None,
) -> KLEstimate:
    """KL of two policies over completions: next-token KLs exact, completions sampled.

    Args:
        policy: pi.
        reference: pi_ref.
        task: What says how prompts are written and completions end.
        examples: The prompts.
        n: Completions of each prompt.
        generator: Where the randomness comes from; start it from the same seed to compare two models.
        temperature: Of both models.
        direction: ``"reverse"``: KL(pi || pi_ref), completions of the policy. ``"forward"``:
            KL(pi_ref || pi), completions of the reference.
        batch: Completions scored at once; by default as many as keep a model's logits within half a gigabyte.

    Raises:
        ValueError: an unknown direction, no example, two vocabularies, or as `generate`.

    Source: tang2025pitfalls, section 4 (the KL of sequences); the chain rule of KL.
    """
    check_choice("direction", direction, DIRECTIONS)
    check_models(policy, reference, examples)
    writer = policy if direction == "reverse" else reference
    with evaluating(policy.model, reference.model):
        samples = generate(writer, task, list(examples), n=n, temperature=temperature, generator=generator)
        seen = measure(policy, reference, samples, direction=direction, temperature=temperature, batch=batch)
    return summarize(seen, samples.prompt_index)


def measure(
    policy: LanguageModel,
    reference: LanguageModel,
    samples: Samples,
    *,
    direction: str = "reverse",
    temperature: float = 1.0,
    k: int | None = None,
    batch: int | None = None,
) -> Measured:
    """Exact next-token quantities at the chosen tokens of given completions, summed per completion.

    Arguments and errors as `sequence_kl`. The means over completions are those of the two policies only where
    the completions were drawn from the policy (from the reference, in direction ``"forward"``). ``k``: also
    the mass of the k likeliest tokens of the model that wrote them.
    """
    check_choice("direction", direction, DIRECTIONS)
    check_vocabularies(policy, reference)
    parts = []
    with evaluating(policy.model, reference.model):
        for part in _parts(samples, policy.vocab, batch):
            inside = part.completion_mask.bool()
            logits = _chosen(policy, part, temperature)
            ref_logits = _chosen(reference, part, temperature).to(logits.device)
            logits, ref_logits = common_columns(logits, ref_logits, policy.tokenizer)
            divergence = fused_kl if direction == "reverse" else fused_forward_kl
            values = [divergence(logits, ref_logits, validate=True)]
            writer = logits if direction == "reverse" else ref_logits
            values += [fused_logp_and_entropy(writer, part.tokens[inside])[1], torch.ones_like(values[0])]
            if k is not None:
                values.append(fused_logp(writer, writer.topk(k, dim=-1).indices).exp().sum(-1))
            parts.append(torch.stack([_total(x, inside) for x in values]))
    sums = torch.cat(parts, dim=1)
    return Measured(sums[0], sums[1], sums[2], None if k is None else sums[3])


def summarize(seen: Measured, prompt_index: torch.Tensor) -> KLEstimate:
    """One estimate from the numbers of completions; ``prompt_index`` [batch] says whose they are."""
    tokens = seen.length.sum()
    return KLEstimate(
        seen.kl.mean().item(),
        standard_error(seen.kl, prompt_index),
        (seen.kl.sum() / tokens).item(),
        seen.length.mean().item(),
        seen.entropy.mean().item(),
    )


def standard_error(x: torch.Tensor, cluster: torch.Tensor) -> float:
    """Of the mean of ``x`` [batch] when values of one cluster may go together and clusters are independent.

    Clusters of one size: the standard error of the mean of their means. One cluster only: that of its values
    as independent ones, which says nothing about other prompts. NaN for a single value.
    """
    x = x.double()
    _, index = cluster.to(x.device).unique(return_inverse=True)
    if index.max() == 0:
        index = torch.arange(len(x), device=x.device)
    sums = x.new_zeros(int(index.max()) + 1).index_add_(0, index, x - x.mean())
    count = len(sums)
    if count == 1:
        return float("nan")
    return (count / (count - 1) * sums.square().sum()).sqrt().item() / len(x)


def right_logp(
    lm: LanguageModel,
    task: Task,
    examples: Sequence[Example],
    *,
    temperature: float = 1.0,
    batch: int | None = None,
) -> torch.Tensor:
    """Log-probability of each example's one right answer, [prompts] float64, by teacher forcing.

    It is what `kl_book.lab.frontier` computes the whole reward-KL frontier from.

    Raises:
        ValueError: the task's answers are not unique, or there is no example.
    """
    if not task.unique:
        raise ValueError(
            f"task {task.name!r} has more than one right completion, expected a task with unique answers: "
            "sample, and average the rewards"
        )
    check_examples(examples)
    answers = answer_samples(lm, task, list(examples))
    return teacher_forced(lm, answers, temperature=temperature, batch=batch)


def teacher_forced(
    lm: LanguageModel, samples: Samples, *, temperature: float = 1.0, batch: int | None = None
) -> torch.Tensor:
    """Log-probability of given completions, [batch] float64."""
    parts = []
    with evaluating(lm.model):
        for part in _parts(samples, lm.vocab, batch):
            inside = part.completion_mask.bool()
            scores, tokens = _chosen(lm, part, temperature), part.tokens[inside]
            logp = fused_logp(scores, tokens, validate=True)
            parts.append(_total(logp, inside))
    return torch.cat(parts).clamp(max=0.0)


def _parts(samples: Samples, vocab: int, batch: int | None) -> Iterator[Samples]:
    """The samples in parts of ``batch`` rows, or of as many as `_ENTRIES` allows."""
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise ValueError(f"batch is {batch!r}, expected a whole number of at least 1")
    size = batch or max(1, _ENTRIES // (samples.tokens.shape[1] * vocab))
    rows = torch.arange(len(samples.tokens), device=samples.tokens.device)
    for some in rows.split(size):
        yield samples.select(some)


def _chosen(lm: LanguageModel, samples: Samples, temperature: float) -> torch.Tensor:
    """Logits at the tokens that were chosen, [tokens, vocab]; copied only where some were not."""
    inside = samples.completion_mask.bool()
    logits = completion_logits(lm.model, samples, temperature=temperature)
    return logits.flatten(0, 1) if inside.all() else logits[inside]


def _total(x: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """Sums per completion, [batch] float64 on the CPU, of values at the tokens under the mask."""
    x, inside = x.detach().cpu().double(), inside.cpu()
    return x.new_zeros(inside.shape).masked_scatter(inside, x).sum(-1)


def check_examples(examples: Sequence[Example]) -> None:
    """ValueError where there is no prompt."""
    if len(examples) == 0:
        raise ValueError("examples is empty, expected at least one prompt")


def check_models(policy: LanguageModel, reference: LanguageModel, examples: Sequence[Example]) -> None:
    """ValueError where there is no prompt, or the models mean different tokens by the same number."""
    check_examples(examples)
    check_vocabularies(policy, reference)


def check_vocabularies(policy: LanguageModel, reference: LanguageModel) -> None:
    """Raise ValueError where the models mean different tokens by the same number."""
    if policy.tokenizer is not reference.tokenizer:
        same_vocabulary(policy, reference)
