"""LoRA: train two thin matrices beside every linear layer, in place of its weights, by the library peft.

Source: hu2022lora.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from kl_companion.llm.models import LanguageModel
from kl_companion.llm.packaged import HOW, fetched_packages


def add_adapters(lm: LanguageModel, rank: int, *, seed: int = 0) -> Callable[[], Any]:
    """Freeze a model and put adapters into it, in place; they change nothing until they are trained.

    The product of the two matrices is scaled by 2 and begins at zero. No dropout.

    Args:
        lm: The model; afterwards its adapters alone require gradients.
        rank: The inner dimension.
        seed: Of the adapters' first matrices; the global random state stays as it was.

    Returns:
        A function that adds the adapters to the weights and takes them out. The model is then a plain one
        again, with no gradients anywhere, that computes the same up to rounding.

    Raises:
        ImportError: peft is not installed.
        ValueError: the model holds adapters already.
    """
    peft = _peft()
    if hasattr(lm.model, "peft_config"):
        raise ValueError("the model holds adapters already, expected a plain one: merge them first")
    options = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wrapped = peft.get_peft_model(lm.model, options)
    return lambda: wrapped.merge_and_unload()


def _peft() -> Any:
    try:
        with fetched_packages():
            return import_module("peft")
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise ImportError(f"LoRA needs peft, which is not installed: {HOW}", name="peft") from None
