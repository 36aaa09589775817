"""The list of cases: what is examined, with what is known of its sampler, and what the doctor is to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from kl_book.faults import steps, styles
from kl_book.faults import trl_trainers as of_trl
from kl_companion.llm.settings import Settings
from kl_companion.monitor.doctor.diagnosis import Diagnosis, diagnose
from kl_companion.monitor.doctor.findings import FAULTS
from kl_companion.monitor.doctor.verl_actor import actor_step


class FaultCase(NamedTuple):
    """One case.

    Attributes:
        name: Of the step.
        make: Gives what is examined: a step, or a trainer.
        fault: What is to be found, a key of `kl_companion.monitor.doctor.FAULTS`; "" if nothing is wrong.
        options: Of `diagnose`.
        mark: What the finding's line holds; or its text, where a setting is to be mended.
    """

    name: str
    make: Callable[[], Any]
    fault: str
    options: Mapping[str, Any] = MappingProxyType({})
    mark: str = "# fault"


def _case(step: Callable[..., Any], fault: str, **options: Any) -> FaultCase:
    return FaultCase(step.__name__, lambda: step, fault, options)


CASES: dict[str, FaultCase] = {
    case.name: case
    for case in (
        _case(steps.sound, "", accumulate=2),
        _case(steps.adapters_off, ""),
        _case(steps.with_temperature, "", temperature=0.7),
        _case(steps.packed_apart, ""),
        _case(styles.by_cross_entropy, "", accumulate=2, summed=True),
        _case(styles.by_kl_div, "", accumulate=2),
        _case(styles.flattened, ""),
        _case(styles.with_entropy, ""),
        _case(styles.kl_in_reward, ""),
        _case(styles.absolute, ""),
        _case(styles.without_kl, ""),
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
        _case(steps.k1_in_loss, "k1-in-loss"),
        _case(steps.subtracted, "wrong-sign"),
    )
}


def _case_of_loop(name: str, **settings: Any) -> FaultCase:
    return FaultCase(name, lambda: Settings(**settings), "")


def _trl(
    name: str, fault: str, kind: str, change: Callable[[Any], Any] | None = None, **settings: Any
) -> FaultCase:
    return FaultCase(f"trl_{name}", lambda: of_trl.made(kind, change, **settings), fault)


TRL_CASES: dict[str, FaultCase] = {
    case.name: case
    for case in (
        _trl("grpo", "", "GRPO"),
        _trl("grpo_with_kl", "", "GRPO", beta=0.04),
        _trl("rloo", "", "RLOO"),
        _trl("distillation", "", "Distillation"),
        _trl("gkd", "", "GKD"),
        FaultCase(
            "trl_policy_as_reference",
            of_trl.policy_as_reference,
            "policy-reference",
            mark="trainer.ref_model is trainer.model",
        ),
        _trl(
            "without_temperature",
            "temperature",
            "GRPO",
            of_trl.without_temperature,
            beta=0.04,
            temperature=0.7,
        ),
        _trl("times_advantage", "kl-times-advantage", "GRPO", of_trl.times_advantage, beta=0.04),
        _trl("cut_mask", "shifted-mask", "GRPO", of_trl.cut_mask, beta=0.04),
        _trl(
            "not_divided",
            "denominator",
            "GRPO",
            of_trl.not_divided,
            beta=0.04,
            gradient_accumulation_steps=2,
        ),
        _trl(
            "always_new",
            "recomputed-old",
            "GRPO",
            of_trl.always_new,
            beta=0.04,
            num_iterations=2,
            gradient_accumulation_steps=1,
        ),
        _trl("top_p", "truncated-sampler", "GRPO", beta=0.04, top_p=0.9)._replace(
            mark="GRPOConfig(top_p=0.9"
        ),
        _trl("min_p", "truncated-sampler", "GRPO", beta=0.04, min_p=0.1),  # fault
        _trl("penalty", "sampler-setting", "RLOO", repetition_penalty=1.2),  # fault
        _trl("cold", "temperature", "GRPO", beta=0.04, generation_kwargs={"temperature": 0.6}),  # fault
        _trl("copied", "reference-moves", "GRPO", beta=0.04, **of_trl.COPIED)._replace(mark="KL of 0"),
        _trl("sign_of_kl", "exchanged", "RLOO", of_trl.sign_of_kl)._replace(
            mark="old_per_token_logps - ref_per"
        ),
    )
}


OTHER_CASES: dict[str, FaultCase] = {
    case.name: case
    for case in (
        FaultCase("verl_actor", lambda: actor_step(kl_loss_coef=0.1), "", {"accumulate": 2, "summed": True}),
        _case_of_loop("own_loop_k2", estimator="k2", beta=0.1),
        _case_of_loop("own_loop_k1_reward", estimator="k1", placement="reward", beta=0.1),
        _case_of_loop("own_loop_exact", estimator="exact_kl", beta=0.1, accumulate=2),
        _case_of_loop("own_loop_inner_steps", estimator="k3", beta=0.1, inner_steps=4),
    )
}
GROUPS = {"steps": CASES, "trl": TRL_CASES, "others": OTHER_CASES}


def found(case: FaultCase, diagnosis: Diagnosis) -> bool:
    """Whether the doctor says of a case what is to be said: its fault with the line, and no other."""
    if not case.fault:
        return diagnosis.healthy
    said = [f for f in diagnosis.findings if f.level != "fine"]
    return [f.fault for f in said] == [case.fault] and all(
        case.mark in f"{f.line.text if f.line else ''} {f.said} {f.instead}" for f in said
    )


def examined(case: FaultCase, *, update: bool = False) -> Diagnosis:
    """What the doctor says of a case."""
    return diagnose(case.make(), update=update, **case.options)


def judged(group: str, only: str = "") -> list[dict[str, str]]:
    """One row of the table `seeded_faults` for each case of a group; sound ones with the whole update.

    Args:
        group: A key of `GROUPS`.
        only: One case of it; "" for all.
    """
    rows = []
    for name, case in GROUPS[group].items():
        if only and name != only:
            continue
        diagnosis = examined(case, update=not case.fault and group != "steps")
        said = [f for f in diagnosis.findings if f.level != "fine"]
        rows.append(
            {
                "case": name,
                "fault": FAULTS[case.fault] if case.fault else "",
                "found": "yes" if found(case, diagnosis) else "no",
                "says": " ".join(f.said for f in said),
                "line": "; ".join(str(f.line) for f in said if f.line is not None),
                "minimizes": "" if diagnosis.update is None else diagnosis.update.to_dict()["sentence"],
            }
        )
    return rows
