"""What a monitor is given, of a run once and of a step beside the logits, checked before any arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from kl_companion import checks
from kl_companion.host_reads import any_wrong
from kl_companion.monitor.mismatch import Engine
from kl_companion.monitor.moments import Clamp
from kl_companion.rollout.vocabularies import common_columns


def one_number(name: str, x: Any) -> float | torch.Tensor | None:
    """A number as a float, a tensor of one as it is, None for None; ValueError for anything else."""
    if isinstance(x, torch.Tensor) and x.numel() == 1:
        return x.detach()
    return number_on_host(name, x)


def number_on_host(name: str, x: Any) -> float | None:
    """A number or a tensor of one on the CPU as a float, None for None; ValueError for anything else."""
    if x is None:
        return None
    if isinstance(x, torch.Tensor) and x.numel() == 1:
        x = x.item()
    if isinstance(x, float) and math.isnan(x):  # a run may diverge, and its monitor goes on
        return x
    checks.check_number(name, x, infinite=True)
    return float(x)


def engine_of(engine: Any) -> Engine | None:
    """The declared engine, or that of a (temperature, top_p, top_k)."""
    if engine is None:
        return None
    if not isinstance(engine, tuple) or len(engine) != 3:
        raise ValueError(f"engine is {checks.described(engine)}, expected (temperature, top_p, top_k)")
    made = Engine(*engine)
    checks.check_temperature(made.temperature)
    checks.check_scalar("top_p", made.top_p, positive=True)
    if made.top_p > 1:
        raise ValueError(f"top_p is {made.top_p}, expected a mass of at most 1")
    checks.check_whole("top_k", made.top_k, 0)
    return made


def clamp_of(clamp: Any) -> Clamp | None:
    """The clamp as two floats."""
    if clamp is None:
        return None
    if not isinstance(clamp, tuple | list) or len(clamp) != 2:
        raise ValueError(f"clamp is {checks.described(clamp)}, expected (lowest, highest) log-ratio")
    for name, x in zip(("clamp[0]", "clamp[1]"), clamp, strict=True):
        checks.check_number(name, x, infinite=True)
    if not clamp[0] <= clamp[1]:
        raise ValueError(f"clamp is {tuple(clamp)}, expected (lowest, highest) log-ratio in this order")
    return float(clamp[0]), float(clamp[1])


def ends_of(eos_token_id: Any, tokenizer: Any = None) -> tuple[int, ...]:
    """The ids that end an answer: those given, or else the tokenizer's; none where neither has one."""
    found = getattr(tokenizer, "eos_token_id", None) if eos_token_id is None else eos_token_id
    if found is None:
        return ()
    ids = tuple(found) if isinstance(found, Iterable) else (found,)
    return tuple(dict.fromkeys(checks.check_whole("eos_token_id", x, 0) for x in ids))


class StepAnswers(NamedTuple):
    """Sampled answers and what belongs to them, as `KLMonitor.observe` takes it.

    Attributes:
        tokens, inside: [batch, seq]: ids, and whether a token is of a completion.
        behavior_logp: [batch, seq] or None; NaN where the engine gave none.
        advantages: [batch, seq] or None.
        rewards, prompt_index, deviations: Of the answers of the whole step, [answers], or None.
    """

    tokens: torch.Tensor
    inside: torch.Tensor
    behavior_logp: torch.Tensor | None = None
    advantages: torch.Tensor | None = None
    rewards: torch.Tensor | None = None
    prompt_index: torch.Tensor | None = None
    deviations: torch.Tensor | None = None


def checked(
    tokens: torch.Tensor,
    mask: torch.Tensor,
    *,
    behavior_logp: torch.Tensor | None = None,
    advantages: torch.Tensor | None = None,
    rewards: torch.Tensor | None = None,
    prompt_index: torch.Tensor | None = None,
    deviations: torch.Tensor | float | None = None,
) -> StepAnswers:
    """`StepAnswers`, or ValueError; arguments as `kl_companion.monitor.KLMonitor.observe`."""
    checks.check_mask(mask)
    inside = mask.bool()
    checks.check_shape("tokens", tokens, mask.shape, "mask [batch, seq]")
    if tokens.dtype != torch.int64:
        raise ValueError(f"tokens has dtype {tokens.dtype}, expected torch.int64: the sampled ids")
    if behavior_logp is not None:
        checks.check_shape("behavior_logp", behavior_logp, mask.shape, "mask [batch, seq]")
        checks.check_log_probabilities("behavior_logp", behavior_logp, inside & ~behavior_logp.isnan())
    if advantages is not None:
        checks.check_floating("advantages", advantages)
        if advantages.ndim == 1 and len(advantages) == len(mask):
            advantages = advantages.unsqueeze(1).expand(mask.shape)
        checks.check_shape("advantages", advantages, mask.shape, "mask [batch, seq], or [batch]")
        checks.check_finite("advantages", advantages, inside)
    _check_groups(rewards, prompt_index)
    return StepAnswers(
        tokens, inside, behavior_logp, advantages, rewards, prompt_index, _deviations(deviations)
    )


def _check_groups(rewards: torch.Tensor | None, prompt_index: torch.Tensor | None) -> None:
    for name, x in (("rewards", rewards), ("prompt_index", prompt_index)):
        if x is not None:
            checks.check_tensor(name, x)
            if x.ndim != 1 or not len(x):
                raise ValueError(f"{name} has shape {list(x.shape)}, expected [answers], one or more")
    if rewards is not None:
        checks.check_finite("rewards", rewards, ~rewards.isnan())
        if any_wrong(rewards.isnan().all()):
            raise ValueError("rewards is NaN for every answer, expected a reward for one of them, or None")
    if prompt_index is not None:
        if prompt_index.is_floating_point():
            raise ValueError(f"prompt_index has dtype {prompt_index.dtype}, expected whole numbers")
        if rewards is not None:
            checks.check_shape("prompt_index", prompt_index, rewards.shape, "rewards [answers]")


def _deviations(x: torch.Tensor | float | None) -> torch.Tensor | None:
    if x is None:
        return None
    if not isinstance(x, torch.Tensor):
        checks.check_number("deviations", x)
        x = torch.tensor([float(x)], dtype=torch.float64)
    checks.check_floating("deviations", x)
    if not x.numel() or any_wrong(~((x >= 0) & x.isfinite())):
        raise ValueError("deviations is empty or holds a negative or infinite number, expected deviations")
    return x.detach().flatten()


def check_logits(
    logits: Any, ref_logits: Any, given: StepAnswers, ends: tuple[int, ...], tokenizer: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both logits over the same tokens, [batch, seq, vocab].

    Args:
        logits: [batch, seq, vocab].
        ref_logits: [batch, seq, vocab]; of the same tokenizer, perhaps padded to another width.
        given: The tokens, [batch, seq].
        ends: Ids that end an answer.
        tokenizer: Tells which columns are padding.

    Raises:
        ValueError: another shape, a dtype that is not floating, or an id that is not in the vocabulary.
    """
    tokens, inside = given.tokens, given.inside
    checks.check_floating("logits", logits)
    if logits.ndim != 3 or not logits.shape[-1]:
        raise ValueError(f"logits has shape {list(logits.shape)}, expected [batch, seq, vocab]")
    checks.check_shape("logits", logits[..., 0], tokens.shape, "tokens, and the vocabulary behind: its rest")
    checks.check_floating("ref_logits", ref_logits)
    if ref_logits.shape[:-1] == logits.shape[:-1]:
        logits, ref_logits = common_columns(logits, ref_logits, tokenizer)
    checks.check_shape("ref_logits", ref_logits, logits.shape, "logits [batch, seq, vocab]")
    check_ids(tokens, inside, logits.shape[-1], ends)
    return logits, ref_logits


def check_ids(tokens: torch.Tensor, inside: torch.Tensor, vocab: int, ends: tuple[int, ...]) -> None:
    """ValueError unless the tokens inside, and the ends, are ids of the vocabulary."""
    outside = ((tokens < 0) | (tokens >= vocab)) & inside
    if any_wrong(outside):
        raise ValueError(f"tokens holds the id {tokens[outside][0].item()}, expected 0 to {vocab - 1}")
    if ends and max(ends) >= vocab:
        raise ValueError(f"eos_token_id is {max(ends)}, expected 0 to {vocab - 1}")


def check_sampled(logp: Any, ref_logp: Any, given: StepAnswers) -> None:
    """ValueError unless both are log-probs [batch, seq]."""
    for name, x in (("logp", logp), ("ref_logp", ref_logp)):
        if x is None:
            raise ValueError(f"{name} is None, expected log-probs [batch, seq] where logits is None")
        checks.check_shape(name, x, given.inside.shape, "mask [batch, seq]")
        checks.check_log_probabilities(name, x, given.inside)
