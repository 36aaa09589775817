"""`torch.nn.functional`, as far as losses use it."""

from __future__ import annotations

from typing import Any

from kl_book.paste.stand_in import choices, indexing, shaping
from kl_book.paste.stand_in import elementwise as each
from kl_book.paste.stand_in import reductions as along
from kl_book.paste.stand_in.factories import full
from kl_book.paste.stand_in.factories import one_hot as one_hot
from kl_book.paste.stand_in.kinds import FLOAT64
from kl_book.paste.stand_in.tensor import Tensor

NAMES = (
    *(
        "log_softmax",
        "softmax",
        "logsigmoid",
        "sigmoid",
        "softplus",
        "tanh",
        "relu",
        "one_hot",
        "kl_div",
        "pad",
    ),
    *(
        "nll_loss",
        "cross_entropy",
        "mse_loss",
        "l1_loss",
        "huber_loss",
        "smooth_l1_loss",
        "normalize",
        "dropout",
    ),
    "binary_cross_entropy_with_logits",
)
log_softmax, softmax = along.log_softmax, along.softmax
logsigmoid, sigmoid, softplus, tanh = each.logsigmoid, each.sigmoid, each.softplus, each.tanh


def relu(x: Tensor, inplace: bool = False) -> Tensor:
    """max(x, 0)."""
    return each.relu(x)


def _reduced(x: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return x
    if reduction == "batchmean":
        return each.div(along.sum_(x), x.size_[0])
    if reduction in ("mean", "sum"):
        return along.mean(x) if reduction == "mean" else along.sum_(x)
    raise ValueError(f"{reduction} is not a valid value for reduction")


def kl_div(
    input: Tensor, target: Tensor, *_: Any, reduction: str = "mean", log_target: bool = False, **__: Any
) -> Tensor:
    """target (log target - input), entry by entry: the KL of the target from exp(input)."""
    if log_target:
        found = each.mul(each.exp(target), each.sub(target, input))
    else:
        found = each.sub(each.xlogy(target, target), each.mul(target, input))
    return _reduced(found, reduction)


def nll_loss(
    input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, reduction: str = "mean", **__: Any
) -> Tensor:
    """Minus the entry of every target, classes on the second axis."""
    axis = 1 if input.ndim > 1 else 0
    kept = each.ne(target, ignore_index)
    safe = choices.where(kept, target, 0)
    picked = shaping.squeeze(indexing.gather(input, axis, shaping.unsqueeze(safe, axis)), axis)
    found = choices.where(kept, each.neg(picked), 0.0)
    if reduction != "mean":
        return _reduced(found, reduction)
    return each.div(along.sum_(found), along.sum_(kept))


def cross_entropy(
    input: Tensor, target: Tensor, *_: Any, label_smoothing: float = 0.0, **given: Any
) -> Tensor:
    """Minus the log-probability of every target: indices, or probabilities of the classes."""
    axis = 1 if input.ndim > 1 else 0
    logp = log_softmax(input, axis)
    if label_smoothing:
        raise NotImplementedError("label_smoothing other than 0 does not run in this page")
    if target.kind is FLOAT64:
        found = each.neg(along.sum_(each.mul(logp, target), axis))
        return _reduced(found, given.get("reduction", "mean"))
    return nll_loss(logp, target, **given)


def mse_loss(input: Tensor, target: Tensor, *_: Any, reduction: str = "mean", **__: Any) -> Tensor:
    """Squared differences."""
    return _reduced(each.square(each.sub(input, target)), reduction)


def l1_loss(input: Tensor, target: Tensor, *_: Any, reduction: str = "mean", **__: Any) -> Tensor:
    """Absolute differences."""
    return _reduced(each.absolute(each.sub(input, target)), reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, **_: Any
) -> Tensor:
    """Half the squares of small differences, linear in large ones."""
    size = each.absolute(each.sub(input, target))
    small, large = each.mul(0.5, each.square(size)), each.mul(delta, each.sub(size, 0.5 * delta))
    return _reduced(choices.where(each.lt(size, delta), small, large), reduction)


def smooth_l1_loss(
    input: Tensor, target: Tensor, *_: Any, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """The same over its bend."""
    return each.div(huber_loss(input, target, reduction, beta), beta)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, *_: Any, reduction: str = "mean"
) -> Tensor:
    """Minus the log-likelihood of labels between 0 and 1."""
    return _reduced(each.sub(softplus(input), each.mul(input, target)), reduction)


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Over the norm along an axis."""
    return each.div(x, choices.clamp(along.norm(x, p, dim, keepdim=True), min=eps))


def pad(x: Tensor, pad: Any, mode: str = "constant", value: float = 0.0) -> Tensor:
    """More entries at both ends of the last axes, the last one first."""
    if mode != "constant":
        raise NotImplementedError(f"F.pad with mode {mode!r} does not run in this page")
    for turn in range(len(pad) // 2):
        axis = x.ndim - 1 - turn
        for count, before in ((pad[2 * turn], True), (pad[2 * turn + 1], False)):
            if count < 0:
                start = -count if before else 0
                x = shaping.narrow(x, axis, start, x.size_[axis] + count)
            elif count:
                shape = tuple(count if a == axis else n for a, n in enumerate(x.size_))
                filled = full(shape, value, dtype=x.kind)
                x = shaping.cat([filled, x] if before else [x, filled], axis)
    return x


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Nothing: an audit enumerates, and nothing in it is drawn."""
    if training and p:
        raise NotImplementedError("dropout in a loss does not run in this page: nothing here is drawn")
    return x
