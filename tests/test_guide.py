"""The decision guide of the first page: its code is run and audited, its numbers to log are checked."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from kl_companion import ESTIMATORS, Rollout, audit, expected_value, get_estimator, prefix_tree
from kl_companion.theory.calculus import value_is_unbiased

ROOT = Path(__file__).resolve().parents[1]
GUIDE = yaml.safe_load((ROOT / "book" / "guide.yml").read_text(encoding="utf-8"))
CODE = [(entry["when"], piece) for entry in GUIDE["guide"] for piece in (entry, *entry["pitfalls"])]


def names(value: tuple[dict[str, str], dict[str, Any]]) -> str:
    when, piece = value
    return "-".join([*when.values(), piece["term"]])


def loss_of(code: str) -> Any:
    """What a trainer differentiates when these lines stand in it: the loss, or its policy gradient."""

    def loss(rollout: Rollout) -> torch.Tensor:
        logp, mask = rollout.logp, rollout.completion_mask
        given = {"logp": logp, "ref_logp": rollout.ref_logp, "behavior_logp": rollout.sampled_from}
        given |= {"mask": mask, "beta": 1.0, "advantages": torch.zeros_like(logp), "loss": logp.new_zeros(())}
        start = given["loss"]
        exec(code, given)
        if given["loss"] is not start:
            return given["loss"]
        ratio = (logp - rollout.sampled_from).exp()
        return -(ratio * given["advantages"] * mask).sum(-1).mean()

    return loss


def in_words(case: Any) -> str:
    if case.zero:
        return "zero"
    if not case.matches:
        return "other"
    (first, c), *rest = case.matches[0].items()
    assert c == pytest.approx(1.0)
    assert all(abs(x) == pytest.approx(1.0) for _, x in rest)
    return first + "".join(f" {'+' if x > 0 else '-'} {name}" for name, x in rest)


@cache
def objectives(code: str, off_policy: bool) -> set[str]:
    return {in_words(case) for case in audit(loss_of(code), off_policy=off_policy, scale=1.0).cases}


@pytest.mark.parametrize(("when", "piece"), CODE, ids=map(names, CODE))
def test_code_descends_what_the_guide_says(when: dict[str, str], piece: dict[str, Any]) -> None:
    assert objectives(piece["code"], when["samples"] == "older") == {piece["objective"]}


def test_every_combination_has_one_answer_of_at_most_five_lines() -> None:
    asked = [question["answers"] for question in GUIDE["questions"].values()]
    given = [tuple(entry["when"][name] for name in GUIDE["questions"]) for entry in GUIDE["guide"]]
    assert sorted(given) == sorted(itertools.product(*asked))
    assert all(len(piece["code"].splitlines()) <= 5 for _, piece in CODE)


def test_an_answer_descends_what_was_asked_for() -> None:
    wanted = {"token": "token_reverse_kl", "sequence": "sequence_reverse_kl", "forward": "token_forward_kl"}
    assert all(entry["objective"] == wanted[entry["when"]["want"]] for entry in GUIDE["guide"])
    assert {piece["objective"] for _, piece in CODE} <= {*GUIDE["words"], "other"}


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_number_to_log_is_unbiased(direction: str) -> None:
    said = GUIDE["log"][direction]
    assert value_is_unbiased(said["estimator"], f"{direction}_kl")
    code, _, given = said["code"].partition(", with w = ")
    generator = torch.Generator().manual_seed(0)
    logp, ref_logp = torch.randn(2, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
    space = {"logp": logp, "ref_logp": ref_logp}
    if given:
        space["w"] = eval(given, {}, space)
    torch.testing.assert_close(eval(code, {}, space), get_estimator(said["estimator"]).fn(logp, ref_logp))
    assert ESTIMATORS[said["estimator"]].target == f"{direction}_kl"


def test_the_number_to_log_from_older_samples_is_that_of_the_sampled_states() -> None:
    problem = prefix_tree(3, 2, off_policy=True, seed=3)

    def weighted(rollout: Rollout) -> torch.Tensor:
        d = rollout.ref_logp - rollout.logp
        rho = (rollout.logp - rollout.sampled_from).exp().detach()
        return (rho * (d.exp() - 1 - d) * rollout.completion_mask).sum(-1).mean()

    found = audit(weighted, off_policy=True, scale=1.0).value_matches
    assert found == {"token_reverse_kl": 1.0}
    assert expected_value(weighted, problem) > 0


@pytest.mark.parametrize(
    "entry", [e for e in GUIDE["guide"] if e.get("with_logits")], ids=lambda e: names((e["when"], e))
)
def test_whole_distributions_give_the_same_objective(entry: dict[str, Any]) -> None:
    found = audit(entry["with_logits"], off_policy=entry["when"]["samples"] == "older", scale=1.0)
    assert {in_words(case) for case in found.cases} == {entry["objective"]}
