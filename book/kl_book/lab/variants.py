"""What a model is compared with in practice: itself in another precision, with fewer layers, or before RL.

All of them are copies; the given model stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kl_companion.checks import check_choice
from kl_companion.llm.models import DTYPES, LanguageModel, frozen_copy
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Task
from kl_companion.llm.tasks.base import whole
from kl_companion.llm.training import train


def rounded(lm: LanguageModel, dtype: str = "bfloat16") -> LanguageModel:
    """The model with weights and arithmetic in another precision, as inference engines run it.

    Args:
        lm: The model.
        dtype: float32, bfloat16 or float16.

    Raises:
        ValueError: another precision.
    """
    check_choice("dtype", dtype, [name for name in DTYPES if name != "float64"])
    other = frozen_copy(lm)
    return other._replace(model=other.model.to(DTYPES[dtype]))


def quantized(lm: LanguageModel, bits: int = 8) -> LanguageModel:
    """The model with every linear layer's weights on a grid of 2^bits - 1 steps per output.

    The grid is symmetric and as wide as the largest weight of the output that it serves: rounding to the
    nearest, weights only. Embeddings, the output layer, norms and all arithmetic keep their precision.

    Args:
        lm: The model.
        bits: 2 to 16.

    Raises:
        ValueError: ``bits`` out of range.
    """
    whole("bits", bits, 2, 16)
    other = frozen_copy(lm)
    output = other.model.get_output_embeddings()
    with torch.no_grad():
        for module in other.model.modules():
            if isinstance(module, torch.nn.Linear) and module is not output:
                weight = module.weight
                step = weight.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
                weight.copy_((weight / step.clamp(min=1e-12)).round() * step)
    return other


def with_layers(lm: LanguageModel, layers: Sequence[int]) -> LanguageModel:
    """The model with some of its blocks only, in this order: ``range(0, 30, 2)`` keeps every second of 30.

    Args:
        lm: A model whose body holds its blocks in ``layers``, as those of the Llama and Qwen families do.
        layers: Their numbers, increasing, from 0.

    Raises:
        ValueError: a model of another make, no block, or a number out of range or order.
    """
    blocks = getattr(lm.model.base_model, "layers", None)
    if not isinstance(blocks, torch.nn.ModuleList):
        raise ValueError(f"{type(lm.model).__name__} keeps its blocks elsewhere, expected them in `layers`")
    kept = list(layers)
    if not kept or kept != sorted(set(kept)) or not 0 <= kept[0] <= kept[-1] < len(blocks):
        raise ValueError(f"layers is {kept}, expected increasing numbers from 0 to {len(blocks) - 1}")
    other = frozen_copy(lm)
    body = other.model.base_model
    body.layers = torch.nn.ModuleList([body.layers[i] for i in kept])
    for place, block in enumerate(body.layers):  # where a block finds its part of the cache
        block.self_attn.layer_idx = place
    other.model.config.num_hidden_layers = len(kept)
    kinds = getattr(other.model.config, "layer_types", None)
    if kinds is not None:
        other.model.config.layer_types = [kinds[i] for i in kept]
    return other


def trained(lm: LanguageModel, task: Task, settings: Settings, *, every: int) -> dict[int, LanguageModel]:
    """Copies of a model along a run that starts from it and has it as its reference, by finished steps.

    Args:
        lm: Where the run starts.
        task: Prompts and rewards.
        settings: Of the run.
        every: Steps between two copies; the last step is kept, too.

    Raises:
        ValueError: as `kl_companion.llm.training.train`.
    """
    policy, kept = frozen_copy(lm), {}
    policy.model.requires_grad_(True)

    def keep(now: LanguageModel, step: int) -> dict[str, float]:
        kept[step] = frozen_copy(now)
        return {}

    train(policy, task, settings, reference=lm, evaluate=keep, every=every)
    return kept
