"""Trainer and sampler: the same log-probs, at the same positions, and nothing from what was observed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kl_companion.llm import generation
from kl_companion.llm.generation import Samples, answer_samples, generate
from kl_companion.llm.models import LanguageModel, frozen_copy, tiny_model
from kl_companion.llm.scoring import completion_logits, completion_logp
from kl_companion.llm.tasks import Example, Task
from kl_companion.llm.tokenizers import character_tokenizer
from kl_companion.losses import kl_loss, policy_gradient_loss
from kl_companion.rollout import Rollout
from tests.support.llm.digits import DIGITS, ENDING, EQUAL, TASK, UNEQUAL, off_sampler, seeded

LOW = "01234"
OBSERVING = replace(ENDING, observe=lambda text, example: "=0" if text[-1:] in LOW and text[-1:] else None)


def token_by_token(model, samples: Samples, i: int) -> torch.Tensor:
    """Logits of one completion: a forward for every token, no padding, no mask, no cache."""
    prompt = samples.prompt_tokens[i][samples.prompt_mask[i].bool()].tolist()
    row = samples.tokens[i].tolist()
    count = int(samples.attention_mask[i].sum())
    with torch.no_grad():
        return torch.stack([model(torch.tensor([prompt + row[:t]])).logits[0, -1] for t in range(count)])


@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("task", [TASK, ENDING, OBSERVING], ids=["fixed", "ending", "observing"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trainer_and_sampler_agree(sharp, examples, task, temperature) -> None:
    samples = generate(sharp, task, examples, n=4, temperature=temperature, generator=seeded(1))
    if task is not TASK:
        assert samples.finished.any()
        assert (samples.attention_mask == 0).any()
    assert (task is OBSERVING) == bool((samples.attention_mask != samples.completion_mask).any())
    off = completion_logp(sharp.model, samples, temperature=temperature) - samples.behavior_logp
    assert off.abs().max() < 1e-5
    assert off_sampler(sharp.model, samples, temperature=temperature) < 1e-5
    wrong = off_sampler(sharp.model, samples, temperature=2 * temperature)
    assert wrong > 0.1, "another temperature is another distribution"


@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("task", [ENDING, OBSERVING], ids=["ending", "observing"])
def test_logits_are_those_of_a_forward_per_token(sharp, examples, task) -> None:
    samples = generate(sharp, task, examples, n=2, generator=seeded(1))
    logits = completion_logits(sharp.model, samples, temperature=0.5)
    assert logits.shape == (*samples.tokens.shape, sharp.vocab)
    for i in range(len(samples.tokens)):
        exact = token_by_token(sharp.model, samples, i) / 0.5
        torch.testing.assert_close(logits[i, : len(exact)], exact, rtol=0, atol=3e-5)


def test_padding_does_not_change_logits(sharp) -> None:
    together = generate(sharp, ENDING, UNEQUAL, generator=seeded(1))
    logits = completion_logits(sharp.model, together).log_softmax(-1)
    for i, example in enumerate(UNEQUAL):
        count = int(together.attention_mask[i].sum())
        alone = together.select([i])
        width = int(alone.prompt_mask.sum())
        assert width == len(example.prompt) + 1
        alone = replace(
            alone,
            prompt_tokens=alone.prompt_tokens[:, -width:],
            prompt_mask=alone.prompt_mask[:, -width:],
            tokens=alone.tokens[:, :count],
            completion_mask=alone.completion_mask[:, :count],
            attention_mask=alone.attention_mask[:, :count],
        )
        single = completion_logits(sharp.model, alone).log_softmax(-1)
        torch.testing.assert_close(logits[i, :count], single[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("examples", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_what_stands_in_the_padding_reaches_nothing(sharp, examples) -> None:
    samples = generate(sharp, ENDING, examples, n=2, generator=seeded(1))
    changed = replace(
        samples,
        tokens=torch.where(samples.attention_mask.bool(), samples.tokens, 5),
        prompt_tokens=torch.where(samples.prompt_mask.bool(), samples.prompt_tokens, 7),
    )
    assert not torch.equal(changed.tokens, samples.tokens)
    gradients = []
    for batch in (samples, changed):
        logp = completion_logp(sharp.model, batch)
        gradients.append(torch.autograd.grad(logp.sum(), list(sharp.model.parameters())))
    for a, b in zip(*gradients, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert completion_logits(sharp.model, samples).isfinite().all()


def test_logits_carry_the_gradient_and_their_dtype(sharp) -> None:
    samples = generate(sharp, TASK, EQUAL, generator=seeded())
    assert completion_logits(sharp.model, samples).requires_grad
    with torch.no_grad():
        assert not completion_logits(sharp.model, samples).requires_grad
    half = LanguageModel(frozen_copy(sharp).model.bfloat16(), sharp.tokenizer)
    assert completion_logits(half.model, samples).dtype == torch.float32
    assert generate(half, TASK, EQUAL, generator=seeded()).behavior_logp.dtype == torch.float32
    double = tiny_model(sharp.tokenizer, hidden=16, layers=1, heads=2, dtype=torch.float64)
    exact = generate(double, TASK, EQUAL, generator=seeded())
    assert exact.behavior_logp.dtype == completion_logits(double.model, exact).dtype == torch.float64
    assert off_sampler(double.model, exact) < 1e-13


def test_the_probability_of_the_answer_by_teacher_forcing(sharp) -> None:
    """Against the share of every completion of two tokens, end-of-sequence included."""
    task = replace(ENDING, max_new_tokens=2)
    examples = [Example("12=", "7"), Example("3=", "40")]
    samples = answer_samples(sharp, task, examples)
    found = completion_logp(sharp.model, samples).sum(-1)
    for i, example in enumerate(examples):
        read = [1, *(3 + DIGITS.index(c) for c in example.prompt)]
        answer = [*(3 + DIGITS.index(c) for c in example.answer), 2][:2]
        total = 0.0
        for t in range(2):
            with torch.no_grad():
                logits = sharp.model(torch.tensor([read + answer[:t]])).logits[0, -1].double()
            total += (logits[answer[t]] - logits.logsumexp(-1)).item()
        assert abs(found[i].item() - total) < 1e-5


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_temperature_must_be_above_zero(sharp, temperature) -> None:
    with pytest.raises(ValueError, match="temperature is"):
        completion_logits(sharp.model, answer_samples(sharp, TASK, EQUAL), temperature=temperature)


# ---- audit: two turns of looking up, everything enumerated

PAIRS = "ab"
SIDE = 40  # uniform numbers per choice: fine enough to meet every token
REWARDS = torch.tensor([0.3, -1.0, 0.7, 2.0, 0.4], dtype=torch.float64)


def two_turns() -> Task:
    """Choose, be told, choose, be told: four tokens, of which the policy owns the first and the third."""
    told = {"a": "b", "b": "a"}
    return Task("turns", PAIRS, 4, lambda n, g: [], None, observe=lambda text, _: told.get(text[-1:], "a"))


@pytest.fixture(scope="module")
def every_dialogue() -> tuple[LanguageModel, LanguageModel, Samples]:
    """A policy, a reference, and all 25 dialogues of two choices from five tokens, each once."""
    tokenizer = character_tokenizer(PAIRS)
    policy, reference = (
        tiny_model(tokenizer, hidden=8, layers=1, heads=2, kv_heads=1, seed=seed, dtype=torch.float64)
        for seed in (0, 1)
    )
    points = (torch.arange(SIDE, dtype=torch.float64) + 0.5) / SIDE
    first, third = torch.cartesian_prod(points, points).T
    uniforms = torch.stack([first, torch.full_like(first, 0.5), third, torch.full_like(first, 0.5)], -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation.torch, "rand", lambda *_, **__: uniforms)
        samples = generate(policy, two_turns(), [Example("ab", "")], n=SIDE**2, generator=seeded())
    keys = [tuple(row) for row in samples.tokens.tolist()]
    return policy, reference, samples.select([keys.index(key) for key in sorted(set(keys))])


def expected_gradient(policy, reference, samples: Samples, mask: torch.Tensor, loss: str) -> torch.Tensor:
    """Sum over dialogues of their probability times the gradient of the loss that reads ``mask``."""
    logp = completion_logits(policy.model, samples).log_softmax(-1).gather(-1, samples.tokens.unsqueeze(-1))
    with torch.no_grad():
        ref_logits = completion_logits(reference.model, samples)
        ref_logp = ref_logits.log_softmax(-1).gather(-1, samples.tokens.unsqueeze(-1)).squeeze(-1)
    logp = logp.squeeze(-1)
    probability = (logp * samples.completion_mask).sum(-1).exp().detach()
    total = torch.zeros((), dtype=torch.float64)
    for i, p in enumerate(probability):
        one = slice(i, i + 1)
        rollout = Rollout(samples.tokens[one], mask[one], logp[one], ref_logp[one])
        if loss == "policy_gradient":
            total = total + p * policy_gradient_loss(rollout, REWARDS[samples.tokens[one, 2]])
        else:
            total = total + p * kl_loss(rollout, "k2", level="sequence")
    return flat(total, policy)


def flat(loss: torch.Tensor, policy: LanguageModel) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.model.parameters()))])


def exact_objective(policy, reference, samples: Samples, loss: str) -> torch.Tensor:
    """Minus the expected reward, or KL(policy || reference) over dialogues; the choices alone are random."""
    logps = []
    for lm in (policy, reference):
        logits = completion_logits(lm.model, samples)
        picked = [logits[:, t].log_softmax(-1)[range(25), samples.tokens[:, t]] for t in (0, 2)]
        logps.append(picked[0] + picked[1])
    p = logps[0].exp()
    if loss == "policy_gradient":
        return -(p * REWARDS[samples.tokens[:, 2]]).sum()
    return (p * (logps[0] - logps[1].detach())).sum()


def test_the_enumeration_is_complete(every_dialogue) -> None:
    policy, _, samples = every_dialogue
    assert len(samples.tokens) == 25
    assert samples.completion_mask.tolist() == [[1, 0, 1, 0]] * 25
    total = completion_logp(policy.model, samples).sum(-1).exp().sum().item()
    assert abs(total - 1) < 1e-12


@pytest.mark.parametrize("loss", ["policy_gradient", "kl"])
def test_the_losses_follow_the_objective_of_the_choices_alone(every_dialogue, loss) -> None:
    policy, reference, samples = every_dialogue
    exact = flat(exact_objective(policy, reference, samples, loss), policy)
    found = expected_gradient(policy, reference, samples, samples.completion_mask, loss)
    assert exact.norm() > 1e-2
    assert (found - exact).norm() < 1e-10 * exact.norm()
    mutant = expected_gradient(policy, reference, samples, samples.attention_mask, loss)
    assert (mutant - exact).norm() > 0.05 * exact.norm(), "observations in the mask must be noticed"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_observations_get_no_gradient(every_dialogue, estimator, level) -> None:
    policy, reference, samples = every_dialogue
    told = (samples.attention_mask - samples.completion_mask).bool()

    def gradient(mask: torch.Tensor) -> torch.Tensor:
        scored = replace(samples, completion_mask=samples.attention_mask)
        with torch.no_grad():
            logp, ref_logp = (completion_logp(lm.model, scored) for lm in (policy, reference))
        logp.requires_grad_(True)
        rollout = Rollout(samples.tokens, mask, logp, ref_logp)
        loss = policy_gradient_loss(rollout, REWARDS[samples.tokens[:, 2]])
        loss = loss + kl_loss(rollout, estimator, beta=0.1, level=level)
        return torch.autograd.grad(loss, logp)[0]

    right = gradient(samples.completion_mask)
    assert (right[told] == 0).all()
    assert (right[~told] != 0).all()
    assert (gradient(samples.attention_mask)[told] != 0).any()
