"""Evaluation against enumeration: rewards, pass@n, and what the record of a policy holds."""

import itertools
import math
import statistics

import pytest
import torch

from kl_companion.llm.evaluation import (
    Evaluation,
    evaluate,
    exact_reward,
    pass_at,
    rewards_of,
    right_logp,
    sequence_kl,
)
from kl_companion.llm.generation import generate
from kl_companion.llm.models import frozen_copy
from kl_companion.llm.tasks import Example
from tests.support.llm.enumerated import BOS, EOS, World, random_model, task_of


@pytest.fixture(scope="module")
def pair():
    return random_model("a", 1), random_model("a", 2)


@pytest.fixture(scope="module")
def letters():
    return random_model("ab", 28), random_model("ab", 20)


# --- reward and pass@n -------------------------------------------------------------------------------------


def test_pass_at_is_the_share_of_subsets_with_a_right_one():
    for n in range(1, 8):
        for k in range(1, n + 1):
            wanted = []
            for right in range(n + 1):
                subsets = list(itertools.combinations([i < right for i in range(n)], k))
                wanted.append(sum(map(any, subsets)) / len(subsets))
            found = pass_at(k, n, torch.arange(n + 1))
            assert found.tolist() == pytest.approx(wanted, abs=1e-14)
            assert found.dtype == torch.float64
    assert pass_at(2, 3, torch.tensor([[0, 1], [2, 3]])).shape == (2, 2)


@pytest.mark.parametrize(("ends", "temperature"), [(False, 1.0), (True, 0.7)])
def test_reward_and_pass_n_are_exact_where_the_answer_is_unique(letters, ends, temperature):
    """Against all completions, and all pairs of them for pass@2; an answer ends where completions do."""
    task = task_of("ab", 2, unique=True, ends=ends)
    examples = [Example("a", "ba"), Example("ab", "b" if ends else "bb")]
    found = evaluate(
        *letters, task, examples=examples, n=2, out_examples=[examples[1]], temperature=temperature
    )
    letter = {"a": 3, "b": 4}
    p, twice = [], []
    for prompt, answer in ((e.prompt, e.answer) for e in examples):
        world = World(*letters, [BOS, *(letter[c] for c in prompt)], 2, 5, ends, temperature)
        ids = tuple(letter[c] for c in answer)
        right = ids if len(ids) == 2 else (*ids, EOS)
        p.append(world.mean(0, lambda y, right=right: y == right))
        twice.append(
            math.fsum(
                math.exp(world.logp(0, y) + world.logp(0, z)) * (right in (y, z))
                for y, z in itertools.product(world.completions, repeat=2)
            )
        )
    assert min(p) > 0.01
    given = {"temperature": temperature}
    assert exact_reward(letters[0], task, examples, **given).tolist() == pytest.approx(p, abs=1e-12)
    logp = right_logp(letters[0], task, examples, batch=1, **given)
    assert logp.exp().tolist() == pytest.approx(p, abs=1e-12)
    wanted = {"reward": sum(p) / 2, "pass_1": sum(p) / 2, "pass_n": sum(twice) / 2, "reward_out": p[1]}
    assert {key: found[key] for key in wanted} == pytest.approx(wanted, abs=1e-12)


def test_a_sure_answer_passes_whatever_n(letters, monkeypatch):
    task = task_of("ab", 2, unique=True)
    sure = torch.zeros(1, dtype=torch.float64)
    monkeypatch.setattr("kl_companion.llm.evaluation.teacher_forced", lambda *a, **k: sure)
    assert evaluate(*letters, task, examples=[Example("a", "ba")], n=3)["pass_n"] == 1.0


def test_one_of_many_is_exact_where_answers_are_unique(letters):
    task, examples = task_of("ab", 2, unique=True), [Example("a", "ba"), Example("b", "bb")]
    p = right_logp(letters[0], task, examples).exp()
    found = evaluate(*letters, task, examples=examples, n=2, best_of=5)
    assert found["pass_5"] == pytest.approx((1 - (1 - p) ** 5).mean().item(), abs=1e-12)
    with pytest.raises(ValueError, match="best_of is 5 for task 'small', expected None: the answers are not"):
        evaluate(*letters, task_of("ab"), examples=examples, best_of=5)


def test_one_measure_of_many_policies_is_that_of_each(letters, monkeypatch):
    """The reference writes once, and what was measured before leaves no trace."""
    task = task_of("ab", 2, unique=True, reward=lambda text, example: float(text == example.answer))
    examples, far = [Example("a", "ba"), Example("b", "bb")], [Example("aa", "ab")]
    given = {"examples": examples, "out_examples": far, "n": 3, "seed": 2, "best_of": 4, "k": 2}
    wanted = [evaluate(policy, letters[1], task, **given) for policy in (*letters, letters[0])]
    wrote = []

    def noted(lm, *arguments, **options):
        wrote.append(lm)
        return generate(lm, *arguments, **options)

    monkeypatch.setattr("kl_companion.llm.evaluation.generate", noted)
    measured = Evaluation(letters[1], task, **given)
    assert [measured(policy) for policy in (*letters, letters[0])] == wanted
    assert [lm is letters[1] for lm in wrote].count(True) == 2  # as the reference, and as a policy once
    assert len(wrote) == 4


def test_otherwise_rewards_are_those_of_the_samples(letters):
    """Right is a reward of at least 1; a part of it is a reward, and no pass."""
    task = task_of("ab", reward=lambda text, example: {"a": 1.0, "b": 0.5}.get(text[:1], 0.0))
    examples, far = [Example(p, "") for p in ("a", "b", "ab", "ba", "bb")], [Example("aa", "")] * 3
    found = evaluate(*letters, task, examples=examples, n=2, seed=5, out_examples=far)

    def draw(prompts):
        first = generate(letters[0], task, prompts, n=2, generator=torch.Generator().manual_seed(5)).texts
        return [[text[:1] for text in first[2 * i : 2 * i + 2]] for i in range(len(prompts))]

    first = draw(examples)
    every = [c for group in first for c in group]
    assert {"a", "b"} <= set(every)
    value = {"a": 1.0, "b": 0.5}
    assert found["reward"] == pytest.approx(statistics.fmean(value.get(c, 0.0) for c in every))
    assert found["pass_1"] == pytest.approx(statistics.fmean(c == "a" for c in every))
    assert found["pass_n"] == pytest.approx(statistics.fmean("a" in group for group in first))
    out = [value.get(c, 0.0) for group in draw(far) for c in group]
    assert found["reward_out"] == pytest.approx(statistics.fmean(out))
    assert 0 < found["pass_1"] < found["pass_n"] < 1


# --- everything at once ------------------------------------------------------------------------------------


def test_evaluate_has_both_directions_from_one_seed(letters):
    task, examples = task_of("ab", ends=True), [Example("a", "ba"), Example("b", "ba")]
    given = {"examples": examples, "n": 8, "k": 2, "temperature": 0.8}
    found = evaluate(*letters, task, seed=3, **given)
    for name, direction in (("kl", "reverse"), ("forward_kl", "forward")):
        generator = torch.Generator().manual_seed(3)
        shared = {"n": 8, "generator": generator, "temperature": 0.8}
        wanted = sequence_kl(*letters, task, examples, direction=direction, **shared)
        assert (found[name], found[f"{name}_se"]) == pytest.approx((wanted.kl, wanted.se))
        if name == "kl":
            assert found["entropy"] == pytest.approx(wanted.entropy)
            assert (found["kl_per_token"], found["length"]) == pytest.approx(
                (wanted.per_token, wanted.length)
            )
    assert 2 / 5 < found["top_k_mass"] < 1
    start = torch.Generator().manual_seed(3)
    samples = generate(letters[0], task, examples, n=8, generator=start, temperature=0.8)
    assert found["finished"] == samples.finished.double().mean().item()
    assert 0 < found["finished"] < 1
    assert evaluate(*letters, task, seed=3, **given) == found
    assert evaluate(*letters, task, seed=4, **given)["kl"] != found["kl"]
    same = evaluate(letters[0], letters[0], task, examples=examples)
    assert same["kl"] == same["forward_kl"] == same["kl_se"] == 0.0


def test_what_a_task_does_not_have_is_not_in_the_record(pair):
    task = task_of("a", reward=None)
    found = evaluate(*pair, task, examples=[Example("", "")] * 3)
    common = {"kl", "kl_se", "kl_per_token", "length", "entropy", "finished", "forward_kl", "forward_kl_se"}
    assert set(found) == common
    assert all(math.isfinite(x) and type(x) is float for x in found.values())
    with pytest.raises(ValueError, match="task 'small' has no reward, expected out_examples=None"):
        evaluate(*pair, task, examples=[Example("", "")], out_examples=[Example("", "")])
    with pytest.raises(ValueError, match="has no reward: it is a language"):
        rewards_of(task, World(*pair, [BOS], 1, 4, False).samples())


def test_models_are_left_as_they_were(letters):
    policy, reference = (frozen_copy(lm) for lm in letters)
    policy.model.train()
    policy.model.lm_head.eval()
    reference.model.eval()
    policy.model.requires_grad_(True)
    modes = [m.training for lm in (policy, reference) for m in lm.model.modules()]
    seen = []
    policy.model.register_forward_hook(lambda m, *_: seen.append((m.training, torch.is_grad_enabled())))
    state = torch.get_rng_state()
    task = task_of("ab", unique=True)
    evaluate(policy, reference, task, examples=[Example("a", "aba")], n=2)
    exact_reward(policy, task, [Example("a", "aba")])
    generator = torch.Generator().manual_seed(0)
    sequence_kl(policy, reference, task, [Example("a", "aba")], generator=generator)
    assert set(seen) == {(False, False)}
    assert [m.training for lm in (policy, reference) for m in lm.model.modules()] == modes
    assert all(p.grad is None for p in policy.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
