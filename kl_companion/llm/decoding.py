"""Next-token logits one token at a time, reusing what the model has computed for earlier tokens.

`decoder` reads the prompts through the model itself and returns a function that reads one more token per
completion. For the embedded default that function is written out here: where a layer takes microseconds, the
library's checks around every module take longer than its arithmetic, and sampling is half of a training step.
Any other model goes through its own forward.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear, rms_norm, silu

Step = Callable[[torch.Tensor, int], torch.Tensor]
SHORTEST = 16  # tokens of a prefix that is read once for all prompts
WIDEST = 512  # from here on the arithmetic takes longer than what surrounds it
PLAIN = {
    *("Qwen2ForCausalLM", "Qwen2Model", "Qwen2DecoderLayer", "Qwen2Attention", "Qwen2MLP", "Qwen2RMSNorm"),
    *("Qwen2RotaryEmbedding", "Linear", "Embedding", "ModuleList", "RMSNorm", "SiLUActivation", "SiLU"),
}


def positions(mask: torch.Tensor) -> torch.Tensor:
    """Position of every token among those under the mask, [batch, seq]; padding on the left gets 0."""
    return (mask.cumsum(-1) - 1).clamp_(min=0)


class Prefix(NamedTuple):
    """What prompts begin with, all of them alike: a system's message, worked examples.

    Attributes:
        tokens: [1, prefix].
        mask: [prompts, seq]: of the prefix and what is left of the prompts behind it, whose padding is now
            between the two.
    """

    tokens: torch.Tensor
    mask: torch.Tensor


def saves_a_fifth(spared: int, tokens: int) -> bool:
    """Whether to read so many of the tokens less is worth a second call of the model, which has its price."""
    return 5 * spared > tokens


def unpadded(tokens: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    """Return the tokens under the mask of every row, by one read on the host."""
    rows, insides = torch.stack([tokens, mask.to(tokens.dtype)]).tolist()
    return [[x for x, inside in zip(*row, strict=True) if inside] for row in zip(rows, insides, strict=True)]


def common_prefix(
    model: Any, rows: list[list[int]], prompts: torch.Tensor, mask: torch.Tensor
) -> Prefix | None:
    """The prefix of prompts that are padded on the left, without their last tokens.

    ``rows`` are the same prompts on the host, without padding. None for a single prompt, for a prefix shorter
    than `SHORTEST`, and for a model whose layers see a window only: padding between the prefix and the rest
    would fill it.
    """
    if len(prompts) == 1 or prompts.shape[1] <= SHORTEST:
        return None
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None)
    seen = {"full_attention"} if layers is None else set(layers)
    if seen != {"full_attention"} or (layers is None and getattr(config, "sliding_window", None)):
        return None
    columns = zip(*(row[:-1] for row in rows), strict=False)  # as many as the shortest prompt has
    count = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    if count < SHORTEST:
        return None
    width = prompts.shape[1]
    pad, first = width - mask.sum(-1, keepdim=True), width - len(rows[0])
    place = torch.arange(width, device=prompts.device)
    return Prefix(prompts[:1, first : first + count], ((place < count) | (place >= pad + count)).long())


def read_after(model: Any, prefix: Prefix, tokens: torch.Tensor, mask: torch.Tensor, **options: Any) -> Any:
    """What the model gives for tokens [batch, seq] behind a prefix; ``mask`` is [batch, prefix + seq]."""
    cache = model(prefix.tokens, use_cache=True, logits_to_keep=1).past_key_values
    if cache is None:  # the model keeps nothing: everything is read again
        kept, before = options.pop("logits_to_keep"), prefix.tokens.shape[1]
        options["logits_to_keep"] = kept if isinstance(kept, int) else kept + before
        whole = torch.cat([prefix.tokens.expand(len(tokens), -1), tokens], -1)
        return model(whole, use_cache=False, attention_mask=mask, position_ids=positions(mask), **options)
    cache.batch_repeat_interleave(len(tokens))
    place = positions(mask)[:, prefix.tokens.shape[1] :]
    options |= {"attention_mask": mask, "position_ids": place}
    return model(tokens, past_key_values=cache, use_cache=True, **options)


def decoder(
    model: Any,
    prompts: torch.Tensor,
    mask: torch.Tensor,
    n: int,
    length: int,
    rows: list[list[int]] | None = None,
) -> tuple[torch.Tensor, Step]:
    """Read every prompt once, for ``n`` completions of ``length`` tokens.

    Args:
        model: A causal language model in evaluation mode.
        prompts: [prompts, seq], padded on the left.
        mask: [prompts, seq], 1 on the prompt.
        n: Completions per prompt, which stand next to each other.
        length: Tokens of a completion.
        rows: The prompts on the host, without padding; None reads them.

    Returns:
        Logits of the first token, [prompts * n, vocab]; and ``step(tokens, t)``: the logits after ``tokens``
        [prompts * n] in column t, to be called with t = 0, 1, ... in turn.
    """
    rows = unpadded(prompts, mask) if rows is None else rows
    padded = any(len(row) < prompts.shape[1] for row in rows)
    prefix = common_prefix(model, rows, prompts, mask)
    if prefix is not None and saves_a_fifth((len(prompts) - 1) * prefix.tokens.shape[1], prompts.numel()):
        mask = prefix.mask
        out = read_after(model, prefix, prompts[:, prefix.tokens.shape[1] :], mask, logits_to_keep=1)
    else:
        first = {"attention_mask": mask, "position_ids": positions(mask)} if padded else {}
        out = model(prompts, use_cache=True, logits_to_keep=1, **first)
    logits, cache = out.logits[:, -1], out.past_key_values
    seen = mask.repeat_interleave(n, 0) if padded else None
    read = _written_out if _is_small_qwen2(model) else _through_the_model
    return logits.repeat_interleave(n, 0), read(model, cache, prompts.shape[1], seen, n, length)


def _through_the_model(
    model: Any, cache: Any, width: int, mask: torch.Tensor | None, n: int, length: int
) -> Step:
    if n > 1:
        cache.batch_repeat_interleave(n)
    whole = place = None
    if mask is not None:
        place = mask.sum(-1, keepdim=True)
        whole = torch.cat([mask, mask.new_ones(len(mask), length)], -1)

    def step(tokens: torch.Tensor, t: int) -> torch.Tensor:
        options = {}
        if whole is not None and place is not None:
            options = {"attention_mask": whole[:, : width + t + 1], "position_ids": place + t}
        return model(tokens.unsqueeze(-1), past_key_values=cache, use_cache=True, **options).logits[:, -1]

    return step


class _Layer(NamedTuple):
    """The weights of one block, those that read the same input side by side.

    And its cache, [rows * key heads, seq, size].
    """

    into_attention: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    out: torch.Tensor
    into_mlp: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def _is_small_qwen2(model: Any) -> bool:
    """Whether `_written_out` is what the model computes: nothing wrapped, quantized, adapted or hooked."""
    if type(model).__name__ != "Qwen2ForCausalLM" or torch.is_autocast_enabled(model.device.type):
        return False
    config = model.config
    return (
        config.hidden_size <= WIDEST
        and config.hidden_act == "silu"
        and set(config.layer_types) == {"full_attention"}
        and config.rope_parameters["rope_type"] == "default"
        and model.dtype in (torch.float32, torch.float64)
        and all(
            type(m).__name__ in PLAIN
            and not (m._forward_hooks or m._forward_pre_hooks or hasattr(m, "_hf_hook"))
            for m in model.modules()
        )
    )


def _written_out(model: Any, cache: Any, width: int, mask: torch.Tensor | None, n: int, length: int) -> Step:
    config, body = model.config, model.model
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    eps, embedding = config.rms_norm_eps, body.embed_tokens.weight
    layers = [_layer(block, cache.layers[i], width + length, n) for i, block in enumerate(body.layers)]
    size = layers[0].keys.shape[-1]  # of a head
    every = torch.arange(width + length, device=embedding.device).unsqueeze(0)
    cosines, sines = (x[0].unsqueeze(1) for x in body.rotary_emb(embedding, every))
    # rotate_half(x) * sin == roll(x, half) * (-sin, sin): one operation less
    sines = torch.cat([-sines[..., : size // 2], sines[..., size // 2 :]], -1)
    place = unseen = None
    if mask is not None:
        place = mask.sum(-1)
        unseen = torch.cat([mask == 0, mask.new_zeros(len(mask), length, dtype=torch.bool)], -1)
        unseen = unseen.repeat_interleave(kv_heads, 0).unsqueeze(1)

    def step(tokens: torch.Tensor, t: int) -> torch.Tensor:
        here, rows = width + t, len(tokens)
        now = slice(here, here + 1) if place is None else place + t
        cosine, sine = cosines[now], sines[now]
        hidden = None if unseen is None else unseen[..., : here + 1]
        x = embedding[tokens]
        for layer in layers:
            read = rms_norm(x, x.shape[-1:], layer.into_attention, eps)
            qkv = linear(read, layer.qkv, layer.qkv_bias).view(rows, heads + 2 * kv_heads, size)
            turned = qkv[:, : heads + kv_heads]
            turned = torch.addcmul(turned * cosine, turned.roll(size // 2, -1), sine)
            layer.keys[:, here] = turned[:, heads:].reshape(-1, size)
            layer.values[:, here] = qkv[:, heads + kv_heads :].reshape(-1, size)
            query = turned[:, :heads].reshape(rows * kv_heads, heads // kv_heads, size)
            mixed = _attend(query, layer.keys[:, : here + 1], layer.values[:, : here + 1], hidden)
            x = x + linear(mixed.view(rows, heads * size), layer.out)
            read = rms_norm(x, x.shape[-1:], layer.into_mlp, eps)
            gate, up = linear(read, layer.gate_up).chunk(2, -1)
            x = x + linear(silu(gate) * up, layer.down)
        return linear(rms_norm(x, x.shape[-1:], body.norm.weight, eps), model.lm_head.weight)

    return step


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor | None
) -> torch.Tensor:
    """What the heads that share a key see, [rows, heads, size]; softmax over short rows is slow on a CPU."""
    fit = torch.bmm(query * query.shape[-1] ** -0.5, keys.transpose(1, 2))
    if hidden is not None:
        fit = fit.masked_fill(hidden, -torch.inf)
    weights = (fit - fit.amax(-1, keepdim=True)).exp_()
    return torch.bmm(weights, values) / weights.sum(-1, keepdim=True)


def _layer(block: Any, cached: Any, width: int, n: int) -> _Layer:
    a, mlp = block.self_attn, block.mlp

    def room(x: torch.Tensor) -> torch.Tensor:
        x = x.repeat_interleave(n, 0)
        whole = x.new_empty(*x.shape[:2], width, x.shape[-1])
        whole[:, :, : x.shape[2]] = x
        return whole.flatten(0, 1)

    return _Layer(
        block.input_layernorm.weight,
        torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]),
        torch.cat([a.q_proj.bias, a.k_proj.bias, a.v_proj.bias]),
        a.o_proj.weight,
        block.post_attention_layernorm.weight,
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        mlp.down_proj.weight,
        room(cached.keys),
        room(cached.values),
    )
