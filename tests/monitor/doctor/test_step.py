"""How a step is called, what it is given, and what is refused."""

import copy

import pytest
import torch

from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.tracing import Trace
from kl_companion.monitor.doctor.world import REWARDS, Ids, world

WORLD = world(rewards=REWARDS, stale=0.1)
PROMPT, SEQ = 4, 4
LENGTHS = [2, 2, 3, 4, 4, 3]


def first_token(model, batch):
    """The log-prob of every answer's first token, times its advantage."""
    logits = model(batch["input_ids"], batch["attention_mask"]).logits[:, PROMPT - 1]
    logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"][:, :1]).squeeze(-1)
    return -(batch["advantages"] * logp).mean()


def expected_first_token():
    rollout = WORLD.rollout
    out = torch.zeros_like(rollout.logits)
    advantages = REWARDS - REWARDS.mean()
    for i in range(6):
        one = torch.zeros(4, dtype=torch.float64)
        one[rollout.tokens[i, 0]] = 1.0
        out[i, 0] = -advantages[i] * (one - rollout.logits[i, 0].softmax(-1)) / 6
    return out


def test_a_run_gives_the_gradient_by_every_prediction():
    seen = ExaminedStep(first_token).run(WORLD)
    torch.testing.assert_close(seen.completion, expected_first_token())
    assert (seen.prompt, seen.beyond, seen.stray, seen.reference) == (0, 0, 0, 0)


def test_micro_batches_are_averaged_or_added_up():
    averaged = ExaminedStep(first_token).run(WORLD, parts=2)
    torch.testing.assert_close(averaged.completion, expected_first_token())
    summed = ExaminedStep(first_token, summed=True).run(WORLD, parts=2)
    torch.testing.assert_close(summed.completion, 2 * expected_first_token())
    assert summed.loss == pytest.approx(2 * averaged.loss)


def per_token(model, ref_model, inputs):
    """Wants advantages [batch, seq]."""
    logits = model(inputs["input_ids"], inputs["attention_mask"]).logits[:, PROMPT - 1 : -1]
    logp = logits.log_softmax(-1).gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)
    return -(inputs["advantages"] * logp * inputs["completion_mask"]).sum(-1).mean()


def test_a_step_is_given_advantages_in_the_shape_that_it_takes():
    subject = ExaminedStep(per_token)
    subject.settle()
    with Trace() as trace:
        pass
    seen = subject.run(WORLD, trace=trace)
    assert seen.completion[:, 1].abs().sum() > 0
    assert len(trace.forwards) == 1  # the attempt that failed is forgotten
    broken = ExaminedStep(lambda model, batch: torch.ones(2) + torch.ones(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        broken.settle()


def test_a_reference_that_the_step_holds_is_lent():
    module = torch.nn.Linear(2, 2)
    forward = module.forward

    def step(model, batch):
        given = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
        mine, theirs = model(**given).logits, module(**given).logits.detach()
        return ((mine - theirs) ** 2)[:, PROMPT - 1 : -1].sum()

    seen = ExaminedStep(step, reference=module).run(WORLD)
    assert seen.completion.abs().sum() > 0
    assert module.forward == forward
    assert "forward" not in vars(module)


def test_a_reference_with_a_forward_of_its_own_gets_it_back():
    module = torch.nn.Linear(2, 2)
    module.forward = own = lambda **_: None
    ExaminedStep(first_token, reference=module).run(WORLD)
    assert module.forward is own


def test_the_order_of_its_parameters_is_free():
    def step(batch, ref_policy, actor, beta=0.1, *rest, **more):
        return first_token(actor, batch)

    torch.testing.assert_close(ExaminedStep(step).run(WORLD).completion, expected_first_token())


def test_ids_of_the_steps_own():
    ids = Ids(pad=0, live=(2, 30, 31, 32), digits=(40, 41, 42))
    found = {}

    def step(model, batch):
        found.update(ids=batch["input_ids"])
        return first_token(model, batch)

    ExaminedStep(step, ids=ids).run(world(ids))
    assert {*found["ids"].flatten().tolist()} == {0, 2, 30, 31, 32, 40, 41, 42}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda batch: 0, "has the parameters batch, expected a model and a batch"),
        (lambda: 0, r"has the parameters \(none\), expected a model and a batch"),
        (lambda model, ref_model: 0, "has the parameters model, ref_model, expected a model and a batch"),
        (lambda model, batch, thing: 0, "has the parameter 'thing', expected a model"),
    ],
)
@pytest.mark.usefixtures("as_installed")
def test_functions_with_other_parameters_are_refused(step, said):
    with pytest.raises(ValueError, match=said):
        ExaminedStep(step)


def test_a_step_that_copies_its_batch_is_given_the_names_that_it_misses():
    def step(model, batch):
        batch = {k: v.to("cpu") for k, v in batch.items()}
        logits = model(batch["input_ids"], batch["attention_mask"]).logits[:, batch["prompt_length"] - 1 : -1]
        logp = logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
        terms = -torch.exp(logp - batch["old_logps"]) * batch["advantages"].unsqueeze(-1)
        return (terms * batch["response_mask"]).sum(-1).mean()

    assert ExaminedStep(step).run(WORLD).completion.abs().sum() > 0
    broken = ExaminedStep(lambda model, batch: dict(batch)["foo"])
    with pytest.raises(KeyError, match="foo"):
        broken.run(WORLD)


def test_a_world_grows_to_what_the_code_asks_for():
    def top(model, batch, k):
        return model(batch["input_ids"], batch["attention_mask"]).logits.log_softmax(-1).topk(k).values.sum()

    sizes = {}
    for k in (2, 4, 20):
        subject = ExaminedStep(lambda model, batch, k=k: top(model, batch, k))
        subject.settle()
        sizes[k] = len(subject.ids.live)
    assert sizes == {2: 4, 4: 12, 20: 28}  # so that there is a rest beside the top
    with pytest.raises(RuntimeError, match="out of range"):
        ExaminedStep(lambda model, batch: top(model, batch, 500)).settle()


def test_every_run_starts_from_the_same_state_and_seed():
    state = {"beta": 1.0}

    def step(model, batch):
        state["beta"] *= 0.5
        noise = torch.rand(())
        return state["beta"] * noise * first_token(model, batch)

    subject = ExaminedStep(step)
    first, again = (subject.run(WORLD).completion for _ in range(2))
    assert first.equal(again)
    in_a_row = [gradients.completion for gradients, _ in subject.in_a_row([WORLD] * 3)]
    torch.testing.assert_close(in_a_row[2], in_a_row[0] / 4)
    subject.seed = 1
    assert not subject.run(WORLD).completion.equal(first)


KEPT = None


def test_a_reference_that_the_step_keeps_from_its_first_call_is_the_reference():
    def step(model, batch):
        global KEPT
        if KEPT is None:
            KEPT = copy.deepcopy(model)
        logits = [m(batch["input_ids"], batch["attention_mask"]).logits[:, PROMPT - 1] for m in (model, KEPT)]
        mine, theirs = (x.log_softmax(-1)[:, 2] for x in logits)
        return (mine - theirs.detach()).pow(2).sum()

    subject = ExaminedStep(step)
    subject.settle()
    assert subject.run(world(apart=0.0)).completion.abs().max() < 1e-9
    near, far = (subject.run(world(apart=x)).completion.abs().max() for x in (0.5, 1.0))
    assert 0 < 1.5 * near < far
    subject.state.restore()
    assert KEPT is None


def test_casts_are_left_out_and_noted():
    def narrow(model, batch):
        logits = model(batch["input_ids"], batch["attention_mask"]).logits[:, PROMPT - 1]
        logp = logits.to(torch.bfloat16).log_softmax(-1).gather(-1, batch["completion_ids"][:, :1])
        return -(batch["advantages"] * logp.squeeze(-1).half()).mean()

    subject = ExaminedStep(narrow)
    torch.testing.assert_close(subject.run(WORLD).completion, expected_first_token())
    assert [line.text.count("bfloat16") for line in subject.casts] == [1, 0]
    subject.exact = False
    assert (subject.run(WORLD).completion - expected_first_token()).abs().max() > 1e-5
