"""Make one scalar loss of a rollout out of whatever a reader hands in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kl_companion.checks import check_choice, unknown_name
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.kl_term import LEVELS, EstimatorLike, KLTerm
from kl_companion.losses import kl_loss, kl_reward, policy_gradient_loss
from kl_companion.rollout import Rollout, aggregate, masked
from kl_companion.tabular import Loss
from kl_companion.tabular.scores import SINGLE_PLACEMENTS

FIELDS = (
    "logp",
    "ref_logp",
    "behavior_logp",
    "completion_mask",
    "tokens",
    "rewards",
    "prompt_index",
    "logits",
    "ref_logits",
    "behavior_logits",
)
# what trainers call the same fields
ALIASES = {
    "log_probs": "logp",
    "logprobs": "logp",
    "per_token_logps": "logp",
    "ref_log_probs": "ref_logp",
    "ref_logprobs": "ref_logp",
    "ref_per_token_logps": "ref_logp",
    "old_log_probs": "behavior_logp",
    "old_logprobs": "behavior_logp",
    "old_per_token_logps": "behavior_logp",
    "mask": "completion_mask",
    "advantages": "rewards",  # one number per sequence, detached: the same thing to a loss
}
NAMES = {**{f: f for f in FIELDS}, **ALIASES}


class Subject(NamedTuple):
    """What is audited.

    Attributes:
        loss: A scalar function of a rollout.
        title: What it is called in a sentence.
        placement: ``"loss"``, or ``"reward"`` where the value of the loss estimates nothing.
        entry: The estimator that was named; None for a function.
    """

    loss: Loss
    title: str
    placement: str
    entry: Estimator | None


def _arguments(loss: Callable[..., Any]) -> dict[str, str]:
    """{parameter: field of the rollout} of the function; empty for a function of one Rollout."""
    name = getattr(loss, "__name__", repr(loss))
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} has no signature that can be read, expected a Python function") from error
    wanted = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    optional = [p.name for p in parameters if p.default is not p.empty and p.name in NAMES]
    if len(wanted) == 1 and wanted[0].name not in NAMES:
        return {}
    for p in wanted:
        if p.name not in NAMES:
            raise unknown_name(f"parameter of {name}:", p.name, [*FIELDS, "rollout"])
    if not wanted and not optional:
        raise ValueError(
            f"{name} takes no tensors, expected parameters among {', '.join(FIELDS)}, or one rollout"
        )
    return {n: NAMES[n] for n in [*(p.name for p in wanted), *optional]}


def _field(rollout: Rollout, name: str) -> Any:
    return rollout.sampled_from if name == "behavior_logp" else getattr(rollout, name)


def _compute(loss: Callable[..., Any], names: dict[str, str], rollout: Rollout) -> torch.Tensor:
    """Call the function; a scalar or one value per token, or a ValueError."""
    label = getattr(loss, "__name__", repr(loss))
    fields = {n: _field(rollout, field) for n, field in names.items()}
    out = loss(**fields) if names else loss(rollout)
    tokens = list(rollout.logp.shape)
    if not isinstance(out, torch.Tensor):
        raise ValueError(f"{label} returned {type(out).__name__}, expected a tensor: a scalar, or {tokens}")
    if out.numel() != 1 and list(out.shape) != tokens:
        raise ValueError(
            f"{label} returned shape {list(out.shape)}, expected a scalar, or one per token {tokens}"
        )
    if (out if out.numel() == 1 else masked(out, rollout.completion_mask)).isnan().any():
        raise ValueError(f"{label} returned NaN on an enumerated batch, expected numbers")
    return out


def as_loss(
    loss: EstimatorLike | KLTerm | Callable[..., Any], placement: str = "loss", level: str | None = None
) -> Loss:
    """A scalar function of a `Rollout`.

    Args:
        loss: A registered estimator; a `KLTerm`; a function of fields of the rollout, told apart by their
            names (``logp``, ``ref_logp``, ``behavior_logp``, ``completion_mask``, ..., or what trainers call
            them, see ``ALIASES``); or a function of one `Rollout`. Functions return a scalar, or one
            value per token, which is summed over tokens.
        placement: ``"loss"`` differentiates it; ``"reward"`` subtracts its detached value from the
            reward of a REINFORCE loss. A `KLTerm` says it itself, and `level` too.
        level: ``"token"`` or ``"sequence"``: whether an estimator sees tokens or whole sequences. None
            is tokens in the loss and sums over sequences in the reward.

    Raises:
        ValueError: unknown name, placement, level or parameter; a result of the wrong shape; a level
            for a function that reads more than ``logp`` and ``ref_logp``; a placement or level beside a
            `KLTerm`.
    """
    return as_subject(loss, placement, level).loss


def as_subject(
    loss: EstimatorLike | KLTerm | Callable[..., Any], placement: str = "loss", level: str | None = None
) -> Subject:
    """`as_loss` with what the audit says about it; arguments and errors as there."""
    check_choice("placement", placement, SINGLE_PLACEMENTS)
    chosen: Any = level or ("token" if placement == "loss" else "sequence")
    check_choice("level", chosen, LEVELS)
    if isinstance(loss, KLTerm):
        if placement != "loss" or level is not None:
            raise ValueError(
                f"got a KLTerm and placement={placement!r}, level={level!r}: expected both in the term"
            )
        return _of_term(loss)
    if isinstance(loss, str | Estimator):
        entry = get_estimator(loss)
        return Subject(
            _placed(entry, placement, chosen), f"{entry.name} in the {placement}", placement, entry
        )
    name = getattr(loss, "name", getattr(loss, "__name__", "the loss"))
    title = str(name) if placement == "loss" else f"{name} in the {placement}"
    names = _arguments(loss)
    if level is not None:
        if list(names) != ["logp", "ref_logp"]:
            raise ValueError(
                f"level={level!r} got a function of {', '.join(names) or 'a rollout'}, "
                "expected one of logp and ref_logp: other functions choose their own level"
            )
        return Subject(_placed(loss, placement, chosen), title, placement, None)

    def per_batch(rollout: Rollout) -> torch.Tensor:
        out = _compute(loss, names, rollout)
        if out.ndim < 2 and placement == "reward":
            raise ValueError("placement='reward' got a scalar, expected one value per token [batch, seq]")
        if out.ndim < 2:
            return out.reshape(())
        if placement == "loss":
            return aggregate(out, rollout.completion_mask)
        return policy_gradient_loss(rollout, -masked(out.detach(), rollout.completion_mask).sum(-1))

    return Subject(per_batch, title, placement, None)


def _placed(estimator: Any, placement: str, level: Any) -> Loss:
    if placement == "loss":
        return lambda rollout: kl_loss(rollout, estimator, level=level)
    return lambda rollout: policy_gradient_loss(
        rollout, -kl_reward(rollout, estimator, beta=1.0, level=level)
    )


def _of_term(term: KLTerm) -> Subject:
    """The term where it says that it is: in the loss, in the reward of a REINFORCE loss, or in both."""

    def loss(rollout: Rollout) -> torch.Tensor:
        charged: Any = 0.0
        if term.charges:
            charged = policy_gradient_loss(rollout, -kl_reward(rollout, term, beta=1.0))
        return kl_loss(rollout, term) + charged if term.differentiates else charged

    special = {"both": "loss and in the reward", "score": "loss by its score"}
    title = f"{term.entry.name} in the {special.get(term.placement, term.placement)}"
    return Subject(loss, title, "loss" if term.placement == "loss" else "reward", term.entry)
