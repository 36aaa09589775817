"""tinker-cookbook: the penalty that its two loops add to advantages, in any release, and group advantages.

The service computes gradients, the cookbook its advantages. The service's loss, importance sampling, is a
formula: every token's ratio times its advantage. Clients that are asked for log-probs are stood in for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.formulas import charged, ratio, token_sum
from kl_companion.frameworks.installed import Distribution, SourceLocation, Unavailable, find, known
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, chosen, class_defaults, written
from kl_companion.rollout import Rollout

__all__ = ["by_group", "charge", "distillation", "rl"]
_NAME = "incorporate_kl_penalty"
_RL, _SETTINGS = "tinker_cookbook/rl/metrics.py", "tinker_cookbook/rl/train.py"
_DISTILLATION = "tinker_cookbook/distillation/train_on_policy.py"


class Numbers:
    """A tensor as the service's client has it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Any tensor."""
        self.data = self.tensor = tensor

    def to_torch(self) -> torch.Tensor:
        """The tensor."""
        return self.tensor


async def _gather(*awaited: Any) -> list[Any]:
    return [await each for each in awaited]


def _value(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never waits: no loop is needed, which a notebook has already."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("the penalty of this release waits for what is not stood in for")


class Client:
    """Returns the reference's log-probs of a sequence, which is known by its number; the first has none."""

    def __init__(self, logps: torch.Tensor) -> None:
        """Log-probs, [batch, seq] or with more dimensions behind."""
        blank = torch.zeros_like(logps[:, :1])
        self._logps = torch.cat((blank, logps), 1).detach().numpy()

    async def compute_logprobs_async(self, number: int) -> Any:
        """Of one sequence; as `torch.tensor` takes it, in float64."""
        return self._logps[number]

    def compute_logprobs(self, number: int) -> Any:
        """The same, as newer clients return it."""
        return SimpleNamespace(coroutine=partial(self.compute_logprobs_async, number))


async def _score_sequences(client: Client, numbers: list[int]) -> tuple[list[Any], None]:
    return [await client.compute_logprobs_async(number) for number in numbers], None


_GIVEN = {
    "tinker": SimpleNamespace(TensorData=SimpleNamespace(from_torch=Numbers)),
    "asyncio": SimpleNamespace(gather=_gather),
    "score_sequences": _score_sequences,
    "cast": lambda _, value: value,
}


def _datum(number: int, logps: torch.Tensor, mask: torch.Tensor) -> SimpleNamespace:
    tokens = torch.zeros_like(logps)  # only numbered sequences are asked for
    inputs = {"target_tokens": tokens, "logprobs": logps, "mask": mask, "advantages": torch.zeros_like(logps)}
    return SimpleNamespace(
        model_input=SimpleNamespace(append_int=lambda _: number),
        loss_fn_inputs={name: Numbers(x) for name, x in inputs.items()},
    )


def added(
    function: Any, discount: float, data: list[SimpleNamespace], client: Client, *, distills: bool
) -> torch.Tensor:
    """What `incorporate_kl_penalty` adds to the advantages of every datum, stacked."""
    ask = ([client] * len(data), [0] * len(data)) if distills else (client,)
    try:
        _value(function(data, *ask, 1.0, discount))
    except ModuleNotFoundError as error:  # 0.1.0 discounts with scipy
        raise Unavailable(f"{_NAME} of this release needs {error.name}, which is not installed") from error
    return torch.stack([d.loss_fn_inputs["advantages"].to_torch() for d in data])


def _loss(function: Any, distills: bool, config: Mapping[str, Any], rollout: Rollout) -> torch.Tensor:
    rows = torch.stack((rollout.sampled_from.detach(), rollout.ref_logp, rollout.completion_mask))
    distinct, which = rows.unique(dim=1, return_inverse=True)  # an audit's batches repeat their answers
    sampled, ref, mask = distinct
    count = len(mask)
    # Behind them the same answers with sampler and reference exchanged: the mean over the batch, a baseline
    # that the loop of RL subtracts, is then zero, as it is a constant in a large batch.
    data = [_datum(i, x[i % count], mask[i % count]) for i, x in enumerate([sampled] * count + [ref] * count)]
    client = Client(torch.cat((ref, sampled)))
    advantages = added(function, config["kl_discount_factor"], data, client, distills=distills)
    return token_sum(-advantages[which] * ratio(rollout), rollout)


def _ship(
    file: str, settings: str, distills: bool, book: Distribution, options: Mapping[str, Any]
) -> Shipped:
    if not (book.root / file).is_file():
        raise Unavailable(f"tinker-cookbook {book.version} has no {file}")
    defaults = class_defaults(book, settings, "Config")
    config = chosen(defaults, options, f"Config of tinker-cookbook {book.version}")
    shown = ("kl_penalty_coef", "kl_discount_factor", "loss_fn")
    return Shipped(
        partial(_loss, link(book, file, _NAME, given=_GIVEN), distills, config),
        written("Config", config, shown, options),
        float(config["kl_penalty_coef"]),
        SourceLocation(file, _NAME),
    )


def rl(book: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The loop of RL."""
    return _ship(_RL, _SETTINGS, False, book, options)


def distillation(book: Distribution, options: Mapping[str, Any]) -> Shipped:
    """On-policy distillation."""
    return _ship(_DISTILLATION, _DISTILLATION, True, book, options)


@cache
def installed(distills: bool) -> Any:
    """`incorporate_kl_penalty` of the distillation, or that of RL, as it is installed."""
    return link(find(*known("tinker")), _DISTILLATION if distills else _RL, _NAME, given=_GIVEN)


def charge(rollout: Rollout, *, discount: float, distills: bool) -> torch.Tensor:
    """The loss of these advantages, the mean that RL subtracts in it.

    The functions index tokens and sum over data: all answers are one datum here, whose entry of a token is
    that of every answer, [seq, batch]. One datum after the other takes a hundred times as long.

    Args:
        rollout: The samples.
        discount: ``kl_discount_factor``.
        distills: The function of the distillation, or that of RL.
    """
    datum = _datum(0, rollout.sampled_from.T, rollout.completion_mask.T)
    client = Client(rollout.ref_logp.T.unsqueeze(0))
    advantages = added(installed(distills), discount, [datum], client, distills=distills)
    return charged(-advantages[0].T, rollout, ahead=False)


@cache
def _compute_advantages() -> Any:
    return link(find(*known("tinker")), "tinker_cookbook/rl/data_processing.py", "compute_advantages")


def by_group(returns: torch.Tensor) -> torch.Tensor:
    """`compute_advantages`, each row the answers to one prompt."""
    groups = [SimpleNamespace(get_total_rewards=row.numpy) for row in returns]
    return torch.stack(_compute_advantages()(groups))
