"""The list of cases: what is examined, with what is known of its sampler, and what the doctor is to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kl_companion.book.faults import steps
from kl_companion.monitor.doctor.diagnosis import Diagnosis, diagnose


class Case(NamedTuple):
    """One case.

    Attributes:
        name: Of the step.
        make: Gives what is examined: a step, or a trainer.
        fault: What is to be found, a key of `kl_companion.monitor.doctor.FAULTS`; "" if nothing is wrong.
        options: Of `diagnose`.
    """

    name: str
    make: Callable[[], Any]
    fault: str
    options: Mapping[str, Any] = MappingProxyType({})


def _case(step: Callable[..., Any], fault: str, **options: Any) -> Case:
    return Case(step.__name__, lambda: step, fault, options)


CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _case(steps.sound, "", accumulate=2),
        _case(steps.adapters_off, ""),
        _case(steps.with_temperature, "", temperature=0.7),
        _case(steps.packed_apart, ""),
        _case(steps.exchanged, "exchanged"),
        _case(steps.exchanged_models, "exchanged"),
        _case(steps.without_mask, "no-mask"),
        _case(steps.shifted_mask, "shifted-mask"),
        _case(steps.shifted_tokens, "shifted-tokens"),
        _case(steps.prompt_in_kl, "prompt"),
        _case(steps.without_eos, "no-eos"),
        _case(steps.token_mean, "denominator", accumulate=2),
        _case(steps.merged_reference, "merged-reference"),
        _case(steps.adapters_on, "policy-reference"),
        _case(steps.following_reference, "policy-reference"),
        _case(steps.synced_reference, "policy-reference"),
        _case(steps.without_temperature, "temperature", temperature=0.7),
        _case(steps.hot_reference, "scored-differently", temperature=0.7),
        _case(steps.truncated_sampler, "truncated-sampler", top_p=0.9),
        _case(steps.recomputed_old, "recomputed-old", updates=4),
        _case(steps.packed, "packed"),
        _case(steps.unmasked_attention, "padding"),
        _case(steps.kl_times_advantage, "kl-times-advantage"),
        _case(steps.clipped_value, "clipped"),
        _case(steps.trained_reference, "reference-gradient"),
        _case(steps.detached_kl, "detached"),
    )
}


def examined(case: Case, *, update: bool = False) -> Diagnosis:
    """What the doctor says of a case."""
    return diagnose(case.make(), update=update, **case.options)
