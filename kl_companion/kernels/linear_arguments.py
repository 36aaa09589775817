"""Checks of hidden states and output layers, of the policy and of a teacher."""

from __future__ import annotations

import torch

from kl_companion.checks import check_shape
from kl_companion.kernels.arguments import check_array, check_device
from kl_companion.kernels.linear_walks import LogitRows, Projection


def teacher_of(
    policy: Projection,
    lead: torch.Size,
    hidden: torch.Tensor | None,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    logits: torch.Tensor | None,
) -> Projection | LogitRows:
    """Checked: hidden states and output layer, or logits [rows, vocab]."""
    vocab = len(policy.weight)
    if logits is None and hidden is not None and weight is not None:
        _check_frozen(ref_hidden=hidden, ref_weight=weight, ref_bias=bias)
        found = projection("ref_", hidden, weight, bias)
        if hidden.shape[:-1] != lead:
            raise ValueError(
                f"ref_hidden has shape {list(hidden.shape)}, expected {[*lead, 'features']} like "
                "hidden [..., features]"
            )
        if len(weight) != vocab:
            raise ValueError(
                f"ref_weight has shape {list(weight.shape)}, expected [{vocab}, features] like "
                "weight [vocab, features]"
            )
        check_device("ref_weight", weight, policy.weight, "weight")
        return found
    if logits is not None and hidden is None and weight is None and bias is None:
        _check_frozen(ref_logits=logits)
        check_array("ref_logits", logits)
        check_shape("ref_logits", logits, (*lead, vocab), "hidden [..., features] @ weight.T")
        check_device("ref_logits", logits, policy.weight, "weight")
        return LogitRows(logits.reshape(-1, vocab))
    parts = {"ref_hidden": hidden, "ref_weight": weight, "ref_bias": bias, "ref_logits": logits}
    given = ", ".join(name for name, part in parts.items() if part is not None)
    raise ValueError(
        f"the teacher is given by {given or 'nothing'}, expected exactly one of ref_hidden with ref_weight "
        "(and ref_bias or not) and ref_logits"
    )


def projection(
    prefix: str, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> Projection:
    """Checked, two-dimensional, and in the dtype of autocast where that is on."""
    check_array(f"{prefix}hidden", hidden)
    check_array(f"{prefix}weight", weight)
    if weight.ndim != 2 or 0 in weight.shape:
        raise ValueError(f"{prefix}weight has shape {list(weight.shape)}, expected [vocab, features]")
    if hidden.ndim == 0 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{prefix}hidden has shape {list(hidden.shape)}, expected [..., {weight.shape[1]}] like "
            f"{prefix}weight [vocab, features]"
        )
    check_device(f"{prefix}hidden", hidden, weight, f"{prefix}weight")
    if bias is not None:
        check_device(f"{prefix}bias", bias, weight, f"{prefix}weight")
        check_array(f"{prefix}bias", bias)
        check_shape(f"{prefix}bias", bias, weight.shape[:1], f"{prefix}weight [vocab, ...], its first axis")
    # torch 2.11 cannot trace torch.amp.is_autocast_available; meta tensors have no autocast
    if not hidden.is_meta and torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    if hidden.dtype != weight.dtype:
        raise ValueError(
            f"{prefix}hidden is {hidden.dtype} and {prefix}weight {weight.dtype}, expected one dtype"
        )
    return Projection(hidden.reshape(-1, hidden.shape[-1]), weight, bias)


def _check_frozen(**tensors: torch.Tensor | None) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(f"{name} requires a gradient, expected a frozen teacher: pass {name}.detach()")
