"""Writing into a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kl_book.paste.stand_in import graph
from kl_book.paste.stand_in.kinds import as_kind
from kl_book.paste.stand_in.tensor import NotInPage, Tensor


def overwrite(
    tensor: Tensor, operation: Callable[..., Tensor], *args: Any, name: str, **given: Any
) -> Tensor:
    """Let a tensor be what an operation makes of it and other arguments.

    Raises:
        RuntimeError: it is a leaf whose gradient is wanted, or the result has another shape or a wider kind.
        NotInPage: other tensors have its memory in common.
    """
    if graph.is_grad_enabled() and tensor.requires_grad and tensor.is_leaf:
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
    if tensor.base is not None or tensor.views:
        raise NotInPage(f"{name}, which writes into memory that another tensor shows too,")
    # what the step is made of is what this tensor was
    before = Tensor(tensor._entries, tensor.size_, tensor.kind, tensor.step, tensor.requires_grad)
    before.small, before.copies = tensor.small, tensor.copies
    new = operation(before, *(before if a is tensor else a for a in args), **given)
    if new.size_ != tensor.size_:
        raise RuntimeError(
            f"output with shape {list(tensor.size_)} doesn't match the broadcast shape {list(new.size_)}"
        )
    if new.kind.rank > tensor.kind.rank:
        raise RuntimeError(f"result type {new.kind.name} can't be cast to {tensor.kind.name}")
    if new.copies is not None and new.kind is tensor.kind:
        tensor._entries, tensor.small, tensor.copies = None, new.small, new.copies
    else:
        tensor._entries = as_kind(new.entries, new.kind, tensor.kind)
        tensor.small = tensor.copies = None
    tensor.step, tensor.requires_grad = new.step, new.requires_grad
    tensor.same = tensor.kept = None
    tensor._version += 1
    return tensor
