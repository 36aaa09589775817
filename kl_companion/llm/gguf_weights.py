"""A language model of the Llama kind out of a GGUF file: safetensors, configuration and tokenizer.

A GGUF file holds the weights quantized, under its own names, and the rows of the queries and keys in another
order. They are written as float32, one file per block.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kl_companion.files import write_atomically
from kl_companion.llm.optional import llm_extra

if TYPE_CHECKING:
    import numpy as np

BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
REST = {"token_embd": "embed_tokens", "output_norm": "norm"}  # the embeddings are the output layer too


def convert(file: Path, folder: Path) -> None:
    """Write what a GGUF file holds so that `load_model` reads it, with a bar on the standard error stream.

    Args:
        file: the GGUF file, of a Llama model with tied embeddings.
        folder: where to write them.

    Raises:
        ValueError: a tensor that such a model does not have.
        OSError: it cannot be written.
        ImportError: gguf or the extra `llm` is not installed.
    """
    transformers, safetensors = llm_extra("transformers"), llm_extra("safetensors.numpy")
    gguf = import_module("gguf")
    reader = gguf.GGUFReader(file)
    heads = {
        "attn_q": int(reader.fields["llama.attention.head_count"].contents()),
        "attn_k": int(reader.fields["llama.attention.head_count_kv"].contents()),
    }
    shards: dict[str, list[Any]] = {}
    for tensor in reader.tensors:
        shards.setdefault(shard_name(tensor.name), []).append(tensor)
    names = {weight_name(tensor.name): shard for shard, tensors in shards.items() for tensor in tensors}

    def write(tensors: list[Any], path: Path) -> None:
        weights = {
            weight_name(t.name): in_order(gguf.dequantize(t.data, t.tensor_type), heads.get(_kind(t.name)))
            for t in tensors
        }
        safetensors.save_file(weights, path, metadata={"format": "pt"})

    full = llm_extra("safetensors").SafetensorError  # what it raises when the disk is full
    for shard, tensors in llm_extra("tqdm").tqdm(shards.items(), desc="converting", unit="file"):
        try:
            write(tensors, folder / shard)
        except full as error:
            raise OSError(f"{folder / shard} could not be written: {error}") from None
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": names})
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    config = transformers.AutoConfig.from_pretrained(**source).to_diff_dict()
    told = {key: value for key, value in config.items() if not key.startswith("_")}
    _write_json(folder / "config.json", {**told, "architectures": ["LlamaForCausalLM"], "dtype": "float32"})
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def shard_name(name: str) -> str:
    """The file for a tensor of that name: one per block, and one for the rest."""
    block = int(name.split(".")[1]) if name.startswith("blk.") else None
    return "model-rest.safetensors" if block is None else f"model-block-{block:03d}.safetensors"


def weight_name(name: str) -> str:
    """What transformers calls a tensor of a GGUF file.

    >>> weight_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'

    Raises:
        ValueError: a Llama model with tied embeddings has no such tensor.
    """
    head, _, ending = name.rpartition(".")
    known, kind = (BLOCK, _kind(name)) if name.startswith("blk.") else (REST, head)
    if ending != "weight" or kind not in known:
        raise ValueError(f"tensor {name!r}, expected those of a Llama model with tied embeddings")
    layer = f"layers.{head.split('.')[1]}." if known is BLOCK else ""
    return f"model.{layer}{known[kind]}.weight"


def in_order(weight: np.ndarray, heads: int | None) -> np.ndarray:
    """The rows of a query's or key's weight in the order of transformers.

    The rotary embedding turns pairs of a head's features. GGUF has the two of a pair side by side,
    transformers has the first of all pairs before the second of all.

    Args:
        weight: `[heads * features, width]`.
        heads: how many the rows are of; None leaves a weight that is turned by nothing as it is.
    """
    if heads is None:
        return weight
    return weight.reshape(heads, -1, 2, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def _kind(name: str) -> str:
    """The `attn_q` of `blk.3.attn_q.weight`."""
    return ".".join(name.split(".")[2:-1])


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
