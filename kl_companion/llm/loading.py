"""Check that a folder or repository holds a whole model before it is loaded, and say what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from kl_companion.llm.optional import llm_extra

PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
# tokenizers that are nothing but their tokenizer.json
_PLAIN = ("TokenizersBackend", "PreTrainedTokenizerFast")


def device_named(device: str) -> torch.device:
    """The device of that name, if it can hold a tensor here; else ValueError."""
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        raise ValueError(
            f"device {device!r} is not available here, expected one of {', '.join(there)}"
        ) from error
    return place


def check_folder(folder: Path) -> None:
    """Raise ValueError unless a folder holds a configuration and weights in safetensors."""
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds no config.json, expected a model that save_pretrained wrote")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ValueError(
            f"{folder} holds its weights as a pickle only ({pickles[0]}), which may run code when "
            "it is read; expected safetensors. If you trust it, convert it once: "
            "AutoModelForCausalLM.from_pretrained(folder, use_safetensors=False).save_pretrained(folder) "
            "writes safetensors"
        )
    raise ValueError(f"{folder} holds no weights: expected *.safetensors")


def load_tokenizer(transformers: Any, name: str, trust_remote_code: bool) -> Any:
    """The tokenizer of a folder or repository, with a padding token; else ValueError."""
    try:
        declared = _declared_class(name, trust_remote_code)
        # for some architectures, Qwen2 among them, the automatic choice overrides what the folder declares
        # and splits texts by the rules of another tokenizer
        kind = transformers.PreTrainedTokenizerFast if declared in _PLAIN else transformers.AutoTokenizer
        tokenizer = kind.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        if Path(name).is_dir():
            raise ValueError(
                f"{name} holds no tokenizer that can be read, expected tokenizer.json, "
                "as save_pretrained writes it"
            ) from error
        raise ValueError(
            f"{name!r} is no folder here, and no model with a tokenizer that the hub has or that was "
            f"downloaded before: {first_line(error)}"
        ) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # some kinds make an empty one out of nothing
        raise ValueError(
            f"{name!r} holds no tokenizer: expected tokenizer.json, as save_pretrained writes it"
        )
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {name!r} has no end-of-sequence token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _declared_class(name: str, trust_remote_code: bool) -> str | None:
    auto = llm_extra("transformers.models.auto.tokenization_auto")
    return auto.get_tokenizer_config(name, trust_remote_code=trust_remote_code).get("tokenizer_class")


def without_dropout(config: Any) -> None:
    """Set every rate of dropout in a configuration to zero."""
    for key, value in config.to_dict().items():
        if ("dropout" in key or key.endswith("pdrop")) and isinstance(value, float):
            setattr(config, key, 0.0)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
