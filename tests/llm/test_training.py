"""The training loop: what it learns, what it resumes, and where it stops."""

from dataclasses import replace

import pytest
import torch

from kl_companion.llm.checkpoints import load_checkpoint
from kl_companion.llm.distillation import distill
from kl_companion.llm.evaluation import right_logp
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.settings import Settings
from kl_companion.llm.tasks import make_task
from kl_companion.llm.training import Run, TrainingStopped, train
from tests.support.data import data
from tests.support.llm.short_runs import FEW, copy, trained, weights

DATA = data(__file__)

CHOICES = DATA["choices"]


@pytest.mark.parametrize("given", CHOICES, ids=str)
def test_every_choice_trains_and_resumes_to_the_same_numbers(given, tiny, task, tmp_path):
    settings = replace(FEW, steps=4, **given)
    whole, history = trained(tiny, task, settings, every=2)
    assert not torch.equal(whole, weights(tiny))
    trained(tiny, task, replace(settings, steps=2), every=2, checkpoint=tmp_path)
    resumed, again = trained(tiny, task, settings, every=2, checkpoint=tmp_path)
    assert torch.equal(resumed, whole)
    assert again.records == history.records
    assert load_checkpoint(tmp_path).state["step"] == 4


def _model_for(task):
    from kl_companion.llm.models import tiny_model
    from kl_companion.llm.tokenizers import character_tokenizer

    return tiny_model(character_tokenizer(task.alphabet), hidden=16, layers=1)


def test_reward_rises(task):
    lm = LanguageModel(*_model_for(task))
    settings = Settings(steps=60, prompts=16, group=8, lr=3e-3, beta=0.0, seed=0)
    frame = train(lm, task, settings).frame()
    assert frame["reward"].iloc[:5].mean() < 0.5
    assert frame["reward"].iloc[-5:].mean() > 0.95


def test_distillation_closes_the_gap(tiny, task):
    from kl_companion.llm.evaluation import sequence_kl

    student = LanguageModel(*_model_for(task))

    def gap():
        examples = task.draw(16, torch.Generator().manual_seed(5))
        generator = torch.Generator().manual_seed(6)
        return sequence_kl(student, teacher, task, examples, n=4, generator=generator).kl

    teacher = copy(student)
    with torch.no_grad():
        for p in teacher.model.parameters():
            p.mul_(3.0)
    before = gap()
    distill(student, teacher, task, "token_exact", steps=40, lr=1e-2)
    assert gap() < before / 4


def test_the_anchor_is_the_average_of_the_policies(tiny, task):
    settings = replace(FEW, anchor="ema", decay=0.75, period=2, steps=4)
    run = Run(copy(tiny), task, settings, None, None, None)
    wanted = weights(tiny)
    for step in range(1, 5):
        run.step()
        if step % 2 == 0:
            wanted = 0.75 * wanted + 0.25 * weights(run.policy)
        torch.testing.assert_close(weights(run.anchor), wanted, rtol=1e-5, atol=1e-7)


def test_the_sampler_lags(tiny, task):
    run = Run(copy(tiny), task, replace(FEW, lag=3, lr=0.01), None, None, None)
    seen = []
    for _ in range(4):
        before = weights(run.policy)
        record = run.step()
        seen.append(torch.equal(weights(run.sampler), before))
        assert (record["log_ratio"] > 1e-4) == (not seen[-1])
    assert seen == [True, False, False, True]


def test_a_lesson_raises_the_right_answers_and_leaves_a_start_for_rl(tiny, task):
    held_out = task.draw(32, torch.Generator().manual_seed(5))
    settings = replace(FEW, lesson=3, anchor="taught", steps=5, lag=4, lr=0.01, prompts=16)
    run = Run(copy(tiny), task, settings, copy(tiny), None, None)
    before = right_logp(run.policy, task, held_out).mean()
    for _ in range(3):
        assert "reward" not in run.step()
    assert right_logp(run.policy, task, held_out).mean() > before + 1
    assert not run.optimizer.state
    taught = weights(run.policy)
    assert torch.equal(weights(run.anchor), taught)
    assert torch.equal(weights(run.sampler), taught)
    assert run.step()["log_ratio"] < 1e-5
    assert torch.equal(weights(run.anchor), taught)
    assert not torch.equal(weights(run.policy), taught)


def test_a_supervised_step_is_one_on_the_mean_log_probability(tiny):
    task, settings = (
        make_task("sort", digits=2),
        replace(FEW, lesson=3, optimizer="sgd", lr=0.1, accumulate=2),
    )
    run = Run(copy(tiny), task, replace(settings, max_grad_norm=None), None, None, None)
    record = run.step()
    by_hand = copy(tiny)
    problems = task.draw(4, torch.Generator().manual_seed(settings.seed))
    vocabulary, begin = by_hand.tokenizer.get_vocab(), by_hand.tokenizer.bos_token_id
    loss = 0.0
    for problem in problems:
        text = torch.tensor([[begin, *(vocabulary[c] for c in problem.prompt + problem.answer)]])
        said = len(problem.answer)
        logp = by_hand.model(text).logits.log_softmax(-1)[0, -said - 1 : -1]
        loss = loss - logp.gather(-1, text[0, -said:, None]).sum() / 4
    (0.1 * loss).backward()
    with torch.no_grad():
        for p in by_hand.model.parameters():
            p.sub_(p.grad)
    assert record["loss"] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(weights(run.policy), weights(by_hand), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("anchor", [{"anchor": "ema", "decay": 0.5}, {"anchor": "taught", "lesson": 1}])
def test_a_given_reference_is_not_moved(tiny, task, anchor):
    reference = copy(tiny)
    train(copy(tiny), task, replace(FEW, **anchor), reference=reference)
    assert torch.equal(weights(reference), weights(tiny))


def test_the_message_names_the_optimizer_step_whose_parameters_are_left(tiny, task):
    lm, settings = copy(tiny), replace(FEW, inner_steps=3, lr=0.01)
    calls, states = [], []

    def spoil(parameters):
        calls.append(len(calls) + 1)
        states.append(weights(lm))
        if len(calls) == 5:  # the second optimizer step of the second step
            parameters[0].grad.fill_(torch.nan)

    stopped_at = r"the gradient of step 2 is nan.*are those after 1 of the 3 optimizer steps of it;"
    with pytest.raises(TrainingStopped, match=stopped_at):
        train(lm, task, settings, gradients=spoil)
    assert torch.equal(weights(lm), states[4])
    assert not torch.equal(states[4], states[3])


def test_an_infinite_reward_stops(tiny, task):
    broken = replace(task, reward=lambda text, example: float("inf"))
    with pytest.raises(
        TrainingStopped, match=r"step 1 .*expected a finite number.*no checkpoint was asked for"
    ):
        train(copy(tiny), broken, FEW)


def test_equal_rewards_are_said(tiny, task):
    constant = replace(task, reward=lambda text, example: 1.0)
    start = weights(tiny)
    after, history = trained(tiny, constant, replace(FEW, beta=0.0, advantages="standardized"))
    assert history.frame()["equal_groups"].tolist() == [1.0, 1.0, 1.0]
    assert torch.equal(after, start)


def test_evaluations_and_progress(tiny, task):
    said = []
    _, history = trained(
        tiny,
        task,
        replace(FEW, steps=5),
        every=2,
        evaluate=lambda lm, step: {"seen": float(step)},
        progress=said.append,
    )
    assert [r["step"] for r in said] == [0, 1, 2, 3, 4, 5]
    assert history.evaluations()["seen"].tolist() == [0, 2, 4, 5]
    assert len(history.frame()) == 6
