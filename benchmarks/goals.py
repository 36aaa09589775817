"""The goals of the fused kernels, each a number of the table `performance` against a bound.

python -m benchmarks.goals            reads tables/performance/table.csv
python -m benchmarks.goals gpu        reads tables/performance/table.gpu.csv
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

Row = dict[str, Any]


class Goal(NamedTuple):
    """`measured` must be at least (sign 1) or at most (sign -1) the bound; None where it was not measured."""

    work: str
    text: str
    sign: int
    bound: float
    measured: float | None

    @property
    def reached(self) -> bool | None:
        """Is the bound kept? None where nothing was measured."""
        return None if self.measured is None else self.sign * (self.measured - self.bound) >= 0


def _cell(rows: Sequence[Row], column: str, variant: str, **where: object) -> float | None:
    """One number of the row that fits, None where there is none."""
    fit = [r for r in rows if r["variant"] == variant and all(r[k] == v for k, v in where.items())]
    fit = [r for r in fit if r[column] is not None]
    return float(fit[0][column]) if fit else None


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _least(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def _from_logits(rows: Sequence[Row]) -> list[Goal]:
    at = {"work": "reverse_kl", "tokens": 512, "vocab": 151_936}

    def cell(column: str, variant: str, dtype: str, allocator: str = "default") -> float | None:
        return _cell(rows, column, variant, dtype=dtype, allocator=allocator, **at)

    f32, bf16 = "float32", "bfloat16"
    fused, place = "ours, fused", "ours, in place"
    rounding = _cell(rows, "gradient_error", "rounding alone", dtype=bf16, work="reverse_kl")
    warm = [cell("milliseconds", name, f32, "warm") for name in (fused, "torch.compile")]
    full, half = "reverse KL, float32", "reverse KL, bfloat16"
    return [
        Goal(full, "in place, times faster than naive", 1, 5.0, cell("times_faster", place, f32)),
        Goal(full, "fused, times faster than naive", 1, 7.0, cell("times_faster", fused, f32)),
        Goal(full, "in place, extra memory / logits", -1, 0.05, cell("extra_of_logits", place, f32)),
        Goal(full, "fused, extra memory / logits", -1, 0.05, cell("extra_of_logits", fused, f32)),
        Goal(half, "fused, times faster than naive with upcast", 1, 8.0, cell("times_faster", fused, bf16)),
        Goal(half, "fused, extra memory / logits", -1, 0.05, cell("extra_of_logits", fused, bf16)),
        Goal(
            half,
            "fused, gradient error / rounding alone",
            -1,
            1.1,
            _over(cell("gradient_error", fused, bf16), rounding),
        ),
        Goal(f"{full}, warm", "fused, times faster", 1, 1.7, cell("times_faster", fused, f32, "warm")),
        Goal(f"{full}, warm", "fused, time / torch.compile", -1, 1.15, _over(*warm)),
        Goal(f"{full}, warm", "in place, times faster", 1, 1.3, cell("times_faster", place, f32, "warm")),
    ]


def _from_hidden(rows: Sequence[Row]) -> list[Goal]:
    at = {"work": "linear_kl", "dtype": "float32", "vocab": 151_936, "hidden": 896}

    def cell(column: str, variant: str) -> float | None:
        return _cell(rows, column, variant, **at)

    liger = _least(cell("milliseconds", f"Liger, {name}") for name in ("chunk 256", "chunk 64", "compiled"))
    work = "from hidden states, float32"
    fast, frugal = "ours, fast", "ours, frugal"
    return [
        Goal(work, "fast, time / four matrix products", -1, 1.15, cell("of_floor", fast)),
        Goal(work, "fast, MB beyond the gradient", -1, 350.0, cell("extra_megabytes", fast)),
        Goal(work, "fast, times faster than Liger's best", 1, 1.3, _over(liger, cell("milliseconds", fast))),
        Goal(work, "frugal, MB beyond the gradient", -1, 100.0, cell("extra_megabytes", frugal)),
        Goal(work, "frugal, time / four matrix products", -1, 1.6, cell("of_floor", frugal)),
    ]


def _others(rows: Sequence[Row]) -> list[Goal]:
    at = {"work": "top_k", "dtype": "float32", "allocator": "default", "vocab": 151_936}
    work, name = "top-k, k = 32, float32", "ours, in place"
    moments = [r for r in rows if r["work"] == "moments" and r["milliseconds"] is not None]
    slowest = max((r["milliseconds"] for r in moments if r["vocab"] == 151_936), default=None)
    loop = {r["variant"].endswith("one bandit"): r["times_faster"] for r in moments if r["vocab"] == 100}
    return [
        Goal(work, "times faster than naive exact", 1, 5.0, _cell(rows, "times_faster", name, **at)),
        Goal(work, "in place, extra memory / logits", -1, 0.05, _cell(rows, "extra_of_logits", name, **at)),
        Goal("exact moments", "one bandit, times faster than the loop", 1, 1000.0, loop.get(True)),
        Goal("exact moments", "of many at once, times faster", 1, 1000.0, loop.get(False)),
        Goal("exact moments", "ms a token at V = 151,936, slowest", -1, 5.0, slowest),
    ]


def _on_gpu(rows: Sequence[Row]) -> list[Goal]:
    at = {"work": "reverse_kl", "dtype": "bfloat16", "tokens": 8192, "vocab": 151_936}
    forward = {**at, "work": "forward_kl"}
    copy = _cell(rows, "figure", "copy", work="machine")
    bound = None if copy is None else 1e3 * 3 * 8192 * 151_936 * 2 / (copy * 1e9)  # milliseconds

    def ms(variant: str, where: dict[str, object] = at) -> float | None:
        return _cell(rows, "milliseconds", variant, **where)

    ours = {n: ms(f"ours, {n}") for n in ("safe", "in place", "fused", "compiled")}
    best = _least(ours.values())
    work = "GPU, reverse KL, bfloat16, N = 8192"
    goals = [Goal(work, "share of the bandwidth bound 3 N V b", 1, 0.6, _over(bound, best))]
    for peer in ("torch.compile", "Liger JSD"):
        goals.append(Goal(work, f"times faster than {peer}", 1, 1.0, _over(ms(peer), best)))
    best_forward = _least(ms(f"ours, {n}", forward) for n in ours)
    text = "forward KL, times faster than Liger KL"
    return [*goals, Goal(work, text, 1, 1.0, _over(ms("Liger KL", forward), best_forward))]


PARTS: dict[str, tuple[Callable[[Sequence[Row]], list[Goal]], ...]] = {
    "cpu": (_from_logits, _from_hidden, _others),
    "gpu": (_on_gpu,),
}


def goals(rows: Sequence[Row], profile: str = "cpu") -> list[Goal]:
    """All goals of a profile, from the rows of its table."""
    return [goal for part in PARTS[profile] for goal in part(rows)]


def report(rows: Sequence[Row], profile: str = "cpu") -> None:
    """Print each goal with what was measured."""
    for goal in goals(rows, profile):
        said = {True: "reached", False: "NOT REACHED", None: "not measured"}[goal.reached]
        bound = f"{'>=' if goal.sign > 0 else '<='} {goal.bound:g}"
        measured = "" if goal.measured is None else f"{goal.measured:.3g}"
        print(f"{goal.work:<36}{goal.text:<44}{bound:>9}{measured:>10}  {said}")


def main(arguments: list[str]) -> None:
    """Report on the table of a profile."""
    from kl_companion.book import tables

    profile = arguments[0] if arguments else "cpu"
    frame = tables.load("performance", profile=profile)
    report(frame.astype(object).where(frame.notna(), None).to_dict("records"), profile)


if __name__ == "__main__":
    main(sys.argv[1:])
