"""Sampling completions from a language model, with the log-probs of the distribution that sampled them.

The loop is our own, for three reasons. ``model.generate`` returns log-probs only by keeping the scores of
the whole vocabulary at every step, [batch, seq, vocab]; here a step leaves two numbers per sequence. It
applies the defaults that a model's files bring along (top-p, top-k, a repetition penalty), so that the
samples come from another distribution than the one that is trained. And no environment can interrupt it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from kl_companion.eval_mode import evaluating
from kl_companion.host_reads import to_host
from kl_companion.llm.decoding import decoder
from kl_companion.llm.models import LanguageModel, chat_prompts
from kl_companion.llm.tasks.base import Example, Task
from kl_companion.llm.tokenizers import encode
from kl_companion.rollout.vocabularies import token_columns, token_count

BETWEEN_READS = 8  # tokens between two looks at a GPU for whether every completion has ended


@dataclass(frozen=True, eq=False)
class Samples:
    """A batch of completions.

    Attributes:
        prompt_tokens, prompt_mask: [batch, prompt] int64, padded on the left; the mask is 1 on the prompt.
        tokens: [batch, seq] int64, padded on the right.
        completion_mask: [batch, seq] int64, 1 on what the policy chose, end-of-sequence included; 0 on
            observations and padding.
        attention_mask: [batch, seq] int64, 1 on choices and observations.
        behavior_logp: [batch, seq], log-prob of each choice under the tempered distribution that it was
            drawn from, float32 or the model's float64; 0 outside ``completion_mask``.
        finished: [batch] bool, whether the completion came to its own end: end-of-sequence, or the full
            length where completions have a fixed one. False: it was cut off.
        prompt_index: [batch] int64, which of the given examples a completion answers.
        examples: One per completion.
        texts: One per completion: what the policy chose, without observations and the final end-of-sequence.
        whole: The same with observations.
        vocab: Number of logits that belong to tokens: those after them are padding, which is not sampled and
            has no part in a log-prob. None: all of them.
        prompts: The tokens of every completion's prompt on the host, without padding. None: they are read
            from ``prompt_tokens`` where a function needs them, which on a GPU waits for its queue.
    """

    prompt_tokens: torch.Tensor
    prompt_mask: torch.Tensor
    tokens: torch.Tensor
    completion_mask: torch.Tensor
    attention_mask: torch.Tensor
    behavior_logp: torch.Tensor
    finished: torch.Tensor
    prompt_index: torch.Tensor
    examples: list[Example]
    texts: list[str]
    whole: list[str]
    vocab: int | None = None
    prompts: list[list[int]] | None = None

    def select(self, rows: torch.Tensor | list[int] | slice) -> Samples:
        """Some of the completions, in the order given: indices, one bool per completion, or a slice."""
        count, device = len(self.tokens), self.tokens.device
        if isinstance(rows, slice):  # known without a read or a copy
            where, index = list(range(count)[rows]), torch.arange(count, device=device)[rows]
        else:
            chosen = torch.arange(count)[torch.as_tensor(rows).cpu()]
            where, index = chosen.tolist(), chosen.to(device)

        def pick(x: Any) -> Any:
            if isinstance(x, list):
                return [x[i] for i in where]
            return x[index] if isinstance(x, torch.Tensor) else x

        return Samples(**{field.name: pick(getattr(self, field.name)) for field in fields(self)})


def inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The token at each quantile of softmax(logits), and its log-prob.

    Token v is taken when the uniform number lies in [P(token < v), P(token <= v)). Probabilities are added up
    in float64: in float32 the rare tokens of a large vocabulary would vanish in the sum.

    Args:
        logits: [batch, vocab], any offset; -inf is never sampled.
        uniforms: [batch] float64, at least 0 and below 1.

    Returns:
        Tokens [batch] int64 and their log-probs [batch], float32 or the logits' float64.
    """
    logp = logits.log_softmax(-1)
    below = logp.exp().cumsum(-1, dtype=torch.float64)
    # the largest uniform number, 1 - 2**-53, times any sum rounds to less than the sum
    target = uniforms.unsqueeze(-1) * below[:, -1:]
    # the clamp is for NaN: an index out of range would kill a GPU's process without saying why
    tokens = torch.searchsorted(below, target, right=True).clamp_(max=logits.shape[-1] - 1)
    return tokens.squeeze(-1), logp.gather(-1, tokens).squeeze(-1)


def scores(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """Logits in float32 (float64 stays) divided by the temperature: what sampler and trainer normalize."""
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits if temperature == 1 else logits / temperature


def prompt_ids(lm: LanguageModel, task: Task, examples: list[Example]) -> list[list[int]]:
    """The tokens of each prompt, as the model reads it.

    ``<bos>`` stands in front where the prompt is empty, where the task has an alphabet, and where the
    tokenizer itself would put it; a chat template brings its own.

    Raises:
        ValueError: no examples; a prompt without a token (the tokenizer has no ``<bos>``); a character that
            the tokenizer does not know; a chat task without a chat template.
    """
    if not examples:
        raise ValueError("examples is empty, expected at least one")
    tokenizer = lm.tokenizer
    prompts = [example.prompt for example in examples]
    ids = encode(tokenizer, chat_prompts(tokenizer, prompts, shots=task.shots) if task.chat else prompts)
    bos = tokenizer.bos_token_id
    if bos is None:
        if not all(ids):
            where = next(i for i, row in enumerate(ids) if not row)
            raise ValueError(
                f"the prompt of example {where} has no token and the tokenizer has no beginning-of-sequence "
                "token to put in its place: give a prompt"
            )
        return ids
    always = not task.chat and (task.alphabet is not None or tokenizer("")["input_ids"][:1] == [bos])
    return [[bos, *row] if always or not row else row for row in ids]


def generate(
    lm: LanguageModel,
    task: Task,
    examples: list[Example],
    *,
    n: int = 1,
    temperature: float = 1.0,
    generator: torch.Generator,
    max_new_tokens: int | None = None,
) -> Samples:
    """Sample ``n`` completions of every example, from all tokens of the tokenizer.

    Logits after the last token are padding: models of one tokenizer have different numbers of them.

    One uniform number per completion and position decides the token (`inverse_cdf`), all of them drawn before
    the first step: the samples of a seed depend neither on padding nor on when other completions end.

    Args:
        lm: Read in evaluation mode, whatever its mode is; no gradient.
        task: Whether completions end, whether an environment answers, how prompts are written.
        examples: Prompts. The completions of one example stand next to each other.
        n: Completions per example.
        temperature: The logits are divided by it.
        generator: On the CPU, whatever the model's device.
        max_new_tokens: Choices and observations of a completion together; default: the task's.

    Raises:
        ValueError: an argument out of range; a prompt that leaves no room for its completion in the model's
            context (the longest is named); logits that are NaN; and what `prompt_ids` raises.
    """
    length = task.max_new_tokens if max_new_tokens is None else max_new_tokens
    if not temperature > 0:
        raise ValueError(f"temperature is {temperature}, expected above 0 (0.001 is as good as greedy)")
    if n < 1 or length < 1:
        raise ValueError(f"n is {n} and max_new_tokens {length}, expected at least 1 of each")
    ids = prompt_ids(lm, task, examples)
    _check_context(lm, ids, examples, [length] * len(ids))
    prompts, mask = _padded(ids, _pad(lm), lm.device, left=True)
    uniforms = torch.rand(len(ids) * n, length, dtype=torch.float64, generator=generator)
    index = torch.arange(len(ids), device=lm.device).repeat_interleave(n)
    everyone = [example for example in examples for _ in range(n)]
    with evaluating(lm.model):
        run = _Run(lm, task, everyone, uniforms.to(lm.device), temperature)
        run.sample(prompts, mask, n, ids)
    return run.samples(prompts[index], mask[index], index, [row for row in ids for _ in range(n)])


class _Run:
    """The state of a sampling loop: what every completion holds so far."""

    def __init__(
        self,
        lm: LanguageModel,
        task: Task,
        examples: list[Example],
        uniforms: torch.Tensor,
        temperature: float,
    ) -> None:
        rows, length = uniforms.shape
        self.lm, self.task, self.examples = lm, task, examples
        self.uniforms, self.temperature = uniforms.T.contiguous(), temperature
        self.pad, self.stops = _pad(lm), _stops(lm, task)
        self.vocab = token_count(lm.tokenizer)
        self.alive = torch.ones(rows, dtype=torch.bool, device=uniforms.device)
        # what an environment wrote into the positions to come; -1: the policy chooses
        self.forced = uniforms.new_full((rows, length), -1, dtype=torch.long) if task.observe else None
        self.tokens: list[torch.Tensor] = []
        self.logp: list[torch.Tensor] = []
        self.present: list[torch.Tensor] = []
        self.chosen: list[torch.Tensor] = []

    def sample(self, prompts: torch.Tensor, mask: torch.Tensor, n: int, ids: list[list[int]]) -> None:
        """Fill the columns; on a GPU perhaps a few more than are used, to read less often."""
        length, every = len(self.uniforms), 1 if self.alive.device.type == "cpu" else BETWEEN_READS
        logits, read = decoder(self.lm.model, prompts, mask, n, length, ids)
        for t in range(length):
            token = self.step(t, logits)
            reads = self.stops is not None and (t + 1) % every == 0
            if t + 1 == length or (reads and not bool(self.alive.any())):
                return
            logits = read(token, t)

    def step(self, t: int, logits: torch.Tensor) -> torch.Tensor:
        """Choose (or be told) the tokens of column t."""
        logits = scores(token_columns(logits, self.vocab), self.temperature)
        token, logp = inverse_cdf(logits, self.uniforms[t])
        chosen = self.alive
        if self.forced is not None:
            told = self.forced[:, t] >= 0
            token, chosen = torch.where(told, self.forced[:, t], token), chosen & ~told
        if self.stops is not None:
            token = token.masked_fill(~self.alive, self.pad)
        self.tokens.append(token)
        self.logp.append(logp)
        self.present.append(self.alive)
        self.chosen.append(chosen)
        if self.stops is not None:
            self.alive = self.alive & ~(chosen & torch.isin(token, self.stops))
        if self.forced is not None:
            self._ask(t, chosen & self.alive)
        return token

    def _ask(self, t: int, rows: torch.Tensor) -> None:
        """Show the environment every completion that has just grown by a choice; note what it inserts."""
        assert self.forced is not None
        assert self.task.observe is not None
        grown, so_far = (x.tolist() for x in to_host([rows, torch.stack(self.tokens, -1)]))
        where = [i for i, grows in enumerate(grown) if grows]
        texts = _decode(self.lm, self.task, [so_far[i] for i in where])
        for i, text in zip(where, texts, strict=True):
            inserted = self.task.observe(text, self.examples[i])
            if inserted:
                ids = encode(self.lm.tokenizer, [inserted])[0][: self.forced.shape[1] - t - 1]
                self.forced[i, t + 1 : t + 1 + len(ids)] = torch.tensor(ids, device=self.forced.device)

    def samples(
        self, prompts: torch.Tensor, mask: torch.Tensor, index: torch.Tensor, rows: list[list[int]]
    ) -> Samples:
        """The columns as one batch, by one read on the host."""
        ended = ~self.alive  # by end-of-sequence
        logp = torch.stack(self.logp, -1).masked_fill(~torch.stack(self.chosen, -1), 0.0)
        parts = [*(torch.stack(x, -1) for x in (self.tokens, self.chosen, self.present)), ended]
        *on_host, broken = to_host([*parts, logp.isnan().any()])
        if broken:
            raise ValueError(
                "the model's logits are NaN, expected numbers: its weights or its dtype are broken"
            )
        used = int(on_host[2].any(0).sum())  # columns
        tokens, chosen, present = (x[:, :used].contiguous() for x in parts[:3])
        logp = logp[:, :used].contiguous()
        written, mine, there, over = (x.tolist() for x in on_host)
        lengths = [sum(row) - end for row, end in zip(there, over, strict=True)]
        whole = _decode(self.lm, self.task, [row[:k] for row, k in zip(written, lengths, strict=True)])
        texts = whole
        if self.forced is not None:
            kept = [
                [token for token, own in zip(row[:k], flags, strict=False) if own]
                for row, k, flags in zip(written, lengths, mine, strict=True)
            ]
            texts = _decode(self.lm, self.task, kept)
        finished = ended if self.task.ends else torch.ones_like(ended)
        masks, vocab = (chosen.long(), present.long()), self.vocab
        return Samples(
            prompts, mask, tokens, *masks, logp, finished, index, self.examples, texts, whole, vocab, rows
        )


def answer_samples(lm: LanguageModel, task: Task, examples: list[Example]) -> Samples:
    """The right answers as completions, for teacher forcing; ``behavior_logp`` is zero.

    End-of-sequence follows where completions end, unless the answer fills all of ``task.max_new_tokens``.

    Raises:
        ValueError: an answer without a token or longer than the task allows; a task with an environment,
            whose answers are not completions; a prompt too long; and what `prompt_ids` raises.
    """
    if task.observe is not None:
        raise ValueError(f"task {task.name!r} has an environment: the answer is not the whole completion")
    ids = prompt_ids(lm, task, examples)
    answers = encode(lm.tokenizer, [example.answer for example in examples])
    for i, answer in enumerate(answers):
        if not 0 < len(answer) <= task.max_new_tokens:
            raise ValueError(
                f"the answer {examples[i].answer[:40]!r} of example {i} has {len(answer)} tokens, "
                f"expected 1 to {task.max_new_tokens}"
            )
        if task.ends and len(answer) < task.max_new_tokens:
            answer.append(lm.tokenizer.eos_token_id)
    _check_context(lm, ids, examples, [len(answer) for answer in answers])
    prompts, prompt_mask = _padded(ids, _pad(lm), lm.device, left=True)
    tokens, mask = _padded(answers, _pad(lm), lm.device, left=False)
    count, texts = len(examples), [example.answer for example in examples]
    return Samples(
        prompts,
        prompt_mask,
        tokens,
        mask,
        mask.clone(),
        torch.zeros(tokens.shape, device=lm.device),
        torch.ones(count, dtype=torch.bool, device=lm.device),
        torch.arange(count, device=lm.device),
        list(examples),
        texts,
        list(texts),
        token_count(lm.tokenizer),
        ids,
    )


def _pad(lm: LanguageModel) -> int:
    pad = lm.tokenizer.pad_token_id
    return lm.tokenizer.eos_token_id if pad is None else pad


def _stops(lm: LanguageModel, task: Task) -> torch.Tensor | None:
    """The tokens that end a completion: the tokenizer's, and those that the model's files name; or None."""
    if not task.ends:
        return None
    named = getattr(getattr(lm.model, "generation_config", None), "eos_token_id", None)
    ids = {lm.tokenizer.eos_token_id, *(named if isinstance(named, list | tuple) else [named])} - {None}
    if not ids:
        raise ValueError(f"completions of task {task.name!r} end, but the tokenizer has no end-of-sequence")
    return torch.tensor(sorted(ids), device=lm.device)


def _decode(lm: LanguageModel, task: Task, rows: list[list[int]]) -> list[str]:
    """Text of each row. Over an alphabet a special token is written out: it makes a completion wrong."""
    if not rows:
        return []
    skip = task.alphabet is None
    return lm.tokenizer.batch_decode(rows, skip_special_tokens=skip, clean_up_tokenization_spaces=False)


def _padded(
    rows: list[list[int]], pad: int, device: torch.device, *, left: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of unequal length as one tensor, and its mask."""
    width = max(len(row) for row in rows)
    blank = [[0] * (width - len(row)) for row in rows]
    mask = [b + [1] * len(r) if left else [1] * len(r) + b for r, b in zip(rows, blank, strict=True)]
    full = [[pad] * len(b) + r if left else r + [pad] * len(b) for r, b in zip(rows, blank, strict=True)]
    return torch.tensor(full, device=device), torch.tensor(mask, device=device)


def _check_context(
    lm: LanguageModel, ids: list[list[int]], examples: list[Example], lengths: list[int]
) -> None:
    """ValueError if a prompt and its completion do not fit; the longest is named."""
    context = getattr(lm.model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(range(len(ids)), key=lambda i: len(ids[i]) + lengths[i])
    count, room = len(ids[longest]), lengths[longest]
    if context is not None and count + room > context:
        raise ValueError(
            f"the prompt {examples[longest].prompt[:40]!r} of example {longest} has {count} tokens, which "
            f"with {room} for the completion is more than the model's context of {context}; "
            f"expected at most {context - room}"
        )
