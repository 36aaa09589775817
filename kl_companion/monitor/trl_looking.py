"""Logits of some completions of a batch of TRL, with policy and reference, and numbers of their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from kl_companion.eval_mode import evaluating
from kl_companion.host_reads import on_host
from kl_companion.monitor.given import StepAnswers, check_logits, checked
from kl_companion.monitor.looking import LogitsRead, together
from kl_companion.monitor.moments import Clamp, value
from kl_companion.monitor.observer import Observer
from kl_companion.monitor.trl_reading import Texts, TrainerFacts, deviations_of, texts_of

_ENTRIES = 2**26  # of one model's logits at a time: a quarter of a gigabyte in float32


class BatchRead(NamedTuple):
    """Completions that were looked at before the trainer computes its loss, on its device."""

    texts: Texts
    given: StepAnswers
    looked: LogitsRead


def own_reference(trainer: Any) -> Any:
    """The trainer's reference or teacher; None where it has none, or its policy without the adapter is it."""
    found = (getattr(trainer, name, None) for name in ("ref_model", "teacher_model"))
    return next((model for model in found if model is not None), None)


def has_adapter(trainer: Any) -> bool:
    """Whether the policy has an adapter of PEFT, without which it is the reference."""
    return hasattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config")


def look_at(
    monitor: Observer,
    trainer: Any,
    model: Any,
    inputs: Mapping[str, Any],
    said: TrainerFacts,
    reference: Any = None,
    rewards: torch.Tensor | None = None,
) -> BatchRead | None:
    """Look at the first completions of a batch, some at a time; None where none has a token.

    Args:
        monitor: What is computed, and of how many completions at most.
        trainer: Whose batch it is.
        model: The policy, as the trainer's loss gets it.
        inputs: The trainer's batch.
        said: What the trainer says of itself.
        reference: A model to compare with in place of the trainer's own.
        rewards: Of all answers of the step, group by group, if they are known.

    Raises:
        ValueError: a batch that is not understood, and as `kl_companion.monitor.KLMonitor.observe`.
    """
    texts = texts_of(inputs, _rows(monitor, trainer, inputs))
    if texts is None:
        return None
    given = checked(
        texts.tokens,
        texts.mask,
        behavior_logp=texts.of(inputs.get("sampling_per_token_logps")),
        advantages=texts.of(inputs.get("advantages")),
        rewards=rewards,
        prompt_index=None if rewards is None else torch.arange(len(rewards)) // _size(trainer),
    )
    looks: list[LogitsRead] = []
    vocab = trainer.model.config.get_text_config().vocab_size
    chunk = max(1, _ENTRIES // (vocab * (texts.tokens.shape[1] + 1)))
    with _undisturbed(model), _compared(trainer, model, reference) as (other, switched):
        for start in range(0, len(texts.rows), chunk):
            part = slice(start, start + chunk)
            logits = _logits(trainer, model, texts, part)
            with switched():
                ref_logits = _logits(trainer, other, texts, part)
            tokens, inside, *more = (None if x is None else x[part] for x in given[:4])
            assert tokens is not None
            assert inside is not None
            some = StepAnswers(tokens, inside, *more)
            both = check_logits(logits, ref_logits, some, monitor.asked.ends, monitor.tokenizer)
            looks.append(monitor.look(*both, some, looks[0].engine if looks else None))
    return BatchRead(texts, given, together(looks))


def _size(trainer: Any) -> int:
    size: int = getattr(trainer, "num_generations", 1)
    return size


def brought(
    trainer: Any, said: TrainerFacts, seen: BatchRead, inputs: Mapping[str, Any], *numbers: torch.Tensor
) -> tuple[BatchRead, dict[str, torch.Tensor | None], list[torch.Tensor]]:
    """What was looked at, log-probs of the trainer's batch and further numbers, by one read on the host.

    Args:
        trainer: Whose batch it is.
        said: What it says of itself; rewards are divided as it does.
        seen: From `look_at`.
        inputs: The batch; ``ref_per_token_logps`` and ``old_per_token_logps`` are taken.
        *numbers: Without axes.
    """
    logps = [inputs.get(f"{name}_per_token_logps") for name in ("ref", "old")]
    seen, logps, more = on_host((seen, logps, list(numbers)))
    given = seen.given
    if given.rewards is not None:
        deviations = deviations_of(given.rewards, _size(trainer), said.divided)
        seen = seen._replace(given=given._replace(deviations=deviations))
    return seen, dict(zip(("ref_per_token_logps", "old_per_token_logps"), logps, strict=True)), more


def _rows(monitor: Observer, trainer: Any, inputs: Mapping[str, Any]) -> int | None:
    """How many completions are taken: at most half of a step's, so that the share of the time stays small."""
    if monitor.rows is None:
        return None
    batch = len(inputs["completion_ids" if "completion_ids" in inputs else "labels"])
    return min(monitor.rows, max(2, batch * trainer.current_gradient_accumulation_steps // 2))


def _logits(trainer: Any, model: Any, texts: Texts, part: slice) -> torch.Tensor:
    """Of the completions, [batch, seq, vocab]."""
    keep = texts.tokens.shape[1]
    with trainer.accelerator.autocast():
        out = model(
            input_ids=texts.ids[part],
            attention_mask=texts.attention[part],
            logits_to_keep=keep + 1,
            use_cache=False,
        )
    if getattr(out, "logits", None) is None:
        raise ValueError(f"{type(model).__name__} returned no logits, expected a model that returns them")
    found: torch.Tensor = out.logits[:, -keep - 1 : -1]
    return found


@contextmanager
def _compared(trainer: Any, model: Any, reference: Any) -> Iterator[tuple[Any, Any]]:
    """The model that computes the reference, and a context in which it does; no dropout, no gradients."""
    other = own_reference(trainer) if reference is None else reference
    if other is not None:
        with evaluating(model, other):
            yield other, nullcontext
        return
    from trl.trainer.utils import use_adapter

    bare = trainer.accelerator.unwrap_model(model)
    name = "ref" if "ref" in bare.peft_config else None  # TRL's copy of an adapter that was trained before

    def switched() -> AbstractContextManager[Any]:
        switch: AbstractContextManager[Any] = use_adapter(bare, adapter_name=name)
        return switch

    with evaluating(model):
        yield model, switched


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """No random number is taken from the generators of the run."""
    device = next(model.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


def kl_metric(trainer: Any) -> list[float]:
    """The values of the trainer's KL since its last log."""
    metrics: Mapping[str, Any] = getattr(trainer, "_metrics", {})
    found: list[float] = metrics.get("train", {}).get("kl", [])
    return found


def number_of(
    said: TrainerFacts, seen: BatchRead, inputs: Mapping[str, Any], clamp: Clamp | None
) -> float | None:
    """What the trainer's estimator makes of the tokens that were looked at; None where that is not known.

    The reference's log-probs, and those of the policy that sampled, are the trainer's where its batch holds
    them. Everything is on the host.
    """
    entry, texts, numbers = said.estimator, seen.texts, seen.looked.numbers
    if entry is None or entry.inputs != "sampled":
        return None
    inside = texts.mask
    ref_logp, old = (
        None if x is None else x.detach()[inside].double()
        for x in (texts.of(inputs.get(f"{name}_per_token_logps")) for name in ("ref", "old"))
    )
    x = value(entry, numbers.logp, numbers.ref_logp if ref_logp is None else ref_logp, clamp)
    scope = None if said.term is None or old is None else said.term.scope
    if scope not in (None, "token"):
        return None
    if old is not None and scope == "token":
        x = x * (numbers.logp - old).exp()
    return x.mean().item()
