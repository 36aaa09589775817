"""The project's own loop on the small world: a step is the formula of its settings."""

import pytest
import torch

from kl_companion.llm.own_loop import ExaminedLoop
from kl_companion.llm.settings import Settings
from kl_companion.monitor.doctor.diagnosis import diagnose
from kl_companion.monitor.doctor.tracing import Trace
from kl_companion.monitor.doctor.world import REWARDS, world
from tests.support.small_steps import reinforce


def formula(at, beta, temperature=1.0):
    """The gradient with a leave-one-out baseline."""
    return reinforce(at, torch.stack([r - (REWARDS.sum() - r) / 5 for r in REWARDS]), beta, temperature)[1]


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_k2_in_the_loss(parts, temperature):
    subject = ExaminedLoop(Settings(beta=0.3, temperature=temperature))
    at = world(subject.ids, rewards=REWARDS)
    seen = subject.run(at, parts=parts)
    torch.testing.assert_close(seen.completion, formula(at, 0.3, temperature), rtol=1e-5, atol=1e-7)
    assert (seen.prompt, seen.beyond, seen.stray, seen.reference) == (0, 0, 0, 0)
    assert seen.loss != 0
    other = subject.run(at, beta=2.0)
    torch.testing.assert_close(other.completion, formula(at, 2.0, temperature), rtol=1e-5, atol=1e-7)


def test_the_whole_update_is_audited():
    found = diagnose(Settings(estimator="k2", beta=0.1))
    assert found.healthy, found
    assert "reverse KL" in found.update.to_dict()["sentence"]


def test_samples_of_an_older_policy():
    subject = ExaminedLoop(Settings(beta=0.3))
    at = world(subject.ids, rewards=REWARDS, stale=0.1)
    torch.testing.assert_close(subject.run(at).completion, formula(at, 0.3), rtol=1e-5, atol=1e-7)


def test_the_trace_knows_scoring_from_the_loss():
    subject = ExaminedLoop(Settings(beta=0.3))
    trace = Trace()
    subject.run(world(subject.ids, rewards=REWARDS), trace=trace)
    assert {f.model for f in trace.forwards} == {"policy", "reference"}
    origins = {x for op in trace.operations for x in op.all_origins}
    assert {"policy", "reference", "advantages", "mask"} <= origins


def test_what_is_declared_and_what_cannot_be_run_here():
    settings = Settings(
        temperature=0.7, inner_steps=3, accumulate=2, beta=0.2, lag=4, dtype="bfloat16", lora=4
    )
    subject = ExaminedLoop(settings)
    declared = subject.declared
    assert (declared.temperature, declared.updates, declared.beta, declared.accumulate) == (0.7, 3, 0.2, 2)
    kept = subject.settings
    assert (kept.dtype, kept.lora, kept.lag, kept.max_grad_norm) == ("float32", None, 1, None)
    assert ExaminedLoop(Settings(anchor="ema")).settings.anchor == "ema"
    taught = ExaminedLoop(Settings(anchor="taught", lesson=3)).settings
    assert (taught.anchor, taught.lesson) == ("fixed", 0)
