"""The block that is written out computes what the model computes; everything else goes through the model."""

from __future__ import annotations

import copy

import pytest
import torch

from kl_companion.llm import decoding
from kl_companion.llm.decoding import decoder, positions
from kl_companion.llm.generation import generate
from kl_companion.llm.models import LanguageModel, tiny_model
from kl_companion.llm.tokenizers import character_tokenizer
from tests.support.llm.digits import DIGITS, EQUAL, TASK, UNEQUAL, off_sampler, seeded

SIZES = {"hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2}


def lively(dtype=torch.float32, **sizes) -> LanguageModel:
    """Biases and norms away from 0 and 1, which would hide that they are left out."""
    lm = tiny_model(character_tokenizer(DIGITS), dtype=dtype, **(SIZES | sizes))
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in lm.model.parameters():
            if p.ndim == 1:
                p.add_(0.5 * torch.randn(p.shape, generator=noise).to(dtype))
    return lm


def refuse(*_, **__):
    raise AssertionError("the other way was taken")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("sizes", [{}, {"heads": 2, "kv_heads": 2}, {"kv_heads": 1, "layers": 1}])
@pytest.mark.parametrize("n", [1, 3])
def test_written_out_it_is_the_same_model(monkeypatch, dtype, examples, sizes, n) -> None:
    lm = lively(dtype, **sizes)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "_through_the_model", refuse)
        ours = generate(lm, TASK, examples, n=n, generator=seeded(4))
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "WIDEST", 0)
        patch.setattr(decoding, "_written_out", refuse)
        theirs = generate(lm, TASK, examples, n=n, generator=seeded(4))
    assert torch.equal(ours.tokens, theirs.tokens)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(ours.behavior_logp, theirs.behavior_logp, rtol=0, atol=tolerance)
    assert off_sampler(lm.model, ours) < tolerance


def test_new_weights_are_read() -> None:
    lm = lively()
    generate(lm, TASK, EQUAL, generator=seeded(4))
    with torch.no_grad():
        for p in lm.model.parameters():
            p.mul_(1.1)
    assert off_sampler(lm.model, generate(lm, TASK, EQUAL, generator=seeded(4))) < 1e-5


def hooked(model):
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, out: 0.5 * out)
    return model


def adapted(model):
    class Adapted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) + x.flip(-1)[..., : self.out_features]

    old = model.model.layers[0].self_attn.o_proj
    new = Adapted(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    model.model.layers[0].self_attn.o_proj = new
    return model


@pytest.mark.parametrize("change", [hooked, adapted, lambda model: model.bfloat16()])
def test_what_is_not_plain_goes_through_the_model(monkeypatch, change) -> None:
    lm = lively()
    plain = generate(lm, TASK, EQUAL, generator=seeded(4))
    lm = LanguageModel(change(copy.deepcopy(lm.model)), lm.tokenizer)
    monkeypatch.setattr(decoding, "_written_out", refuse)
    samples = generate(lm, TASK, EQUAL, generator=seeded(4))
    assert not torch.equal(samples.behavior_logp, plain.behavior_logp)
    assert off_sampler(lm.model, samples) < (0.1 if lm.model.dtype == torch.bfloat16 else 1e-5)


def test_autocast_goes_through_the_model(monkeypatch) -> None:
    monkeypatch.setattr(decoding, "_written_out", refuse)
    with torch.autocast("cpu", torch.bfloat16):
        generate(lively(), TASK, EQUAL, generator=seeded(4))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_other_architectures(kind, examples) -> None:
    """Against a forward per token, without padding and without a cache."""
    import transformers

    tokenizer = character_tokenizer(DIGITS)
    torch.manual_seed(0)
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "initializer_range": 0.3}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=14, **sizes))
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.LlamaConfig(
            vocab_size=14, max_position_embeddings=32, initializer_range=0.3, **sizes
        )
        model = transformers.LlamaForCausalLM(config)
    model.generation_config.eos_token_id = None
    lm = LanguageModel(model.eval(), tokenizer)
    samples = generate(lm, TASK, examples, n=2, generator=seeded(4))
    assert off_sampler(model, samples) < 1e-5
    for i, row in enumerate(samples.tokens):
        prompt = samples.prompt_tokens[i][samples.prompt_mask[i].bool()]
        with torch.no_grad():
            logits = model(torch.cat([prompt, row]).unsqueeze(0)).logits[0, len(prompt) - 1 : -1]
        exact = logits.log_softmax(-1).gather(-1, row.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(samples.behavior_logp[i], exact, rtol=0, atol=1e-5)


def test_a_step_returns_the_logits_after_the_tokens() -> None:
    lm = lively(torch.float64)
    prompts = torch.tensor([[0, 1, 4], [1, 5, 6]])
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    with torch.no_grad():
        first, step = decoder(lm.model, prompts, mask, 2, 2)
        tokens = torch.tensor([[7, 8], [9, 10], [11, 12], [13, 3]])
        found = [first, step(tokens[:, 0], 0), step(tokens[:, 1], 1)]
        for i, row in enumerate(tokens):
            read = torch.cat([prompts[i // 2][mask[i // 2].bool()], row])
            exact = lm.model(read.unsqueeze(0)).logits[0, -3:]
            torch.testing.assert_close(torch.stack([x[i] for x in found]), exact, rtol=0, atol=1e-12)


def test_positions() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    assert positions(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]
