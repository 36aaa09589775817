"""The benchmark measures what it says: every variant has the loss and the gradient of its work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import auditing, goals, measure, monitoring, peers, performance
from benchmarks.measure import Case
from benchmarks.peers import VARIANTS
from benchmarks.works import LINEAR, relative_error, true_gradient, true_values
from kl_companion import audit
from kl_companion.cli.audit import load_function
from kl_companion.kernels import blocks, compiling

TOLERANCE = {"float32": 2e-5, "bfloat16": 0.08}  # peers that compute in bfloat16 are off by five percent
EVERY = [(work, name) for work, variants in VARIANTS.items() for name in variants]


def tiny(work: str, dtype: str = "float32") -> Case:
    return Case(work, dtype, tokens=6, vocab=97, hidden=16 if work in LINEAR else 0)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    peers._compiled.cache_clear()
    peers._compiled_ours.cache_clear()


@pytest.mark.parametrize("dtype", measure.DTYPES)
@pytest.mark.parametrize(("work", "name"), EVERY, ids=[f"{w}-{n}" for w, n in EVERY])
def test_a_variant_computes_its_work(work: str, name: str, dtype: str) -> None:
    variant, case = VARIANTS[work][name], tiny(work, dtype)
    if variant.needs == "triton" or (variant.needs == "liger" and not peers.available(variant, "cpu")):
        pytest.skip(f"{name} is not installed here")
    if name == "Liger, compiled":
        pytest.skip("compiles itself; `make bench` checks its gradient")
    if dtype not in variant.dtypes:
        assert name not in case.chosen()
        return
    inputs = case.inputs()
    before = inputs.x.detach().clone()
    loss, gradients = variant.run(inputs)
    kept = [gradient.clone() for gradient in gradients]
    spoiled = not torch.equal(inputs.x.detach(), before)
    assert not spoiled or variant.spoils
    if not variant.truth:
        assert kept == []
        return
    with torch.no_grad():
        inputs.x.copy_(before)
    wanted = true_values(variant.truth, inputs, case.tokens)[0].mean().item()
    assert loss.item() == pytest.approx(wanted, rel=TOLERANCE[dtype], abs=TOLERANCE[dtype] * 0.05)
    assert kept[0].dtype == measure.DTYPES[dtype]
    assert relative_error(kept[0], true_gradient(variant.truth, inputs, case.tokens)) < TOLERANCE[dtype]
    if len(kept) == 2:
        values, x = true_values(variant.truth, inputs, case.tokens)
        (by_logits,) = torch.autograd.grad(values.mean(), x)
        assert relative_error(kept[1], by_logits.T @ inputs.hidden.detach().double()) < TOLERANCE[dtype]


def test_another_loss_is_refused() -> None:
    case = tiny("reverse_kl")
    forward = VARIANTS["forward_kl"]["naive"]
    inputs = case.inputs()
    assert measure.error_of(forward, inputs, forward.run(inputs)[1]) < 1e-5
    inputs.y.copy_(torch.randn_like(inputs.y) * 3)
    gradients = forward.run(inputs)[1]
    with pytest.raises(ValueError, match="this is no reverse_kl"):
        measure.error_of(forward._replace(truth="reverse_kl"), inputs, gradients)


def test_all_variants_take_turns_and_ratios_are_taken_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 2.0, 4.0, 8.0, 30.0, 10.0, 2.0, 2.0])  # the order of the rounds: a b | b a | ...
    calls: list[str] = []
    monkeypatch.setattr(measure, "milliseconds", lambda work, device: calls.append(work) or next(clock))
    case = tiny("reverse_kl")._replace(variants=("naive", "roof"), rounds=4)
    naive, roof = measure.times(case)
    assert naive["milliseconds"] == 5.0  # of 1, 8, 30, 2
    assert roof["best_milliseconds"] == 2.0  # of 2, 4, 10, 2
    assert roof["times_faster"] == 1.5  # of 1/2, 8/4, 30/10, 2/2
    assert naive["of_floor"] == 1.5


def test_the_peak_counts_what_is_held_at_once_and_forgets_earlier_peaks() -> None:
    if not measure.CLEAR.exists():
        pytest.skip("no /proc here")
    megabyte = 250_000
    earlier = torch.ones(80 * megabyte)
    del earlier

    def work() -> None:
        first = torch.ones(40 * megabyte)
        del first
        torch.ones(60 * megabyte)

    assert 59e6 < measure.peak_bytes(work) < 70e6


def test_memory_of_a_variant_that_works_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    if not measure.CLEAR.exists():
        pytest.skip("no /proc here")
    monkeypatch.setattr(compiling, "compiler_found", lambda device: False)
    monkeypatch.setattr(compiling, "_PART", 1 << 10)
    monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", 1 << 18)
    case = Case("reverse_kl", tokens=64, vocab=40_000)
    naive, place = (measure.memory(case, name)["extra_of_logits"] for name in ("naive", "ours, in place"))
    assert naive > 3.0
    assert place < 1.0


def test_a_peak_of_memory_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not measure.CLEAR.exists():
        pytest.skip("no /proc here")
    monkeypatch.setattr(performance, "IMPORTS", [])
    monkeypatch.setattr(performance, "compiles", lambda job: False)
    case = Case("reverse_kl", tokens=64, vocab=40_000)._asdict()
    jobs: list[performance.Job] = [
        {"do": "memory", "case": case, "variant": name} for name in ("naive", "ours, in place", "not there")
    ]
    found = performance.peaks(jobs, 1, str(tmp_path))
    assert next(found)[0]["extra_of_logits"] > 3.0
    assert next(found)[0]["extra_of_logits"] < 1.0  # what the first one held plays no part
    with pytest.raises(RuntimeError, match=r"'not there'\} failed with status 1, see above"):
        next(found)
    assert list(performance.peaks([], 1, "")) == []


def test_a_case_for_a_gpu_runs_the_same_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    real = measure.make_inputs
    monkeypatch.setattr(measure, "make_inputs", lambda *sizes, device: real(*sizes, device="cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 100 + 3 * 6 * 97 * 2)
    timed, alone = performance.jobs_of("gpu")
    assert alone == []
    works = set()
    for job in timed[1:]:
        case = Case(**job["case"])._replace(tokens=6, vocab=97, rounds=1)  # type: ignore[arg-type]
        case = case._replace(hidden=min(case.hidden, 16), variants=("naive", "ours, fused", "ours, fast"))
        rows = performance.merge(performance.do({"do": "times", "case": case._asdict()}), "a GPU")
        naive = next(row for row in rows if row["variant"] == "naive")
        assert naive["milliseconds"] > 0
        if case.dtype == "bfloat16" and case.work not in LINEAR:
            assert naive["extra_of_logits"] == 3.0
        works.add(case.work)
    assert works == set(VARIANTS)
    assert waits


def test_every_case_names_variants_that_exist() -> None:
    for case in [*performance.cpu_cases(), *performance.gpu_cases(), *performance.smoke_cases()]:
        assert set(case.variants or ()) <= set(VARIANTS[case.work])
        assert "naive" in case.chosen()


def test_a_suite_can_be_cut_down_to_some_works() -> None:
    timed, alone = performance.jobs_of("cpu", ["top_k"])
    assert {Case(**job["case"]).work for job in [*timed[1:], *alone]} == {"top_k"}  # type: ignore[arg-type]
    assert performance.jobs_of("cpu")[0][-1]["do"] == "moments"


# -- goals ---------------------------------------------------------------------------------------------------


def good_rows() -> list[dict[str, Any]]:
    """Rows under which every goal of the processor is reached, just."""
    rows = []

    def add(
        work: str, variant: str, dtype: str = "float32", allocator: str = "default", **cells: Any
    ) -> None:
        tokens = 512 if work == "reverse_kl" else 256
        size = {"tokens": tokens, "vocab": 151_936, "hidden": 896 if work == "linear_kl" else 0}
        base = dict.fromkeys(performance.COLUMNS) | {"work": work, "variant": variant, "dtype": dtype}
        rows.append(base | {"allocator": allocator} | size | cells)

    faster = {
        ("ours, in place", "float32"): 5.0,
        ("ours, fused", "float32"): 7.0,
        ("ours, fused", "bfloat16"): 8.0,
    }
    for (name, dtype), ratio in faster.items():
        add("reverse_kl", name, dtype, times_faster=ratio, extra_of_logits=0.05, gradient_error=0.002195)
    for name, warm in (("ours, in place", 1.3), ("ours, fused", 1.7)):
        add("reverse_kl", name, "float32", "warm", times_faster=warm, milliseconds=115.0)
    add("reverse_kl", "torch.compile", "float32", "warm", milliseconds=100.0)
    add("reverse_kl", "rounding alone", "bfloat16", gradient_error=0.002)
    add("linear_kl", "ours, fast", milliseconds=1.0, of_floor=1.15, extra_megabytes=350.0)
    add("linear_kl", "ours, frugal", milliseconds=1.5, of_floor=1.6, extra_megabytes=100.0)
    add("linear_kl", "Liger, chunk 256", milliseconds=1.3)
    add("linear_kl", "Liger, chunk 64", milliseconds=1.5)
    add("top_k", "ours, in place", times_faster=5.0, extra_of_logits=0.05)
    add("moments", "k3", milliseconds=5.0)
    add("moments", "five estimates, one bandit", milliseconds=0.1, times_faster=1000.0, vocab=100)
    add("moments", "five estimates, 9 at once", milliseconds=0.1, times_faster=1000.0, vocab=100)
    return rows


def verdicts(rows: list[dict[str, Any]], profile: str = "cpu") -> list[bool | None]:
    return [goal.reached for goal in goals.goals(rows, profile)]


def test_each_goal_can_be_missed_and_each_number_counts() -> None:
    assert set(verdicts(good_rows())) == {True}
    flipped = [False] * len(verdicts(good_rows()))
    better_if_more = {"times_faster"}
    for number, row in enumerate(good_rows()):
        for column, value in row.items():
            if column in ("tokens", "vocab", "hidden") or not isinstance(value, float):
                continue
            rows = good_rows()
            rows[number][column] = value * (0.99 if column in better_if_more else 1.01)
            if row["variant"] in ("torch.compile", "rounding alone", "Liger, chunk 256"):
                rows[number][column] = value * 0.99
            now = verdicts(rows)
            flipped = [a or b is False for a, b in zip(flipped, now, strict=True)]
    assert flipped == [True] * len(flipped)


def test_what_was_not_measured_is_not_reached() -> None:
    assert set(verdicts([])) == {None}
    assert set(verdicts([], "gpu")) == {None}


def test_the_bound_of_the_bandwidth_on_a_gpu() -> None:
    size = {"tokens": 8192, "vocab": 151_936, "hidden": 0, "dtype": "bfloat16", "allocator": "default"}
    base = dict.fromkeys(performance.COLUMNS)
    rows = [base | size | {"work": "reverse_kl", "variant": n, "milliseconds": 2.0} for n in ("ours, safe",)]
    rows += [base | size | {"work": "machine", "variant": "copy", "figure": 4800.0}]
    share = goals.goals(rows, "gpu")[0]
    assert share.measured == pytest.approx(1.5557 / 2.0, rel=1e-3)
    assert share.reached
    rows[1]["figure"] = 8000.0
    assert goals.goals(rows, "gpu")[0].reached is False


def test_the_report_says_which_goals_were_missed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = good_rows()
    rows[0]["times_faster"] = 4.0
    goals.report(rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "NOT REACHED" in line] == [line for line in lines if " 4  " in line]
    assert sum("  reached" in line for line in lines) == len(lines) - 1


def test_rows_of_time_and_memory_become_one() -> None:
    base = tiny("logp").base() | {"variant": "naive"}
    (row,) = performance.merge([base | {"milliseconds": 2.0}, base | {"extra_megabytes": 1.0}], "here")
    assert tuple(row) == performance.COLUMNS
    assert (row["milliseconds"], row["extra_megabytes"], row["device"]) == (2.0, 1.0, "here")
    assert row["figure"] is None
    assert math.isfinite(row["milliseconds"])


def test_the_losses_that_are_timed_are_files_with_these_functions(tmp_path: Path) -> None:
    rows = auditing.commands(tmp_path)
    assert rows["k3, all conditions"] == ["k3"]
    assert [x for x in rows.values() if "--scale" in x] == [[f"{tmp_path}/simple.py:k2", "--scale", "1"]]
    for target, *_ in rows.values():
        if target != "k3":
            found = audit(load_function(target), off_policy=False, scale=1.0)
            assert found.matches, target


def test_seconds_are_those_of_the_process_and_a_failure_is_said() -> None:
    assert 0.3 < auditing.seconds(["-c", "import time; time.sleep(0.3)"]) < 5
    with pytest.raises(RuntimeError, match="no such thing"):
        auditing.seconds(["-c", "raise ValueError('no such thing')"])


def test_the_share_of_the_monitor_is_measured_in_small():
    found = monitoring.measured(1, completions=4, parts=2, length=3, tiny=True)
    assert found.model == "a tiny model"
    assert (found.last.step, found.last.answers, found.last.tokens) == (2, 4, 12)
    assert 0 < found.share < 1
