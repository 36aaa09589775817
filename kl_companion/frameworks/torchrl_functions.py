"""torchrl's own functions, cut out of the installed files, and stand-ins for what they read of the rest.

torchrl's package imports tensordict, which is not needed: what the losses read of a dictionary of tensors are
entries by name.
"""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import Distribution, SourceLocation, known, load, loaded_from

_LLM = "torchrl/objectives/llm"
GRPO = SourceLocation(f"{_LLM}/grpo.py", "GRPOLoss._kl_to_ref")
DISTILLATION = SourceLocation(f"{_LLM}/distillation.py", "DistillationLoss.forward")
SFT = SourceLocation(f"{_LLM}/sft.py", "SFTLoss._kl_to_ref")
REWARD = SourceLocation("torchrl/envs/llm/transforms/kl.py", "KLComputation._step")
KEYS = SimpleNamespace(
    action="action",
    advantage="advantage",
    sample_log_prob="sampled",
    ref_log_probs="reference",
    history="history",
    log_probs="log_probs",
    teacher_log_prob="teacher",
)


class Tensors(dict[str, Any]):
    """What is read of a dictionary of tensors: entries by name, whatever padding is asked for."""

    ndim = 2  # one entry of a list holds all answers, [batch, seq]: one for each answer takes minutes

    def get(self, key: str, default: Any = None, **_: Any) -> Any:
        """The entry, or the default."""
        return super().get(key, default)

    def set(self, key: str, value: Any) -> None:
        """Set an entry."""
        self[key] = value

    def copy(self) -> Tensors:
        """The same entries."""
        return Tensors(self)

    def select(self, *_: str) -> Tensors:
        """Itself: what else it holds is not looked at."""
        return self


def _as_right(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A mask [batch, seq] beside values of the same shape, or with more dimensions behind."""
    return mask.reshape(mask.shape + (1,) * (like.ndim - mask.ndim)).expand_as(like)


@loaded_from(*known("torchrl"))
def functions(torchrl: Distribution) -> SimpleNamespace:
    """torchrl's own functions, out of the installed files; `Unavailable` without them."""
    wanted: tuple[str, ...] = ("_reduce_loss", "_expand_loss_mask", "_loss_mask_keys")
    common = load(torchrl, "torchrl/objectives/common.py", *(f"LossModule.{n}" for n in wanted))
    wanted = ("forward", "_clip_bounds", "_log_weight", "_compute_policy_objective")
    wanted += ("_aggregate_loss_value", "_kl_to_ref")
    given: dict[str, Any] = {
        "TensorDict": Tensors,
        "expand_as_right": _as_right,
        "is_tensor_collection": lambda _: False,
    }
    grpo = load(torchrl, GRPO.file, *(f"GRPOLoss.{n}" for n in wanted), given=given)
    zipped = partial(zip, strict=True)
    given = {
        "contextlib": contextlib,
        "_zip_strict": zipped,
        "_runtime_device": lambda *_, **__: None,
        "DistillationLossOutput": SimpleNamespace,
    }
    wanted = ("k3_kl_token_estimate", "_distillation_loss", "DistillationLoss.forward")
    distillation = load(torchrl, DISTILLATION.file, *wanted, given=given)
    made = {
        **grpo,
        **common,
        "_clip_bounds": property(grpo["_clip_bounds"]),
        "_expand_loss_mask": staticmethod(common["_expand_loss_mask"]),
    }
    plain = SimpleNamespace(  # lists in the place of nested tensors, of which PyTorch warns
        isnan=torch.isnan,
        where=torch.where,
        zeros_like=torch.zeros_like,
        nested=SimpleNamespace(as_nested_tensor=lambda rows, layout: rows),
        strided=None,
    )
    given = {"torch": plain, "_zip_strict": zipped}
    return SimpleNamespace(
        GRPO=type("GRPO", (SimpleNamespace,), made),
        distillation=distillation["forward"],
        sft=load(torchrl, SFT.file, SFT.function)["_kl_to_ref"],
        reward=load(torchrl, REWARD.file, REWARD.function, given=given)["_step"],
    )
