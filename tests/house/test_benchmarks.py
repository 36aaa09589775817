"""The benchmark measures what it says: every variant has the loss and the gradient of its work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from benchmarks import auditing, goals, measure, monitoring, peers, performance, suites
from benchmarks.measure import Case
from benchmarks.peers import VARIANTS
from benchmarks.works import LINEAR, relative_error, true_gradient, true_values
from kl_book.speed_goals import OURS
from kl_companion import audit
from kl_companion.cli.loading import load_function
from kl_companion.kernels import arguments, blocks, compiling

TOLERANCE = {"float32": 2e-5, "bfloat16": 0.08}  # peers that compute in bfloat16 are off by five percent
EVERY = [(work, name) for work, variants in VARIANTS.items() for name in variants]


def tiny(work: str, dtype: str = "float32") -> Case:
    return Case(work, dtype, tokens=6, vocab=97, hidden=16 if work in LINEAR else 0)


@pytest.fixture(autouse=True)
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(arguments, "compiles", lambda *options: False)
    peers._compiled.cache_clear()


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
    naive, roof = measure.measured(case)
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
    monkeypatch.setattr(compiling, "_PART", 1 << 10)
    monkeypatch.setitem(blocks._BLOCK_BYTES, "cpu", 1 << 18)
    variants = ("naive", "ours, in place", "roof")
    case = Case("reverse_kl", tokens=64, vocab=40_000, variants=variants, rounds=1, memory=True)
    naive, place, roof = measure.measured(case)
    assert naive["extra_of_logits"] > 3.0
    assert place["extra_of_logits"] < 1.0  # what the first one held plays no part
    assert "extra_of_logits" not in roof


def test_a_process_says_how_far_it_is_and_its_failure_is_not_silent(
    capfd: pytest.CaptureFixture[str],
) -> None:
    case = Case("reverse_kl", variants=("naive",))._asdict()
    environment = performance.variables(1, "warm")
    assert environment["OMP_NUM_THREADS"] == "1"
    assert set(performance.WARM) <= set(environment)
    assert not set(performance.WARM) & set(performance.variables(1, "default"))
    (row,) = performance.child({"cases": [case]}, environment)
    assert row["variant"] == "naive"
    assert "'work': 'reverse_kl'" in capfd.readouterr().err
    with pytest.raises(RuntimeError, match="failed, see above"):
        list(performance.child({"cases": [{**case, "work": "no such work"}]}, environment))


class Event:
    """What `torch.cuda.Event` does, on a processor."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


def test_a_case_for_a_gpu_runs_the_same_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    real = measure.make_inputs
    monkeypatch.setattr(measure, "make_inputs", lambda *sizes, device: real(*sizes, device="cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda clocks: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 100 + 3 * 6 * 97 * 2)
    works = set()
    for cases in [*suites.batches("gpu").values(), *suites.batches("gpu_short").values()]:
        for case in cases:
            assert case.device == "cuda"
            case = case._replace(tokens=6, vocab=97, hidden=min(case.hidden, 16), rounds=1)
            naive, _ = measure.measured(case._replace(variants=("naive", "ours")))[:2]
            assert naive["milliseconds"] > 0
            if case.memory and case.dtype == "bfloat16" and case.work not in LINEAR:
                assert naive["extra_of_logits"] == 3.0
            works.add(case.work)
    assert works >= {"reverse_kl", "logp", "top_k", "linear_kl"}
    assert waits


@pytest.mark.parametrize("suite", suites.SUITES)
def test_every_case_names_variants_that_exist_and_is_measured_once(suite: str) -> None:
    batches = suites.batches(suite)
    cases = [case for cases in batches.values() for case in cases]
    for case in cases:
        assert set(case.variants or ()) <= set(VARIANTS[case.work])
        assert "naive" in case.chosen()
    assert len({case[:7] for case in cases}) == len(cases)
    for batch in batches.values():  # a process has one number of threads and one allocator
        assert len({(case.threads, case.allocator) for case in batch}) == 1


def test_whole_training_steps_in_the_columns_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"milliseconds": 8.0, "of_sampled": 1.25, "vocab": 97, "hidden": 16, "megabytes": 3.0}
    monkeypatch.setattr(performance.training_step, "rows", lambda sizes: [{"loss": "exact KL", **found}])
    ((row,),) = performance.do({"training_step": {"batch": 2, "length": 3, "rounds": 1}})
    assert set(row) <= set(performance.COLUMNS)
    assert [row[name] for name in ("variant", "tokens", "vocab", "hidden")] == ["exact KL", 6, 97, 16]
    assert (row["times_faster"], row["extra_megabytes"]) == (0.8, 3.0)


def test_the_smallest_suite_fills_the_columns_of_the_table() -> None:
    rows = list(performance.suite_rows("smoke"))
    assert {tuple(row) for row in rows} == {performance.COLUMNS}
    assert {row["work"] for row in rows} == {*VARIANTS, "moments", "machine"}
    assert [row["device"] for row in rows] == [measure.device_name("cpu")] * len(rows)
    keys = {tuple(row[name] for name in measure.KEY) for row in rows}
    assert len(keys) == len(rows)


def test_the_report_says_which_goals_were_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = dict.fromkeys(performance.COLUMNS)
    base |= {"work": "reverse_kl", "dtype": "float32", "threads": 2, "allocator": "default"}
    base |= {"tokens": 256, "vocab": 151_936}
    rows = [
        base | {"variant": OURS, "milliseconds": 10.0, "extra_of_logits": 1.5},
        base | {"variant": "naive", "milliseconds": 60.0},
    ]
    goals.report(rows)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-2:] for line in lines if line.endswith(("reached", "missed"))] == [
        ["6", "reached"],
        ["1.5", "missed"],
    ]
    assert sum(line.endswith("not measured") for line in lines) == len(lines) - 2
    monkeypatch.setattr(
        goals.speed_tables, "measured", lambda profile="cpu": rows if profile == "cpu" else []
    )
    monkeypatch.setattr(
        goals.speed_tables, "sentences", lambda given: ("one.", "two.") if given is rows else ()
    )
    goals.main()
    out = capsys.readouterr().out.splitlines()
    assert out[: len(lines)] == lines
    assert out[-2:] == ["one.", "two."]


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
