"""tinker-cookbook: both functions named `incorporate_kl_penalty`, and `compute_advantages`.

The service computes gradients, the cookbook its advantages; the policy loss, called importance_sampling, is
a formula. The cookbook's functions are cut out of the installed files (see `installed`): they ask a client
for log-probs, which is stood in for by one that has them.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from kl_companion.frameworks.formulas import charged
from kl_companion.frameworks.installed import SourceLocation, find, known, load
from kl_companion.rollout import Rollout

__all__ = ["by_group", "charge"]

_RL = SourceLocation("tinker_cookbook/rl/metrics.py", "incorporate_kl_penalty")
_DISTILLATION = SourceLocation("tinker_cookbook/distillation/train_on_policy.py", "incorporate_kl_penalty")
_ADVANTAGES = SourceLocation("tinker_cookbook/rl/data_processing.py", "compute_advantages")


class _Data(NamedTuple):
    """A tensor as tinker's data hold it."""

    x: torch.Tensor

    @classmethod
    def from_torch(cls, x: torch.Tensor) -> _Data:
        """Wrap it."""
        return cls(x)

    def to_torch(self) -> torch.Tensor:
        """Unwrap it."""
        return self.x

    @property
    def data(self) -> list[Any]:
        """As numbers."""
        found: list[Any] = self.x.tolist()
        return found


class _Known(NamedTuple):
    """A client that knows the log-probs already, with an entry for the first token."""

    logp: torch.Tensor

    def compute_logprobs(self, _: Any) -> _Known:
        """Of any sequence."""
        return self

    async def coroutine(self) -> Any:
        """As an array, of which torch makes a tensor of the same precision."""
        return self.logp.numpy()


async def _gather(*asked: Coroutine[Any, Any, Any]) -> list[Any]:
    return [await one for one in asked]


async def _scores(clients: list[_Known], _: Any) -> tuple[list[Any], None]:
    return [await client.coroutine() for client in clients], None


def _run(task: Coroutine[Any, Any, Any]) -> None:
    """Run what waits for nothing."""
    with suppress(StopIteration):
        task.send(None)


@cache
def functions() -> SimpleNamespace:
    """The cookbook's own functions, out of the installed files; `Unavailable` without them."""
    cookbook = find(*known("tinker"))
    given = {
        "tinker": SimpleNamespace(TensorData=_Data),
        "safezip": partial(zip, strict=True),
        "cast": lambda _, x: x,
        "asyncio": SimpleNamespace(gather=_gather),
        "score_sequences": _scores,
        "_full_sequence_inputs": lambda _: None,
    }
    future = "discounted_future_sum_vectorized"
    rl = load(cookbook, _RL.file, _RL.function, future, given=given)
    given[future] = rl[future]
    distillation = load(cookbook, *_DISTILLATION[:2], given=given)
    return SimpleNamespace(
        rl=rl[_RL.function],
        distillation=distillation[_DISTILLATION.function],
        **load(cookbook, *_ADVANTAGES[:2]),
    )


def advantages(rollout: Rollout, discount: float, *, distills: bool) -> torch.Tensor:
    """What `incorporate_kl_penalty` adds to advantages, [batch, seq].

    The functions index tokens and sum over data: all answers are one datum here, whose entry of a token is
    that of every answer, [seq, batch]. One datum after the other takes a hundred times as long.

    Args:
        rollout: The samples.
        discount: ``kl_discount_factor``.
        distills: The function of the distillation, or that of RL.
    """
    old = rollout.sampled_from.T
    inputs = {
        "logprobs": old,
        "mask": rollout.completion_mask.T,
        "advantages": torch.zeros_like(old),
        "target_tokens": rollout.tokens.T,
    }
    datum = SimpleNamespace(
        model_input=SimpleNamespace(append_int=lambda _: None),
        loss_fn_inputs={name: _Data(x) for name, x in inputs.items()},
    )
    client = _Known(torch.cat([rollout.ref_logp[:, :1], rollout.ref_logp], 1).T)
    if distills:
        _run(functions().distillation([datum], [client], [0], 1.0, discount))
    else:
        _run(functions().rl([datum], [client], 1.0, discount))
    found: torch.Tensor = datum.loss_fn_inputs["advantages"].to_torch()
    return found.T


def charge(rollout: Rollout, *, discount: float, distills: bool) -> torch.Tensor:
    """The loss importance_sampling of these advantages."""
    return charged(-advantages(rollout, discount, distills=distills), rollout, ahead=False)


def by_group(returns: torch.Tensor) -> torch.Tensor:
    """`compute_advantages`, each row the answers to one prompt."""
    groups = [SimpleNamespace(get_total_rewards=row.numpy) for row in returns]
    return torch.stack(functions().compute_advantages(groups))
