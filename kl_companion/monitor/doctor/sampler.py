"""The sampler's distribution beside the one that is scored: every setting that comes between them.

Each setting is applied alone, by the code of transformers that applies it in training, to next-token
distributions whose probabilities fall as 1/rank^2 (entropy about 1.6 nats). What it cuts and how far the
sampler then is from the scored distribution are measured there.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import policy_line
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import same
from kl_companion.monitor.doctor.setting_lines import setting_line
from kl_companion.monitor.doctor.subject import Declared
from kl_companion.monitor.doctor.tracing import Line

_NEUTRAL: dict[str, Any] = {
    "do_sample": True,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_FIELDS = (*_NEUTRAL, "temperature")  # of a trainer's arguments
_CUTS = ("top_p", "top_k")  # which the user of the doctor may have given
# of generation_kwargs, and known not to change a token's probability
_IDLE = """
max_new_tokens max_tokens max_length cache_implementation cache_config use_cache num_return_sequences seed n
pad_token_id bos_token_id eos_token_id disable_compile compile_config logprobs stop stop_strings detokenize
include_stop_str_in_output skip_special_tokens return_dict_in_generate output_scores
"""
_SEARCHES = ("num_beams", "penalty_alpha", "prompt_lookup_num_tokens")  # other ways than token by token
_PROMPT, _ROWS, _LENGTHS = 8, 16, (1, 4, 16)  # of the prefixes: answers of so many tokens after a prompt
_LEAST = 1e-6  # nats, or probability: a setting that does less changes nothing


class SamplerSetting(NamedTuple):
    """A setting of the sampler that the scored log-probs do not have.

    Attributes:
        name: As generation takes it: ``"min_p"``.
        value: Likewise.
        where: How a user writes it: ``"GRPOConfig(min_p=0.1)"``.
    """

    name: str
    value: Any
    where: str


class SettingEffect(NamedTuple):
    """Sizes of what a setting does to next-token distributions.

    Attributes:
        cut: Mean probability, under the scored distribution, of tokens that are never drawn.
        kl: Mean KL(sampler || scored), nats.
    """

    cut: float
    kl: float


def sampler(probe: Probe) -> Iterator[DoctorFinding]:
    """Check whether answers are drawn from the distribution whose log-probs are differentiated."""
    declared, trainer = probe.subject.declared, getattr(probe.subject, "trainer", None)
    if trainer is None and declared.teacher:
        return
    correction = "vllm_importance_sampling_correction"
    kind = type(getattr(trainer, "args", None)).__name__
    if getattr(trainer, "use_vllm", False) and not getattr(trainer, correction, True):
        yield finding("sampler.engine", setting_line(correction, False), kind=kind)
    for setting in sampler_settings(trainer, declared):
        effect = setting_effect(trainer, setting, declared.temperature)
        line = policy_line(probe) if trainer is None else _line(setting, kind)
        gaps = {"where": setting.where, "value": setting.value, "kind": kind}
        if effect is None:
            yield finding("sampler.unmeasured", line, **gaps)
            continue
        if max(effect) < _LEAST:
            continue
        cut = effect.cut > _LEAST
        lost = f"tokens with {effect.cut:.2g} of the probability are never drawn, and " if cut else ""
        gaps["sizes"] = f"{lost}KL(sampler || scored) is {effect.kl:.2g} nats a token"
        if setting.name in ("do_sample", "temperature") and not setting.value:
            key = "greedy-teacher" if declared.teacher else "greedy"
        elif declared.engine and _corrected(probe):
            key = "fine"
        elif setting.name == "temperature":
            key = "temperature-teacher" if declared.teacher else "temperature"
        else:
            key = "prefixes" if declared.teacher else "cut" if cut else "penalty"
        yield finding(f"sampler.{key}", line, **gaps)


def _line(setting: SamplerSetting, kind: str) -> Line | None:
    """Return the user's line with a setting, or with the arguments that it is among."""
    names = [kind] if "generation_kwargs" not in setting.where else ["generation_kwargs", kind]
    lines = [setting_line(setting.name, setting.value), *map(setting_line, names)]
    return next((line for line in lines if line is not None), None)


def _corrected(probe: Probe) -> bool:
    """Whether the loss reads the log-probs of the policy that sampled."""
    return not all(
        same(x.completion, stale.completion)
        for x, stale in zip((probe.plain, probe.rewarded), probe.stale, strict=True)
    )


def sampler_settings(trainer: Any, declared: Declared) -> list[SamplerSetting]:
    """Return the settings that change a sampler and not the log-probs that are scored.

    Args:
        trainer: Of TRL, with ``args``, whose ``generation_kwargs`` go before its fields; and a model, whose
            own generation settings hold where the trainer has none. None of a step, which has no settings.
        declared: The temperature, top-p and top-k that it is said to have.
    """
    args = getattr(trainer, "args", None)
    kind = "" if args is None else type(args).__name__
    given = getattr(args, "generation_kwargs", None) or {}
    given = json.loads(given) if isinstance(given, str) else given
    values: dict[str, tuple[Any, str]] = {}
    for name in _FIELDS:
        x = getattr(declared, name) if name in _CUTS else getattr(args, name, None)
        if name != "temperature":
            values[name] = (x, f"{kind}({name}={x!r})" if kind else f"{name}={x!r}")
    values |= {n: (x, f"{kind}(generation_kwargs={{{n!r}: {x!r}}})") for n, x in given.items()}
    if regex := getattr(args, "vllm_structured_outputs_regex", None):
        values["vllm_structured_outputs_regex"] = (regex, f"{kind}(vllm_structured_outputs_regex={regex!r})")
    if not getattr(trainer, "use_vllm", False):
        own = getattr(trainer, "generation_config", None)
        model = getattr(trainer, "model", None)
        for name, x in _explicit(own).items():  # what was made of the arguments, or written there later
            written = values.get(name, (None, ""))[0]
            if name in _FIELDS and x != written and not (name in _CUTS and name not in given):
                argument = f"{kind}({name}={x!r})" if x == getattr(args, name, None) else ""
                values[name] = (x, argument or f"trainer.generation_config.{name} = {x!r}")
        for name, x in _explicit(getattr(model, "generation_config", None)).items():
            if getattr(own, name, None) is None:  # the trainer's settings leave it open
                values.setdefault(name, (x, f"model.generation_config.{name} = {x!r}"))
    neutral = {**_NEUTRAL, "temperature": declared.temperature}
    return [
        SamplerSetting(name, x, where)
        for name, (x, where) in values.items()
        if name not in _IDLE.split()
        and x is not None
        and x != neutral.get(name)
        and not (name == "top_k" and x < 0)
    ]


def _explicit(config: Any) -> dict[str, Any]:
    """Return the settings that a generation's configuration has."""
    values: dict[str, Any] = getattr(config, "to_diff_dict", dict)()
    return {n: x for n, x in values.items() if n != "transformers_version" and not n.startswith("_")}


def setting_effect(trainer: Any, setting: SamplerSetting, temperature: float) -> SettingEffect | None:
    """Measure what a setting does; None for one that transformers does not have.

    Args:
        trainer: Its model's vocabulary and end are taken.
        setting: Applied alone.
        temperature: Of the scored log-probs.
    """
    if setting.name == "temperature" and not setting.value:
        setting = SamplerSetting("do_sample", False, setting.where)
    size = getattr(getattr(getattr(trainer, "model", None), "config", None), "vocab_size", None) or 1000
    generator = torch.Generator().manual_seed(0)
    common = (torch.rand(size, generator=generator).argsort().double() + 1).log()
    effects = []
    for length in _LENGTHS:
        noise = torch.randn(_ROWS, size, generator=generator, dtype=torch.float64)
        ranks = (common + noise).argsort(-1).argsort(-1).double() + 1
        logits = 12 - 2 * temperature * ranks.log()
        often = (-2 * common).softmax(-1).expand(_ROWS, -1)
        ids = torch.multinomial(often, _PROMPT + length, replacement=True, generator=generator)
        drawn = _drawn(trainer, setting, temperature, ids, logits)
        if drawn is None:
            return None
        scored = (logits / temperature).log_softmax(-1)
        cut = scored.exp().masked_fill(drawn > 0, 0.0).sum(-1)
        kl = torch.special.xlogy(drawn, drawn) - drawn * scored
        effects.append(torch.stack([cut, kl.sum(-1)]).mean(-1))
    cut, kl = torch.stack(effects).mean(0).tolist()
    return SettingEffect(max(cut, 0.0), max(kl, 0.0))


def _drawn(
    trainer: Any, setting: SamplerSetting, temperature: float, ids: torch.Tensor, logits: torch.Tensor
) -> torch.Tensor | None:
    """Return the sampler's next-token probabilities [rows, vocab] after ids [rows, length]."""
    from transformers import GenerationConfig
    from transformers.generation import GenerationMixin

    if setting.name in ("presence_penalty", "frequency_penalty"):
        answer = ids[:, _PROMPT:]  # vLLM's penalties count the answer alone
        counts = torch.zeros_like(logits).scatter_add(1, answer, torch.ones_like(answer, dtype=logits.dtype))
        counts = counts.clamp(max=1) if setting.name == "presence_penalty" else counts
        return ((logits - setting.value * counts) / temperature).softmax(-1)
    if not hasattr(GenerationConfig(), setting.name) or setting.name in _SEARCHES:
        return None
    values = {**_NEUTRAL, "temperature": temperature, setting.name: setting.value}
    config = GenerationConfig(**{n: x for n, x in values.items() if hasattr(GenerationConfig(), n)})
    tokenizer = getattr(trainer, "processing_class", None)
    end = getattr(getattr(tokenizer, "tokenizer", tokenizer), "eos_token_id", None)
    config._eos_token_tensor = torch.tensor([0 if end is None else end])
    # all that transformers asks a model for; a processor that calls the model itself fails
    model: Any = SimpleNamespace(
        config=SimpleNamespace(is_encoder_decoder=False),
        _merge_criteria_processor_list=lambda default, _: default,
    )
    try:
        with warnings.catch_warnings(action="ignore"):
            processors = GenerationMixin._get_logits_processor(
                model, config, input_ids_seq_length=_PROMPT, device="cpu"
            )
            scores = processors(ids, logits.float().clone()).double()  # type: ignore[arg-type]
    except Exception:  # a value that transformers refuses, or a processor that calls the model
        return None
    if not config.do_sample:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double()
    return scores.softmax(-1)
