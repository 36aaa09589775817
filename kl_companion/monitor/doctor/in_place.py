"""The tiny model inside a real one: blocks and output layer change place, all code around them stays.

What a trainer has patched into its model (a fused head with a temperature, a soft cap, a wrapper) goes on
running, on tables in the place of a billion weights. On leaving, everything is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kl_companion.monitor.doctor.tiny_model import Body, head_of
from kl_companion.monitor.doctor.world import Ids


def ids_of(tokenizer: Any) -> Ids:
    """Ids of a tokenizer's own vocabulary for the small world: its padding, its end, and six plain tokens.

    Raises:
        ValueError: a tokenizer without an end-of-sequence token, or with fewer than six others.
    """
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    end, pad = getattr(tokenizer, "eos_token_id", None), getattr(tokenizer, "pad_token_id", None)
    if end is None:
        raise ValueError("the tokenizer has no eos_token_id, expected one: answers end with it")
    taken = {end, pad, *getattr(tokenizer, "all_special_ids", [])}
    plain = [i for i in range(min(len(tokenizer), 1000)) if i not in taken][:6]
    if len(plain) < 6:
        raise ValueError(f"the tokenizer has {len(plain)} tokens besides special ones, expected at least 6")
    return Ids(end if pad is None else pad, (end, *plain[:3]), (plain[3], plain[4], plain[5]))


@contextmanager
def lent(model: Any, body: Body) -> Iterator[None]:
    """Lend a causal language model of transformers (or of peft around one) a `Body` and its head.

    Raises:
        ValueError: a model whose blocks or output layer are not found.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    prefix = getattr(inner, "base_model_prefix", "")
    head = inner.get_output_embeddings() if hasattr(inner, "get_output_embeddings") else None
    if not prefix or not hasattr(inner, prefix) or head is None:
        raise ValueError(
            f"{type(model).__name__} has no blocks and output layer that can be lent, expected a causal "
            "language model of transformers; a function step(model, batch) works with any model"
        )
    blocks, training = getattr(inner, prefix), inner.training
    device = next(inner.parameters()).device
    setattr(inner, prefix, body.to(device))
    inner.set_output_embeddings(head_of(body.world, body.role).to(device))
    mixed = vars(inner).get("forward") if hasattr(inner, "_original_forward") else None
    if mixed is not None:  # accelerate's wrapper, which computes in bfloat16: the world is exact
        inner.forward = inner._original_forward
    adapters = {n: getattr(model, n) for n in ("disable_adapter", "set_adapter") if hasattr(model, n)}
    if adapters:
        _lend_adapters(model, body)
    inner.train(training)
    try:
        yield
    finally:
        for name in adapters:
            model.__dict__.pop(name, None)
        if mixed is not None:
            inner.forward = mixed
        setattr(inner, prefix, blocks)
        inner.set_output_embeddings(head)


def _lend_adapters(model: Any, body: Body) -> None:
    """Without its adapters, or with those called "ref", the policy is the reference."""

    @contextmanager
    def disable_adapter() -> Iterator[None]:
        before, body.adapters_off = body.adapters_off, True
        try:
            yield
        finally:
            body.adapters_off = before

    def set_adapter(name: str, *_: Any, **__: Any) -> None:
        body.adapters_off = name == "ref"

    model.__dict__["disable_adapter"] = disable_adapter
    model.__dict__["set_adapter"] = set_adapter


@contextmanager
def changed(owner: Any, **attributes: Any) -> Iterator[None]:
    """Give an object other attributes for a while."""
    missing = object()
    before = {name: vars(owner).get(name, missing) for name in attributes}
    for name, x in attributes.items():
        setattr(owner, name, x)
    try:
        yield
    finally:
        for name, x in before.items():
            if x is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, x)
