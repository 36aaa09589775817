"""A prompt that several completions share is read once: the same logits and gradients, from fewer tokens."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from kl_companion.llm.generation import Samples, generate
from kl_companion.llm.models import LanguageModel, frozen_copy, tiny_model
from kl_companion.llm.scoring import _row_by_row, completion_logits
from kl_companion.llm.tasks import Example, Task
from kl_companion.llm.tokenizers import character_tokenizer
from tests.support.llm.digits import DIGITS, seeded

EQUAL = [Example("123=", "12"), Example("983=", "89"), Example("073=", "07")]
UNEQUAL = [Example("1=", "1"), Example("98765=", "5"), Example("432=", "2")]
TASK = Task("digits", DIGITS, 4, lambda n, g: EQUAL[:n], None)
SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2}


def models() -> dict[str, LanguageModel]:
    tokenizer = character_tokenizer(DIGITS)
    vocab = len(tokenizer)
    torch.manual_seed(0)
    absolute = GPT2LMHeadModel(GPT2Config(vocab_size=vocab, n_embd=16, n_head=2, n_layer=2, n_positions=32))
    sliding = MistralForCausalLM(
        MistralConfig(
            vocab_size=vocab, **SMALL, num_key_value_heads=1, intermediate_size=32, sliding_window=3
        )
    )
    return {
        "qwen2": tiny_model(tokenizer, hidden=16, layers=2, heads=2, dtype=torch.float64),
        "gpt2": LanguageModel(absolute.double().eval(), tokenizer),
        "mistral": LanguageModel(sliding.double().eval(), tokenizer),
    }


MODELS = models()


def gradients(lm: LanguageModel, logits: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    return list(torch.autograd.grad((weights * logits.log_softmax(-1)).sum(), list(lm.model.parameters())))


def tokens_read(lm: LanguageModel, samples: Samples) -> int:
    read = []
    handle = lm.model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: read.append(inputs[0].numel())
    )
    completion_logits(lm.model, samples)
    handle.remove()
    return sum(read)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "padded"])
def test_sharing_changes_neither_logits_nor_gradients(name, examples) -> None:
    lm = MODELS[name]
    samples = generate(lm, TASK, examples, n=4, generator=seeded(1))
    width, length = samples.prompt_tokens.shape[1], samples.tokens.shape[1]
    assert tokens_read(lm, samples) == 3 * width + 12 * (length - 1)
    shared, plain = completion_logits(lm.model, samples), _row_by_row(lm.model, samples)
    torch.testing.assert_close(shared, plain, rtol=0, atol=1e-12)
    found = gradients(lm, shared)
    for a, b in zip(found, gradients(lm, plain), strict=True):  # the norms of two of them are in float32
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)
    assert max(g.abs().max().item() for g in found) > 1e-2


def test_rows_in_any_order() -> None:
    lm = MODELS["qwen2"]
    samples = generate(lm, TASK, UNEQUAL, n=4, generator=seeded(1))
    mixed = samples.select([0, 1, 2, 9, 10, 11, 3, 4, 5, 6, 8])
    width, length = samples.prompt_tokens.shape[1], samples.tokens.shape[1]
    assert tokens_read(lm, mixed) == 5 * width + 11 * (length - 1)
    torch.testing.assert_close(
        completion_logits(lm.model, mixed), _row_by_row(lm.model, mixed), rtol=0, atol=1e-12
    )


def test_prompts_read_alone_where_sharing_saves_little() -> None:
    lm = MODELS["qwen2"]
    single = generate(lm, TASK, EQUAL, n=1, generator=seeded(1))
    width, length = single.prompt_tokens.shape[1], single.tokens.shape[1]
    assert tokens_read(lm, single) == 3 * (width + length - 1)
    lone = generate(lm, TASK, EQUAL, n=4, max_new_tokens=1, generator=seeded(1))
    assert tokens_read(lm, lone) == 12 * width, "one token each: nothing follows the prompt"


class WithoutCache(GPT2LMHeadModel):
    """A model that keeps nothing of what it has read, as models with a state instead of keys and values."""

    def forward(self, *args, past_key_values=None, **options):
        assert past_key_values is None
        out = super().forward(*args, **options)
        return type(out)(loss=out.loss, logits=out.logits)


@pytest.mark.parametrize(
    "examples", [EQUAL, UNEQUAL, [Example("12345" * 4 + end, "") for end in ("6=", "=")]]
)
def test_a_model_without_a_cache_reads_every_row(examples) -> None:
    lm = MODELS["gpt2"]
    samples = generate(lm, TASK, examples, n=4, generator=seeded(1))
    model = WithoutCache(lm.model.config).double().eval()
    model.load_state_dict(lm.model.state_dict())
    found, expected = (completion_logits(x, samples) for x in (model, lm.model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_recomputed_activations_have_no_cache_to_share() -> None:
    lm = models()["qwen2"]
    samples = generate(lm, TASK, EQUAL, n=4, generator=seeded(1))
    expected = gradients(lm, _row_by_row(lm.model, samples))
    lm.model.train()
    lm.model.activation_checkpointing_enable()
    for a, b in zip(gradients(lm, completion_logits(lm.model, samples)), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize("examples", [[Example("12345=", "")] * 32, [Example("9=", ""), *EQUAL] * 8])
@pytest.mark.parametrize("n", [1, 8], ids=["row by row", "shared"])
def test_a_frozen_copy_rounds_as_its_policy_does(examples, n) -> None:
    """Else the KL of a policy to itself has a gradient of 1e-6, and Adam's first step is a full one."""
    lm = tiny_model(character_tokenizer(DIGITS), hidden=64, layers=2)
    lm.model.requires_grad_(True)
    samples = generate(lm, TASK, examples, n=n, generator=seeded(1))
    policy, copy = (completion_logits(x.model, samples).detach() for x in (lm, frozen_copy(lm)))
    assert torch.equal(policy, copy)


LONG = "12345678901234567890="
SAME_START = [Example(f"{LONG}{x}", "1") for x in ("1=", "98765=", "432=", "77=")]


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
@pytest.mark.parametrize(
    ("examples", "less"),
    [(SAME_START, 0), (SAME_START[::2] * 2, 0), ([Example(LONG, "1"), *SAME_START[1:]], 1)],
    ids=["four", "two of each", "one that is the beginning"],
)
def test_what_all_prompts_begin_with_is_read_once(name, examples, less) -> None:
    lm = MODELS[name]
    samples = generate(lm, TASK, examples, generator=seeded(1))
    width, length = samples.prompt_tokens.shape[1], samples.tokens.shape[1]
    prefix = len(LONG) + int(lm.tokenizer.bos_token_id in samples.prompt_tokens) - less
    assert tokens_read(lm, samples) == prefix + 4 * (width - prefix + length - 1)
    found = completion_logits(lm.model, samples)
    text = found.detach()
    for row in range(4):  # alone, nothing is shared, and nothing is padded
        one = samples.select([row])
        kept = one.prompt_mask[0].bool()
        one = type(one)(
            **{
                **vars(one),
                "prompt_tokens": one.prompt_tokens[:, kept],
                "prompt_mask": one.prompt_mask[:, kept],
            }
        )
        alone = completion_logits(lm.model, one)
        torch.testing.assert_close(text[row : row + 1], alone.detach(), rtol=0, atol=1e-12)
    expected = sum_of_rows(lm, samples)
    for a, b in zip(gradients(lm, found), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def sum_of_rows(lm: LanguageModel, samples: Samples) -> list[torch.Tensor]:
    """The same gradients from one row at a time."""
    rows = [completion_logits(lm.model, samples.select([i])) for i in range(len(samples.tokens))]
    return gradients(lm, torch.cat(rows))


def test_the_sampler_reads_a_common_beginning_once_and_chooses_the_same_tokens() -> None:
    lm = MODELS["qwen2"]
    read = []
    hook = lm.model.get_input_embeddings().register_forward_hook(lambda m, i, o: read.append(i[0].shape))
    samples = generate(lm, TASK, SAME_START, n=2, generator=seeded(1))
    hook.remove()
    width = samples.prompt_tokens.shape[1]
    prefix = read[0][1]
    assert [tuple(x) for x in read[:2]] == [(1, prefix), (4, width - prefix)]
    assert prefix >= len(LONG)
    uniforms = torch.rand(8, 4, dtype=torch.float64, generator=seeded(1))
    with torch.no_grad():
        for row in range(8):
            kept = samples.prompt_mask[row].bool()
            seen = samples.prompt_tokens[row][kept]
            for t in range(4):
                p = lm.model(seen.unsqueeze(0)).logits[0, -1].softmax(-1)
                token = int((p.cumsum(0) <= uniforms[row, t]).sum())
                assert token == samples.tokens[row, t]
                seen = torch.cat([seen, samples.tokens[row, t : t + 1]])


def test_a_window_is_never_filled_with_padding() -> None:
    lm = MODELS["mistral"]
    samples = generate(lm, TASK, SAME_START, generator=seeded(1))
    width, length = samples.prompt_tokens.shape[1], samples.tokens.shape[1]
    assert tokens_read(lm, samples) == 4 * (width + length - 1)


def test_a_short_beginning_is_not_worth_a_call_of_its_own() -> None:
    lm = MODELS["qwen2"]
    examples = [Example(f"1234567890={x}", "1") for x in ("1=", "2=", "3=", "4=")]
    samples = generate(lm, TASK, examples, generator=seeded(1))
    width, length = samples.prompt_tokens.shape[1], samples.tokens.shape[1]
    assert tokens_read(lm, samples) == 4 * (width + length - 1)
