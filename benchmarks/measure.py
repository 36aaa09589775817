"""Time, peak memory and gradient error of the variants of one work, inside one process.

Time: all variants in turn in every round, in an order that rotates, so that a busy machine disturbs them
alike; ratios are taken within rounds. Logits that a variant used up are filled again outside of the clock.
Memory: the peak of the process beyond what it held before the call, after memory that was freed has gone back
to the system. The gradient of the weight, which a linear work must hand out, does not count.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.peers import FLOORS, VARIANTS, Variant, available
from benchmarks.works import LINEAR, ROWS, Inputs, make_inputs, relative_error, true_gradient

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OTHER_LOSS = 0.3  # a larger relative error than this is no rounding: the variant computes something else
SLOW = 20.0  # seconds
ASLEEP = 20_000_000  # clocks of a GPU, 10 milliseconds
WARM_UP = {"default": 1, "warm": 2}  # glibc's heap needs two calls until all its pages are there
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
KEY = ("work", "dtype", "threads", "allocator", "tokens", "vocab", "hidden", "variant")
Row = dict[str, Any]


class Case(NamedTuple):
    """One work at one size. `variants` None: all that there are; `memory`: its peaks are measured too."""

    work: str
    dtype: str = "float32"
    threads: int = 1
    allocator: str = "default"
    tokens: int = 8
    vocab: int = 512
    hidden: int = 0
    variants: tuple[str, ...] | None = None
    rounds: int = 2
    memory: bool = False
    device: str = "cpu"

    def chosen(self) -> dict[str, Variant]:
        """The variants of this case that can run here."""
        found = {}
        for name, variant in VARIANTS[self.work].items():
            asked = self.variants is None or name in self.variants
            if asked and self.dtype in variant.dtypes and available(variant, self.device):
                found[name] = variant
        return found

    def inputs(self) -> Inputs:
        """The inputs of this case."""
        sizes = (self.tokens, self.vocab, self.hidden)
        return make_inputs(self.work, DTYPES[self.dtype], *sizes, device=self.device)

    def base(self) -> Row:
        """The columns that all its rows share."""
        return {name: getattr(self, name) for name in KEY[:-1]}


def synchronize(device: str) -> None:
    """Wait for a GPU; a processor is never behind."""
    if device == "cuda":
        torch.cuda.synchronize()


def sweep() -> None:
    """Give unreachable memory back, and never look through what stays again: that would take longer."""
    gc.collect()
    gc.freeze()


def milliseconds(work: Callable[[], object], device: str = "cpu") -> float:
    """Time of one call: wall-clock on a processor, between two events on a GPU.

    The GPU sleeps first, as one that is behind does in a training step: it waits for no Python. What the call
    returns is freed outside of the clock.
    """
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda._sleep(ASLEEP)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        kept = work()
        end.record()
        end.synchronize()
        taken = begin.elapsed_time(end)
    else:
        start = time.perf_counter()
        kept = work()
        taken = 1e3 * (time.perf_counter() - start)
    del kept
    return taken


def error_of(variant: Variant, inputs: Inputs, gradients: tuple[torch.Tensor, ...]) -> float | None:
    """Relative error of the gradient of the first tokens against float64; ValueError for another loss."""
    if not variant.truth:
        return None
    inputs.refill()
    error = relative_error(gradients[0][:ROWS], true_gradient(variant.truth, inputs))
    if not error < OTHER_LOSS:
        raise ValueError(f"gradient off by {error:.2g}: this is no {variant.truth}")
    return error


def measured(case: Case) -> list[Row]:
    """One row per variant: milliseconds, ratios within rounds, error of the gradient, memory if asked for."""
    chosen, inputs = case.chosen(), case.inputs()
    if any(variant.spoils for variant in chosen.values()):
        inputs.kept = inputs.x.detach().clone()
    rows: dict[str, Row] = {}
    for name, variant in list(chosen.items()):
        try:
            base = {**case.base(), "variant": name, "rounds": case.rounds}
            rows[name] = base | _first(case, variant, inputs)
        except Exception as error:
            if not variant.needs:
                raise
            leave_out(case, name, error)
            del chosen[name]
    slow = {name: rows[name].pop("slow") for name in chosen if "slow" in rows[name]}
    taken = _rounds(case, {name: v for name, v in chosen.items() if name not in slow}, inputs)
    for name, once in slow.items():
        taken[name], rows[name]["rounds"] = [once] * case.rounds, 1
    floor = next((name for name in FLOORS if name in chosen), "")
    for name, row in rows.items():
        row["milliseconds"] = statistics.median(taken[name])
        row["best_milliseconds"] = min(taken[name])
        row["times_faster"] = _ratio(taken.get("naive"), taken[name])
        row["of_floor"] = _ratio(taken[name], taken.get(floor))
        if case.memory and name not in FLOORS and name not in slow:
            row |= memory(case, chosen[name], inputs)
    found = list(rows.values())
    if case.dtype == "bfloat16" and case.work not in LINEAR:
        found.append(rounding(case, inputs))
    return found


def leave_out(case: Case, name: str, error: Exception) -> None:
    """A peer that fails does not stop the others: say so."""
    print(f"{case.work}, {case.dtype}, {name}: this peer is left out, {error!r}"[:500], file=sys.stderr)


def _first(case: Case, variant: Variant, inputs: Inputs) -> Row:
    """Warm up; the error of the gradient, and the seconds of the first call where it compiles.

    What takes over `SLOW` seconds is not called again: milliseconds of its only call are under "slow".
    """
    inputs.refill()
    begin = time.perf_counter()
    gradients = variant.run(inputs)[1]
    synchronize(case.device)
    seconds = time.perf_counter() - begin
    found: Row = {"figure": seconds, "unit": "s, first call"} if variant.compiled else {}
    kept = tuple(gradient[:ROWS].clone() for gradient in gradients[:1])
    del gradients
    found["gradient_error"] = error_of(variant, inputs, kept)
    if seconds > SLOW and not variant.compiled:
        return found | {"slow": 1e3 * seconds}
    for _ in range(WARM_UP[case.allocator] - 1):
        inputs.refill()
        variant.run(inputs)
    return found


def _rounds(case: Case, chosen: dict[str, Variant], inputs: Inputs) -> dict[str, list[float]]:
    names = list(chosen)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(case.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            inputs.refill()
            sweep()
            taken[name].append(milliseconds(lambda run=chosen[name].run: run(inputs), case.device))
    return taken


def _ratio(above: list[float] | None, below: list[float] | None) -> float | None:
    """Median over rounds of one time over another."""
    if above is None or below is None:
        return None
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


# -- memory --------------------------------------------------------------------------------------------------


def _status(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return 1024 * int(line.split()[1])


def peak_bytes(work: Callable[[], object], device: str = "cpu") -> int:
    """Peak memory during one call beyond what was held before: of the GPU, or of this process on Linux."""
    sweep()
    if device == "cuda":
        synchronize(device)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        synchronize(device)
        return torch.cuda.max_memory_allocated() - before
    if not CLEAR.exists():
        raise OSError("peak memory is read from /proc: run this on Linux")
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    work()
    return max(0, _status("VmHWM") - before)


def memory(case: Case, variant: Variant, inputs: Inputs) -> Row:
    """Peak memory of a variant that has run before, beyond its inputs."""
    inputs.refill()
    inputs.buffers.clear()
    extra = peak_bytes(lambda: variant.run(inputs), case.device)
    if case.work in LINEAR:
        extra -= inputs.weight.numel() * inputs.weight.element_size()
    logits = case.tokens * case.vocab * DTYPES[case.dtype].itemsize
    return {"extra_megabytes": max(0, extra) / 1e6, "extra_of_logits": max(0, extra) / logits}


def rounding(case: Case, inputs: Inputs) -> Row:
    """The error that the dtype alone makes: the exact gradient, rounded."""
    inputs.refill()
    exact = true_gradient(case.work, inputs)
    error = relative_error(exact.to(DTYPES[case.dtype]), exact)
    return {**case.base(), "variant": "rounding alone", "gradient_error": error}


# -- the machine ---------------------------------------------------------------------------------------------


def device_name(device: str) -> str:
    """The processor, or the GPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.machine()


def machine(device: str, megabytes: int, size: int, rounds: int) -> list[Row]:
    """What the machine can do: copying, filling new memory, multiplying matrices."""
    n = megabytes * 250_000
    a, b = torch.zeros(n, device=device), torch.ones(n, device=device)

    def best(work: Callable[[], object]) -> float:
        work()
        return min(milliseconds(work, device) for _ in range(rounds)) / 1e3

    figures = {
        "copy": (8 * n / best(lambda: b.copy_(a)) / 1e9, "GB/s read and written"),
        "add in place": (12 * n / best(lambda: torch.add(a, b, out=a)) / 1e9, "GB/s read and written"),
        "new memory": (4 * n / best(lambda: torch.ones(n, device=device)) / 1e9, "GB/s written"),
        "processors": (float(os.cpu_count() or 0), ""),
    }
    for name, dtype in DTYPES.items():
        m = torch.randn(size, size, device=device).to(dtype)
        out = torch.empty_like(m)
        flops = 2 * size**3 / best(lambda m=m, out=out: torch.mm(m, m, out=out))
        figures[f"matmul {name}"] = (flops / 1e9, "GFLOP/s")
    base = Case("machine", threads=torch.get_num_threads(), tokens=0, vocab=0).base()
    return [{**base, "variant": name, "figure": f, "unit": u} for name, (f, u) in figures.items()]
