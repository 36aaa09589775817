"""Settings of a sampler that the scored log-probs do not have, and what each does to a distribution."""

import math
from types import SimpleNamespace

import pytest

from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.sampler import SamplerSetting, sampler, sampler_settings, setting_effect
from kl_companion.monitor.doctor.subject import Declared
from kl_companion.monitor.doctor.trainers import ExaminedTrainer
from tests.support.data import data
from tests.support.small_steps import probe, step_of
from tests.support.stub_trainer import made

DATA = data(__file__)


pytest.importorskip("transformers")


def without_ratio(logp, batch):
    """A policy gradient that does not read the old log-probs."""
    return -logp * batch["advantages"].unsqueeze(-1)


@pytest.mark.parametrize(("cut", "said"), [({"top_p": 0.9}, "top_p=0.9"), ({"top_k": 20}, "top_k=20")])
def test_a_truncated_sampler_needs_its_own_log_probs(cut, said):
    (found,) = sampler(probe(step_of(), **cut))
    assert (found.level, found.fault) == ("wrong", "truncated-sampler")
    assert f"The sampler has {said}, and" in found.said
    _, _, sizes = found.said.partition(" have not: ")
    sizes = sizes.partition(" (measured")[0]
    (found,) = sampler(probe(step_of(), engine=True, **cut))
    assert (found.level, found.said) == (
        "fine",
        f"The sampler has {said}, and its log-probs are used: {sizes}.",
    )
    (found,) = sampler(probe(step_of(policy=without_ratio), engine=True, **cut))
    assert found.level == "wrong"
    assert list(sampler(probe(step_of(), top_p=1.0, top_k=0))) == []


def findings_of(trainer, **declared):
    """The findings on the sampler of a trainer."""
    subject = ExaminedTrainer(trainer)
    subject.declared = subject.declared._replace(**declared)
    return list(sampler(Probe(subject)))


def effect(name, value, temperature=1.0):
    """The sizes of one setting."""
    return setting_effect(made(), SamplerSetting(name, value, ""), temperature)


@pytest.mark.parametrize(
    ("settings", "fault", "text"), DATA["a_setting_that_the_scored_log_probs_do_not_have"]
)
def test_a_setting_that_the_scored_log_probs_do_not_have(settings, fault, text):
    (found,) = findings_of(made(**settings))
    assert (found.level, found.fault) == ("wrong", fault)
    assert text in found.said
    assert "KL(sampler || scored) is" in found.said
    assert found.line is not None
    assert found.line.file == __file__


@pytest.mark.parametrize("settings", DATA["settings_that_change_nothing"])
def test_settings_that_change_nothing(settings):
    trainer = made(**settings)
    trainer.temperature = settings.get("temperature", 1.0)
    assert findings_of(trainer) == []


def test_what_cannot_be_measured_is_said_so():
    (found,) = findings_of(made(generation_kwargs={"structured_outputs": {"regex": "a*"}}))
    assert (found.level, found.fault) == ("attention", "")
    assert "cannot be measured here" in found.said
    (found,) = findings_of(made(vllm_structured_outputs_regex="a*"))
    assert "vllm_structured_outputs_regex='a*'" in found.said


def test_a_teacher_compares_after_prefixes_of_another_sampler():
    (found,) = findings_of(made(min_p=0.3), teacher=True)
    assert found.level == "wrong"
    assert "averaged over prefixes that the student does not draw" in found.said
    (found,) = findings_of(made(generation_kwargs={"temperature": 0.5}), teacher=True)
    assert found.level == "attention"
    (found,) = findings_of(made(generation_kwargs={"temperature": 0}), teacher=True)
    assert "after one answer to each prompt" in found.said


def test_log_probs_of_the_engine_mend_a_cut():
    trainer = made(min_p=0.3)
    (found,) = findings_of(trainer, engine=True)
    assert found.level == "fine"


def test_an_engine_without_a_correction():
    trainer = made(vllm_importance_sampling_correction=False)
    trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, False
    (found,) = findings_of(trainer)
    assert (found.level, found.line.file) == ("attention", __file__)
    assert "stay in the gradient" in found.said
    trainer.vllm_importance_sampling_correction = True
    assert findings_of(trainer) == []


def test_settings_of_the_model_hold_where_the_trainer_has_none():
    trainer = made()
    own = {"no_repeat_ngram_size": 2, "typical_p": 0.9, "transformers_version": "5"}
    trainer.model.generation_config = SimpleNamespace(to_diff_dict=lambda: own)
    trainer.generation_config = SimpleNamespace(to_diff_dict=dict, typical_p=1.0)
    (setting,) = sampler_settings(trainer, Declared())
    assert setting == ("no_repeat_ngram_size", 2, "model.generation_config.no_repeat_ngram_size = 2")
    trainer.use_vllm = True
    assert sampler_settings(trainer, Declared()) == []


def test_settings_that_are_changed_after_the_trainer_was_made():
    trainer = made(min_p=0.1, temperature=1.0)
    trainer.generation_config = SimpleNamespace(to_diff_dict=lambda: {"min_p": 0.2, "temperature": 1.0})
    (setting,) = sampler_settings(trainer, Declared())
    assert setting == ("min_p", 0.2, "trainer.generation_config.min_p = 0.2")
    cut, temperature = sampler_settings(trainer, Declared(temperature=0.7))  # trainer.temperature = 0.7
    assert cut == setting
    assert temperature == ("temperature", 1.0, "SimpleNamespace(temperature=1.0)")


def test_sizes_of_what_a_setting_does():
    # probabilities that fall as 1/rank^2 over 1,000 tokens
    mass = sum(1 / n**2 for n in range(1, 1001))
    first = 1 / mass
    cut, kl = effect("top_k", 1)
    assert cut == pytest.approx(1 - first, abs=1e-5)
    assert kl == pytest.approx(-math.log(first), abs=1e-5)
    assert effect("do_sample", False) == pytest.approx((cut, kl))
    assert effect("temperature", 0) == pytest.approx((cut, kl))
    assert effect("top_k", 2).cut == pytest.approx(1 - 1.25 * first, abs=1e-5)
    assert effect("temperature", 1.0).kl == pytest.approx(0.0, abs=1e-6)
    # the distribution that is scored is the same at every temperature
    assert effect("top_k", 1, temperature=0.5) == pytest.approx((cut, kl), abs=1e-5)
    assert effect("presence_penalty", 0.5).kl < effect("presence_penalty", 1.0).kl
    assert effect("presence_penalty", 1.0).kl < effect("frequency_penalty", 1.0).kl
    assert effect("bad_words_ids", [[5]]).cut > 0
    for name, value in (("num_beams", 4), ("guidance_scale", 2.0), ("nonsense", 1), ("min_p", "x")):
        assert effect(name, value) is None
