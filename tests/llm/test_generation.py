"""Sampling: the right token at every quantile, the right masks, and errors that say what to do."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import replace

import pytest
import torch

from kl_companion.llm import generation
from kl_companion.llm.generation import generate, inverse_cdf, prompt_ids
from kl_companion.llm.models import LanguageModel, tiny_model
from kl_companion.llm.tasks import Example, Task, make_task
from kl_companion.llm.tokenizers import character_tokenizer
from tests.support.llm.digits import BOS, DIGITS, ENDING, EOS, EQUAL, PAD, TASK, UNEQUAL, VOCAB, seeded
from tests.support.llm.scripted import Scripted


def scripted(rows: list[str], examples: int | None = None, alphabet: str = DIGITS) -> LanguageModel:
    """A model that writes these rows; "$" is end-of-sequence."""
    names = ["", "", "$", *alphabet]
    script = [[names.index(character) for character in row] for row in rows]
    return LanguageModel(Scripted(script, len(names), examples=examples), character_tokenizer(alphabet))


def quantile(logits: torch.Tensor, u: float) -> int:
    """Token at quantile u, added up one by one."""
    top = max(logits.tolist())
    weights = [2.718281828459045 ** (x - top) for x in logits.tolist()]
    return bisect_right([w / sum(weights) for w in itertools.accumulate(weights)], u)


# ---- the sampler


def test_every_quantile_gives_its_token() -> None:
    probabilities = torch.tensor([0.125, 0.0, 0.5, 0.25, 0.125, 0.0], dtype=torch.float64)
    edges = {0.0: 0, 0.12499: 0, 0.1250001: 2, 0.3: 2, 0.62499: 2, 0.62501: 3, 0.87499: 3, 0.87501: 4}
    edges[1 - 2**-53] = 4  # the last one that torch.rand can give; token 5 is impossible
    u = torch.tensor(list(edges), dtype=torch.float64)
    tokens, logp = inverse_cdf(probabilities.log().expand(len(u), -1), u)
    assert tokens.tolist() == list(edges.values())
    torch.testing.assert_close(logp, probabilities.log()[tokens], rtol=0, atol=1e-12)


def test_a_grid_of_quantiles_reproduces_the_distribution() -> None:
    logits = torch.randn(1, 7, generator=seeded())
    points = 4096
    u = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    tokens, logp = inverse_cdf(logits.expand(points, -1), u)
    share = torch.bincount(tokens, minlength=7) / points
    assert (share - logits[0].softmax(-1)).abs().max() <= 1 / points
    assert torch.equal(logp, logits[0].log_softmax(-1)[tokens])
    assert torch.equal(tokens, tokens.sort().values)


def test_an_impossible_first_token_is_not_taken_at_zero() -> None:
    tokens, logp = inverse_cdf(torch.tensor([[-torch.inf, 0.0]]), torch.zeros(1, dtype=torch.float64))
    assert tokens.tolist() == [1]
    assert logp.tolist() == [0.0]


def test_an_impossible_last_token_is_not_taken_at_the_upper_end() -> None:
    """Sums on both sides of 1, as rounding leaves them."""
    logits = torch.randn(500, 6, generator=seeded())
    logits[:, -1] = -torch.inf
    sums = logits.log_softmax(-1).exp().sum(-1, dtype=torch.float64)
    assert sums.min() < 1 < sums.max()
    tokens, logp = inverse_cdf(logits, torch.full((500,), 1 - 2**-53, dtype=torch.float64))
    assert tokens.tolist() == [4] * 500
    assert logp.isfinite().all()


def test_rare_tokens_of_a_large_vocabulary_are_not_lost() -> None:
    """float32 adds 1e-9 to 1 and gets 1: the last token would never be drawn."""
    logits = torch.cat([torch.zeros(1), torch.full((150_000,), -20.7)]).unsqueeze(0)
    rare = logits.softmax(-1)[0, -1].item()
    assert 0 < rare < 2**-24
    tokens, _ = inverse_cdf(logits, torch.tensor([1 - rare / 2], dtype=torch.float64))
    assert tokens.item() == 150_000


@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_each_token_is_the_quantile_of_its_uniform_number(sharp, examples, temperature) -> None:
    """The oracle: a forward over the unpadded tokens, without a cache, for every token; sums in Python."""
    samples = generate(sharp, TASK, examples, n=2, temperature=temperature, generator=seeded(5))
    u = torch.rand(2 * len(examples), 6, dtype=torch.float64, generator=seeded(5)).tolist()
    for i, row in enumerate(samples.tokens.tolist()):
        prompt = [BOS, *(3 + DIGITS.index(c) for c in examples[i // 2].prompt)]
        for t in range(6):
            with torch.no_grad():
                logits = sharp.model(torch.tensor([prompt + row[:t]])).logits[0, -1].double() / temperature
            assert row[t] == quantile(logits, u[i][t]), (i, t)
            assert abs(samples.behavior_logp[i, t].item() - logits.log_softmax(-1)[row[t]].item()) < 1e-5
    assert samples.prompt_index.tolist() == [i // 2 for i in range(2 * len(examples))]
    assert len(set(samples.texts)) > len(examples), "the model must not say the same everywhere"


def test_a_grid_of_uniforms_reproduces_the_distribution_of_completions(monkeypatch) -> None:
    """Two tokens from five: every completion takes the share of the unit square that is its probability."""
    lm = tiny_model(character_tokenizer("ab"), hidden=16, layers=1, heads=2, kv_heads=1, seed=1)
    with torch.no_grad():
        lm.model.model.embed_tokens.weight.mul_(1.5)
    side = 48
    points = (torch.arange(side, dtype=torch.float64) + 0.5) / side
    monkeypatch.setattr(generation.torch, "rand", lambda *_, **__: torch.cartesian_prod(points, points))
    task = Task("pairs", "ab", 2, lambda n, g: [], None)
    samples = generate(lm, task, [Example("a", "")], n=side**2, generator=seeded())
    with torch.no_grad():
        first = lm.model(torch.tensor([[BOS, 3]])).logits[0, -1].softmax(-1)
        read = torch.tensor([[BOS, 3, token] for token in range(5)])
        exact = first.unsqueeze(-1) * lm.model(read).logits[:, -1].softmax(-1)
    share = torch.bincount(samples.tokens[:, 0] * 5 + samples.tokens[:, 1], minlength=25) / side**2
    assert (share - exact.flatten()).abs().max() <= 2 / side
    assert exact.max() - exact.min() > 0.2, "a uniform model would prove nothing"


@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_near_temperature_zero_it_is_greedy_decoding(sharp, examples) -> None:
    samples = generate(sharp, ENDING, examples, temperature=1e-4, generator=seeded())
    greedy = sharp.model.generate(
        samples.prompt_tokens, attention_mask=samples.prompt_mask, do_sample=False, max_new_tokens=10
    )[:, samples.prompt_tokens.shape[1] :]
    assert torch.equal(samples.tokens, greedy)


@pytest.mark.parametrize("task", [TASK, ENDING], ids=["fixed", "ending"])
def test_the_samples_of_a_seed_do_not_depend_on_padding(sharp, task) -> None:
    short = generate(sharp, task, EQUAL, n=4, generator=seeded(2))
    long = generate(sharp, task, [*EQUAL, Example("01234567890123456789=", "")], n=4, generator=seeded(2))
    assert short.prompt_mask.all()
    assert not long.prompt_mask.all()
    assert short.texts == long.texts[:12]
    torch.testing.assert_close(
        short.behavior_logp, long.behavior_logp[:12, : short.tokens.shape[1]], rtol=0, atol=1e-5
    )
    assert short.texts != generate(sharp, task, EQUAL, n=4, generator=seeded(3)).texts


def test_a_seed_uses_up_the_same_random_numbers_whenever_completions_end() -> None:
    states = []
    for rows in (["1$", "$"], ["1234567890", "0987654321"]):
        generator = seeded()
        lm = scripted([row.ljust(10, "$") for row in rows])
        generate(lm, ENDING, EQUAL[:2], generator=generator)
        states.append(generator.get_state())
    assert torch.equal(*states)


def test_dropout_is_off_while_sampling_and_the_mode_comes_back(sharp) -> None:
    calm = generate(sharp, TASK, EQUAL, generator=seeded())
    for layer in sharp.model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    sharp.model.train()
    try:
        again = generate(sharp, TASK, EQUAL, generator=seeded())
        assert sharp.model.training
    finally:
        sharp.model.eval()
        for layer in sharp.model.model.layers:
            layer.self_attn.attention_dropout = 0.0
    assert torch.equal(calm.behavior_logp, again.behavior_logp)
    assert not again.behavior_logp.requires_grad


# ---- masks and texts


def test_end_of_sequence_is_a_choice_and_nothing_after_it_is() -> None:
    lm = scripted(["12$456", "$12345", "123456"])
    samples = generate(lm, replace(ENDING, max_new_tokens=6), EQUAL, generator=seeded())
    assert samples.completion_mask.tolist() == [[1, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0], [1] * 6]
    assert torch.equal(samples.attention_mask, samples.completion_mask)
    assert samples.tokens[0].tolist() == [4, 5, EOS, PAD, PAD, PAD]
    assert samples.tokens[1].tolist() == [EOS] + [PAD] * 5
    assert samples.texts == samples.whole == ["12", "", "123456"]
    assert samples.finished.tolist() == [True, True, False]
    assert torch.equal(samples.behavior_logp, torch.zeros(3, 6))
    assert lm.model.read[-1].flatten().tolist() == [PAD, PAD, 3 + 5], "who has ended is fed padding"


def test_it_stops_when_all_have_ended() -> None:
    lm = scripted(["1$3456", "12$456", "$23456"])
    samples = generate(lm, ENDING, EQUAL, generator=seeded())
    assert samples.tokens.shape == (3, 3)
    assert len(lm.model.read) == 3
    assert samples.finished.all()


def test_behavior_logp_is_zero_outside_the_mask(sharp) -> None:
    samples = generate(sharp, ENDING, UNEQUAL, n=8, generator=seeded())
    outside = samples.completion_mask == 0
    assert 0 < outside.sum() < outside.numel()
    assert (samples.behavior_logp[outside] == 0).all()
    assert (samples.behavior_logp[~outside] < 0).all()
    assert (samples.tokens[outside] == PAD).all()


def test_completions_of_fixed_length_do_not_end() -> None:
    samples = generate(scripted(["12$456"]), TASK, EQUAL[:1], generator=seeded())
    assert samples.completion_mask.tolist() == [[1] * 6]
    assert samples.finished.tolist() == [True]
    assert samples.texts == ["12<eos>456"], "a special token in the middle must not read like nothing"


def test_every_stop_token_that_the_model_names_ends_a_completion() -> None:
    lm = scripted(["12$456", "125456", "120456"])
    lm.model.generation_config.eos_token_id = [EOS, 3 + DIGITS.index("5")]
    samples = generate(lm, replace(ENDING, max_new_tokens=6), EQUAL, generator=seeded())
    assert samples.texts == ["12", "12", "1204"]
    assert samples.finished.all()


def test_a_prompt_is_read_once_for_all_its_completions() -> None:
    lm = scripted(["123456", "154321", "211111", "222222"], examples=2)
    samples = generate(lm, TASK, EQUAL[:2], n=2, generator=seeded())
    assert lm.model.read[0].shape[0] == 2
    assert samples.texts == ["123456", "154321", "211111", "222222"]
    assert samples.examples == [EQUAL[0], EQUAL[0], EQUAL[1], EQUAL[1]]


def test_max_new_tokens_overrides_the_task() -> None:
    samples = generate(scripted(["123456"]), TASK, EQUAL[:1], generator=seeded(), max_new_tokens=2)
    assert samples.texts == ["12"]


# ---- the environment


def test_observations_are_inserted_and_stay_outside_the_mask() -> None:
    task = make_task("look_up", entries=3, turns=2)
    examples = [Example("ab:", "8", 2, "351"), Example("ca:", "4", 2, "351")]
    lm = scripted(["?a...?b...!8$..", "?a...!4$......."], alphabet=task.alphabet + ".")
    samples = generate(lm, replace(task, alphabet=task.alphabet + "."), examples, generator=seeded())
    assert samples.whole == ["?a=3;?b=5;!8", "?a=3;!4"]
    assert samples.texts == ["?a?b!8", "?a!4"]
    assert samples.completion_mask.tolist() == [
        [1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1],
        [1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
    ]
    assert samples.attention_mask.tolist() == [[1] * 13, [1] * 8 + [0] * 5]
    assert all(task.reward(*pair) == 1 for pair in zip(samples.texts, examples, strict=True))
    assert torch.cat(lm.model.read[1:], -1)[0, 2:5].tolist() == samples.tokens[0, 2:5].tolist(), "fed as read"


def test_the_environment_is_asked_after_choices_only_and_of_those_who_go_on() -> None:
    asked = []

    def observe(text: str, example: Example) -> str | None:
        asked.append((text, example.answer))
        return "00" if text.endswith("1") else None

    task = replace(ENDING, observe=observe, max_new_tokens=5)
    samples = generate(scripted(["21999", "3$999"]), task, EQUAL[:2], generator=seeded())
    assert asked == [("2", "12"), ("3", "89"), ("21", "12"), ("21009", "12")]
    assert samples.whole == ["21009", "3"]


def test_an_observation_is_cut_where_the_completion_is() -> None:
    task = replace(TASK, observe=lambda text, example: "0123456789", max_new_tokens=4)
    samples = generate(scripted(["7777"]), task, EQUAL[:1], generator=seeded())
    assert samples.whole == ["7012"]
    assert samples.completion_mask.tolist() == [[1, 0, 0, 0]]


def test_an_observation_that_looks_like_the_end_does_not_end_it() -> None:
    task = replace(ENDING, observe=lambda text, example: "5" if text == "1" else None, max_new_tokens=4)
    lm = scripted(["1777"])
    lm.model.generation_config.eos_token_id = 3 + DIGITS.index("5")
    assert generate(lm, task, EQUAL[:1], generator=seeded()).whole == ["1577"]


# ---- prompts


def test_where_the_beginning_of_sequence_stands(tiny) -> None:
    assert prompt_ids(tiny, TASK, [Example("1", ""), Example("", "")]) == [[BOS, 4], [BOS]]
    natural = replace(TASK, alphabet=None)
    assert prompt_ids(tiny, natural, [Example("1", ""), Example("", "")]) == [[4], [BOS]]


def test_a_beginning_of_sequence_that_the_tokenizer_adds_stands_once() -> None:
    tokenizer = character_tokenizer(DIGITS)
    from tokenizers.processors import TemplateProcessing

    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    tokenizer.chat_template = "{{ messages[-1]['content'] }}="
    lm = LanguageModel(None, tokenizer)
    natural = replace(TASK, alphabet=None)
    assert prompt_ids(lm, natural, [Example("1", "")]) == [[BOS, 4]]
    assert prompt_ids(lm, replace(natural, chat=True), [Example("1", "")]) == [[4, VOCAB - 1]]


def test_an_empty_prompt_without_beginning_of_sequence(tiny) -> None:
    tokenizer = character_tokenizer(DIGITS)
    tokenizer.bos_token = None
    lm = LanguageModel(tiny.model, tokenizer)
    assert prompt_ids(lm, TASK, [Example("1", "")]) == [[4]]
    with pytest.raises(ValueError, match="the prompt of example 1 has no token"):
        generate(lm, TASK, [Example("1", ""), Example("", "")], generator=seeded())


# ---- bad input


def test_a_prompt_longer_than_the_context_is_named(tiny) -> None:
    fits = generate(tiny, TASK, [Example("4" * 57, "")], generator=seeded())
    assert fits.tokens.shape == (1, 6)


def test_completions_that_cannot_end(tiny) -> None:
    tokenizer = character_tokenizer(DIGITS)
    tokenizer.eos_token = None
    lm = LanguageModel(scripted(["123456"]).model, tokenizer)
    with pytest.raises(ValueError, match="no end-of-sequence"):
        generate(lm, ENDING, EQUAL[:1], generator=seeded())


def test_nan_logits_are_refused(tiny) -> None:
    broken = tiny_model(tiny.tokenizer, hidden=16, layers=1, heads=2)
    with torch.no_grad():
        broken.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="logits are NaN"):
        generate(broken, TASK, EQUAL, generator=seeded())


def test_worked_examples_stand_before_the_question(tiny) -> None:
    tokenizer = character_tokenizer(DIGITS)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
    task = replace(TASK, alphabet=None, chat=True, shots=(("2", "3"),))
    (ids,) = prompt_ids(LanguageModel(None, tokenizer), task, [Example("1", "")])
    assert ids == [tokenizer.convert_tokens_to_ids(c) for c in "231="]
