"""Signal and noise of gradients: all outcomes of small draws, and a real loss differentiated by hand."""

import itertools
import math
import statistics

import pytest
import torch

from kl_book.lab.gradient_noise import Spread, gradient_noise
from kl_companion.llm.generation import generate
from kl_companion.llm.models import frozen_copy
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import Example, Task
from tests.support.llm.enumerated import random_model, task_of


@pytest.fixture(scope="module")
def letters():
    return random_model("ab", 28), random_model("ab", 20)


def test_signal_and_noise_are_unbiased_over_all_outcomes():
    """Two draws from three vectors, all nine pairs: |mean|^2 and the trace of the covariance, exactly."""
    outcomes = [(0.5, [[1.0, -2.0], [0.5]]), (0.3, [[0.0, 4.0], [2.0]]), (0.2, [[3.0, 1.0], [-1.0]])]
    flat = [(p, [x for part in vector for x in part]) for p, vector in outcomes]
    mean = [math.fsum(p * v[i] for p, v in flat) for i in range(3)]
    trace = math.fsum(p * (v[i] - mean[i]) ** 2 for p, v in flat for i in range(3))
    squared = found = 0.0
    for (p, a), (q, b) in itertools.product(outcomes, repeat=2):
        spread = Spread()
        for vector in (a, b):
            spread.add([torch.tensor(part, dtype=torch.float64) for part in vector])
        squared += p * q * spread.squared_signal
        found += p * q * spread.summary()["noise"] ** 2
    assert squared == pytest.approx(math.fsum(x * x for x in mean), rel=1e-12)
    assert found == pytest.approx(trace, rel=1e-12)


def test_a_summary_of_the_spread_by_hand():
    spread = Spread()
    for x in (5.0, 7.0):
        spread.add([torch.tensor([x])])
    wanted = {"signal": (36 - 2 / 2) ** 0.5, "noise": 2**0.5, "signal_to_noise": (35 / 2) ** 0.5}
    assert spread.summary() == pytest.approx(wanted)
    for values, ratio in (((-1.0, 1.0), 0.0), ((2.0, 2.0), math.inf)):
        spread = Spread()
        for x in values:
            spread.add([torch.tensor([x])])
        assert spread.summary()["signal_to_noise"] == ratio
    spread = Spread()
    for _ in range(2):
        spread.add([torch.zeros(2)])
    assert math.isnan(spread.summary()["signal_to_noise"])


def gradient_by_hand(policy, reference, task, settings, generator):
    """Of one batch: REINFORCE with the others' mean as baseline, and half the squared log-ratio."""
    s = settings
    examples = task.draw(s.prompts, generator)
    with torch.no_grad():
        samples = generate(policy, task, examples, n=s.group, generator=generator)
    loss = 0.0
    for i in range(s.prompts * s.group):
        mates = [j for j in range(s.prompts * s.group) if j // s.group == i // s.group and j != i]
        rewards = [task.reward(samples.texts[j], samples.examples[j]) for j in (i, *mates)]
        advantage = rewards[0] - statistics.fmean(rewards[1:])
        own, other = (
            lm.model(torch.cat([samples.prompt_tokens[i], samples.tokens[i]])[None]).logits[0].log_softmax(-1)
            for lm in (policy, reference)
        )
        start = samples.prompt_tokens.shape[1]
        for t, token in enumerate(samples.tokens[i].tolist()):
            logp, ref_logp = own[start + t - 1, token], other[start + t - 1, token].detach()
            loss = loss - advantage * logp + s.beta * 0.5 * (logp - ref_logp) ** 2
    policy.model.zero_grad()
    (loss / (s.prompts * s.group)).backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])


def test_gradient_noise_of_batches_taken_by_hand(letters):
    policy, reference = (frozen_copy(lm) for lm in letters)
    policy.model.requires_grad_(True).train()
    task = task_of("ab", reward=lambda text, example: float(text.count("a")))
    task = Task(**{**vars(task), "draw": lambda n, generator: [Example("ab", "")] * n})
    choices = {"prompts": 2, "group": 3, "beta": 0.2, "seed": 9, "steps": 1000, "lr": 1.0}
    settings = Settings(estimator="k2", lag=4, inner_steps=2, anchor="ema", lesson=2, **choices)
    before = [p.detach().clone() for p in policy.model.parameters()]
    modes = []
    hook = policy.model.register_forward_hook(lambda module, *_: modes.append(module.training))
    found = gradient_noise(policy, task, settings, batches=3, reference=reference)
    hook.remove()
    assert set(modes) == {False}
    for p, was in zip(policy.model.parameters(), before, strict=True):
        assert torch.equal(p, was)
        assert p.grad is None
    assert policy.model.training
    generator = torch.Generator().manual_seed(9)
    drawn = torch.stack([gradient_by_hand(policy, reference, task, settings, generator) for _ in range(3)])
    trace = drawn.var(0).sum().item()
    signal = max(drawn.mean(0).square().sum().item() - trace / 3, 0.0) ** 0.5
    assert trace > 0
    assert found["noise"] == pytest.approx(trace**0.5, rel=1e-6)
    assert found["signal"] == pytest.approx(signal, rel=1e-5, abs=1e-9)
    # the same draws again; sums may differ in their last digit with where memory lies
    again = gradient_noise(policy, task, settings, batches=3, reference=reference)
    assert found == pytest.approx(again, rel=1e-12)


@pytest.mark.parametrize("batches", [1, 0, True, 2.5])
def test_one_batch_has_no_noise(letters, batches, as_installed):
    with pytest.raises(ValueError, match=r"batches is .*, expected a whole number of at least 2"):
        gradient_noise(letters[0], task_of("ab"), Settings(), batches=batches)
